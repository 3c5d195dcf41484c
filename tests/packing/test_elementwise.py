"""Activations and arithmetic of torch networks: packed as torch computes them, folded before signs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Lambda
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d
from xnorpp.packing import pack_program as pack
from xnorpp.packing import verify
from xnorpp.runtime.reference import run

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "silu in place": lambda: nn.SiLU(inplace=True),
    "hardswish": nn.Hardswish,
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"),
    "elu": lambda: nn.ELU(0.7),
    "celu": lambda: nn.CELU(1.3),
    "selu": nn.SELU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
    "softplus": lambda: nn.Softplus(beta=1.7),
    "logsigmoid": nn.LogSigmoid,
    "softsign": nn.Softsign,
    "leaky relu": lambda: nn.LeakyReLU(0.2),
    "relu6": nn.ReLU6,
    "x * sigmoid(x)": lambda: Lambda(lambda x: x * torch.sigmoid(x)),
    "x.sigmoid().mul(x)": lambda: Lambda(lambda x: x.sigmoid().mul(x)),
    "x.mul_(x.sigmoid())": lambda: Lambda(lambda x: x.mul_(x.sigmoid())),
    "x * tanh(softplus(x))": lambda: Lambda(lambda x: x * F.softplus(x).tanh()),
}
MONOTONE = {
    "sigmoid", "hardsigmoid", "elu", "celu", "selu", "tanh", "softplus", "logsigmoid", "leaky relu", "relu6",
}  # fmt: skip
WRITTEN = {
    "x * sigmoid(x)": "silu", "x.sigmoid().mul(x)": "silu", "x.mul_(x.sigmoid())": "silu",
    "x * tanh(softplus(x))": "mish",
}  # fmt: skip
SAME_SIGN = {"silu", "silu in place", "hardswish", "gelu", "gelu tanh", "mish", *WRITTEN}


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, *shape)).astype(np.float32)


def settled(model: nn.Module) -> nn.Module:
    g = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.5, generator=g)
            module.running_var.uniform_(0.5, 2, generator=g)
            with torch.no_grad():
                module.weight.normal_(0.5, 0.5, generator=g)
                module.bias.normal_(0, 0.5, generator=g)
    return model.eval()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    model = settled(
        nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), ACTIVATIONS[name](), nn.Conv2d(5, 7, 3))
    )
    x = 3 * images(4, 3, 9, 8)
    found = verify(model, x)
    assert found.holds
    assert found.output_error < 1e-4


@pytest.mark.parametrize("name", sorted(MONOTONE | SAME_SIGN))
def test_before_a_sign_only_a_threshold_is_left(name: str) -> None:
    """A monotone one with a batch norm after it, and one with the sign of its input directly before it."""
    after = [nn.BatchNorm2d(8)] if name in MONOTONE else []
    layers = [
        BinaryConv2d(3, 8, 3), nn.BatchNorm2d(8), ACTIVATIONS[name](), *after, BinaryConv2d(8, 6, 3),
    ]  # fmt: skip
    model = settled(nn.Sequential(*layers))
    program = pack(model, (3, 9, 8))
    assert {op.op for op in program.ops} == {"sign", "binary_conv2d", "affine"}
    assert verify(model, images(8, 3, 9, 8)).holds


@pytest.mark.parametrize("name", WRITTEN)
def test_an_activation_written_out_is_one_operation(name: str) -> None:
    program = pack(nn.Sequential(nn.Conv2d(3, 5, 3), ACTIVATIONS[name](), nn.Conv2d(5, 7, 3)), (3, 9, 8))
    assert [op.op for op in program.ops] == ["conv2d", WRITTEN[name], "conv2d"]


class Arithmetic(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("map", torch.from_numpy(images(1, 4, 6, 5)))
        self.register_buffer("scale", torch.from_numpy(images(4, 1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, x.mean((2, 3), keepdim=True), self.map, self.scale)


FORMS: dict[str, Callable[..., Tensor]] = {
    "gate": lambda x, m, c, s: x * torch.sigmoid(m),
    "gate in place": lambda x, m, c, s: (x * 1).mul_(m.sigmoid()),
    "gate first": lambda x, m, c, s: m * x,
    "minus": lambda x, m, c, s: x - m,
    "from": lambda x, m, c, s: m - x,
    "over": lambda x, m, c, s: x / (m.abs() + 1),
    "under": lambda x, m, c, s: m / (x.abs() + 1),
    "one over": lambda x, m, c, s: 2.0 / (x.abs() + 1),
    "positions": lambda x, m, c, s: x + c,
    "map": lambda x, m, c, s: (x * c - c) / (c.abs() + 1),
    "from a map": lambda x, m, c, s: c - x,
    "layer scale": lambda x, m, c, s: x * s + m * s,
    "addcmul": lambda x, m, c, s: torch.addcmul(s, s, x * m),
    "square": lambda x, m, c, s: x.square() + x**2 + x.pow(2),
    "roots": lambda x, m, c, s: x.abs().sqrt() + (x.abs() + 1).rsqrt() + (x.abs() + 1) ** -0.5,
    "reciprocal": lambda x, m, c, s: (x.abs() + 1).reciprocal(),
    "clamp": lambda x, m, c, s: x.clamp(-0.5, 0.7) + x.clamp(min=-0.2) + x.clip(max=0.3),
    "exp and log": lambda x, m, c, s: torch.log(torch.exp(x) + 1),
    "gelu by hand": lambda x, m, c, s: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
}


@pytest.mark.parametrize("name", FORMS)
def test_arithmetic(name: str) -> None:
    model, x = Arithmetic(FORMS[name]).eval(), images(3, 4, 6, 5)
    with torch.no_grad():
        want = model(torch.from_numpy(x.copy())).numpy()
    np.testing.assert_allclose(run(pack(model, (4, 6, 5)), x), want, rtol=2e-6, atol=2e-6)
    assert verify(model, x).holds


def test_rprelu_is_a_shift_a_slope_and_a_shift() -> None:
    class RPReLU(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.before = nn.Parameter(torch.from_numpy(images(channels, 1, 1)))
            self.after = nn.Parameter(torch.from_numpy(images(channels, 1, 1)))
            self.slope = nn.PReLU(channels)

        def forward(self, x: Tensor) -> Tensor:
            return self.slope(x - self.before) + self.after

    model = settled(nn.Sequential(BinaryConv2d(3, 8, 3), nn.BatchNorm2d(8), RPReLU(8), BinaryConv2d(8, 4, 3)))
    assert {op.op for op in pack(model, (3, 9, 9)).ops} == {"sign", "binary_conv2d", "affine"}
    assert verify(model, images(4, 3, 9, 9)).holds


def test_squeeze_excitation() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BinaryConv2d(3, 12, 3, padding=1)
            self.bn = nn.BatchNorm2d(12)
            self.down, self.up = nn.Conv2d(12, 3, 1), nn.Conv2d(3, 12, 1)
            self.last = BinaryConv2d(12, 5, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.silu(self.bn(self.conv(x)))
            gate = self.up(F.silu(self.down(x.mean((2, 3), keepdim=True))))
            return self.last(x * gate.sigmoid())

    model = settled(Net())
    found = verify(model, images(8, 3, 10, 9))
    assert found.holds
    assert found.same_class == 1
