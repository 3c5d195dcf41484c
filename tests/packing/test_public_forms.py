"""Binary networks in the forms of public code, each written anew: they pack as bits and agree with torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from test_handwritten import Shift, Sign, polynomial, straight_through
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import check_packable, verify


class Replaced(nn.Module):
    """BinaryNet's: inputs and weights are replaced in their `data`, and the bias is added afterwards."""

    def __init__(self, layer: nn.Module, first: bool = False) -> None:
        super().__init__()
        self.layer, self.first = layer, first
        self.original = layer.weight.data.clone()

    def forward(self, x: Tensor) -> Tensor:
        if not self.first:
            x.data = x.data.sign()
        self.layer.weight.data = self.original.sign()
        if isinstance(self.layer, nn.Linear):
            out = F.linear(x, self.layer.weight)
            out += self.layer.bias.view(1, -1).expand_as(out)
            return out
        return F.conv2d(x, self.layer.weight, None, self.layer.stride, self.layer.padding)


def binary_net() -> nn.Module:
    return nn.Sequential(
        Replaced(nn.Conv2d(3, 16, 3, padding=1), first=True), nn.BatchNorm2d(16), nn.Hardtanh(inplace=True),
        Replaced(nn.Conv2d(16, 16, 3, padding=1)), nn.MaxPool2d(2), nn.BatchNorm2d(16),
        nn.Hardtanh(inplace=True), nn.Flatten(), Replaced(nn.Linear(16 * 36, 32)), nn.BatchNorm1d(32),
        nn.Hardtanh(inplace=True), Replaced(nn.Linear(32, 10)), nn.BatchNorm1d(10, affine=False),
        nn.LogSoftmax(1),
    )  # fmt: skip


class Active(torch.autograd.Function):
    """XNOR-Net's, which returns the mean as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sign(), x.abs().mean(1, keepdim=True)


class NormFirst(nn.Module):
    """XNOR-Net's layer: its weights hold alpha * sign(w) already."""

    def __init__(self, inputs: int, outputs: int, **settings: Any) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs, eps=1e-4), nn.Conv2d(inputs, outputs, 3, **settings)
        w = self.conv.weight.data
        w -= w.mean(1, keepdim=True)
        w.copy_(w.abs().mean((1, 2, 3), keepdim=True) * w.sign())

    def forward(self, x: Tensor) -> Tensor:
        x, _ = Active.apply(self.norm(x))
        return torch.relu(self.conv(F.dropout(x, 0.5, self.training)))


def xnor_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(True), NormFirst(16, 16), nn.AvgPool2d(3, 2, 1),
        NormFirst(16, 24, padding=1), nn.BatchNorm2d(24), nn.Conv2d(24, 10, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Quantized(nn.Module):
    """DoReFa-Net's with one bit: inputs of 0 and 1, weights of one mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.abs().mean().detach()
        return F.conv2d(Sign.apply(x.clamp(0, 1)), Sign.apply(self.weight / mean) * mean, stride=2, padding=1)


def dorefa_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), Quantized(16, 16), nn.BatchNorm2d(16), Quantized(16, 24),
        nn.BatchNorm2d(24), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip


class Same(nn.Module):
    """Larq's: at least 0 is 1, and "same" padding before a convolution with a stride, of 0 or of 1."""

    def __init__(self, inputs: int, outputs: int, stride: int, filling: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.stride, self.filling, self.norm = stride, filling, nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        edges = []
        for size in reversed(x.shape[2:]):
            missing = max((math.ceil(size / self.stride) - 1) * self.stride + 3 - size, 0)
            edges += [missing // 2, missing - missing // 2]
        bits, filters = (torch.where(t >= 0, 1.0, -1.0) for t in (x, self.weight))
        y = F.conv2d(F.pad(bits, edges, value=self.filling), filters, stride=self.stride)
        return self.norm(torch.relu(y)) + (F.avg_pool2d(x, 2, ceil_mode=True) if self.stride == 2 else x)


def larq(filling: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), Same(16, 16, 1, filling), Same(16, 16, 2, filling),
        Same(16, 16, 1, filling), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


class Clamped(nn.Module):
    """Brevitas': a quantizer returns its scale, and clamps by comparisons with tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale.abs()
        x = torch.where(x > scale, scale.type_as(x), x)
        x = torch.where(x < -scale, (-scale).type_as(x), x)
        return torch.where(x >= 0, torch.tensor(1.0), torch.tensor(-1.0)) * scale, scale


class BothQuantized(nn.Conv2d):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.inputs, self.filters = Clamped(), Clamped()

    def forward(self, x: Tensor) -> Tensor:
        (x, _), (w, _) = self.inputs(x), self.filters(self.weight)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


def brevitas() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), BothQuantized(16, 16, 3, padding=1), nn.BatchNorm2d(16),
        BothQuantized(16, 24, 3, stride=2, bias=False), nn.BatchNorm2d(24), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip


class Sets(nn.Module):
    """AdaBin's: two numbers of inputs and of filters, and a slope for each side after it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3))
        self.size, self.middle = nn.Parameter(torch.tensor(1.1)), nn.Parameter(torch.tensor(0.07))
        self.positive, self.negative = (nn.Parameter(torch.rand(channels)) for _ in range(2))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        bits = self.size * polynomial((x - self.middle) / self.size) + self.middle
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        size = ((self.weight - mean) ** 2).mean((1, 2, 3), keepdim=True).sqrt()
        y = self.norm(F.conv2d(bits, Sign.apply((self.weight - mean) / size) * size + mean, padding=1)) + x
        up, down = (s.view(1, -1, 1, 1).expand_as(y) for s in (self.positive, self.negative))
        return up * torch.relu(y) - down * torch.relu(-y)


def adabin() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), Sets(16), Sets(16), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


class Scaled(nn.Module):
    """Real-to-binary's: a scale per channel, row and column after the product, and a gate of the input."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3))
        self.norm, self.act = nn.BatchNorm2d(channels), nn.PReLU(channels)
        self.alpha, self.beta, self.gamma = (
            nn.Parameter(torch.rand(shape) + 0.5) for shape in ((channels, 1, 1), (1, size, 1), (1, 1, size))
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, 4, 1),
            nn.ReLU(),
            nn.Conv2d(4, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        out = F.conv2d(Sign.apply(y), Sign.apply(self.weight), padding=1)
        out = out.mul(self.alpha.mul(self.beta).mul(self.gamma)).mul(self.gate(y))
        return self.act(out) + x


def real_to_binary() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.PReLU(16), Scaled(16, 10), Scaled(16, 10), nn.Flatten(1)
    )


class Tokens(nn.Module):
    """A binary transformer's linear layer: inputs of a learned scale, filters of one middle."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(outputs, inputs)),
            nn.Parameter(torch.randn(outputs)),
        )
        self.move, self.alpha = nn.Parameter(torch.randn(inputs) * 0.1), nn.Parameter(torch.tensor(0.6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sign((x + self.move) / self.alpha) * self.alpha
        w = self.weight - self.weight.mean()
        return F.linear(x, w.abs().mean() * torch.sign(w), self.bias)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16)
        self.qkv, self.out, self.up, self.down = (
            Tokens(16, 48), Tokens(16, 16), Tokens(16, 32), Tokens(32, 16)
        )  # fmt: skip
        self.shift = nn.Parameter(torch.randn(48) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        n, t, c = x.shape
        q, k, v = (torch.sign(self.qkv(self.norm(x)) + self.shift)).view(n, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c) - 0.013)
        return (x + self.down(F.gelu(self.up(self.norm(x))) - 0.1)).mean(1)


FORMS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "BinaryNet": (binary_net, 3),
    "XNOR-Net": (xnor_net, 2),
    "DoReFa-Net": (dorefa_net, 2),
    "Larq, padding with 1": (lambda: larq(1.0), 3),
    "Larq, padding with 0": (lambda: larq(0.0), 3),
    "Brevitas": (brevitas, 2),
    "AdaBin": (adabin, 4),  # with the sums of the windows
    "real to binary": (real_to_binary, 2),
    "a transformer": (Transformer, 4),
}


@pytest.mark.parametrize("name", FORMS)
def test_networks_in_the_forms_of_public_code(name: str) -> None:
    torch.manual_seed(0)
    maker, products = FORMS[name]
    model, x = maker(), torch.randn(8, 3, 12, 12)
    with torch.no_grad():
        model.eval()(x)
    assert check_packable(model, (3, 12, 12)), "untrained"
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            if norm.affine:
                nn.init.normal_(norm.bias)
    with torch.no_grad():
        wanted = model(x.clone()).numpy()
    packed = xnorpp.pack(model, (3, 12, 12))
    made = [op.op for op in packed.program.ops]
    assert made.count("binary_conv2d") + made.count("binary_linear") == products
    for isa in (None, "reference"):
        found = xnorpp.PackedModel(packed.program, isa=isa)(x.numpy())
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    assert verify(model, x.numpy()).holds


def test_shifts_before_training_are_no_zeros() -> None:
    """RSign's shifts are 0 at first, after a convolution without a batch norm too."""
    shift = Shift(8)
    nn.init.zeros_(shift.bias)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), shift)
    model.append(nn.Sequential())
    model[2].forward = lambda x: F.conv2d(torch.sign(x), straight_through(model.filters))
    model.filters = nn.Parameter(torch.randn(4, 8, 3, 3))
    assert check_packable(model, (3, 12, 12))


class Autoencoder(nn.Module):
    """Returns what it was given too, for a loss outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 3, 2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.decode(self.encode(x).relu()), x


def test_the_input_beside_other_outputs() -> None:
    torch.manual_seed(0)
    model = Autoencoder().eval()
    packed = xnorpp.pack(model, example=(3, 8, 8))
    x = torch.randn(3, 3, 16, 8)
    made, given = packed(x.numpy()).values()
    assert (given == x.numpy()).all()
    torch.testing.assert_close(torch.from_numpy(made), model(x)[0], rtol=1e-4, atol=1e-5)
    assert verify(model, x.numpy()).holds


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "of numpy": lambda x: np.float32(0.5) * x - np.int64(3) * x / np.sqrt(x.shape[1]) + (x > np.float32(0.1)),
    "on a device": lambda x: x.cpu() * 2,
    "legacy": lambda x: 2 * x + torch.autograd.Variable(torch.zeros(x.size(0), 1, 1, 1)),
    "out": lambda x: torch.add(x, x * 3, out=torch.empty_like(x)),
    "copied": lambda x: torch.empty_like(x).copy_(x * 2) + x.clone().fill_(2.0) + x.clone().zero_(),
    "largest of several": lambda x: (
        torch.stack([x, x * 2], 0).max(0)[0] + torch.stack([x, -x]).min(dim=0).values
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_as_people_write_them(name: str) -> None:
    agrees(NUMBERS[name], images(3, 4, 5))


def test_what_is_refused_twice_is_not_taken_for_one() -> None:
    is_refused(
        Lambda(lambda x: x * 2 + torch.lgamma(x) - torch.digamma(x)), (4,), "lgamma is not supported", ""
    )
