"""Rounding, of numbers whose range is known, and activations of a few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn
from torch.ao import quantization as ao

import xnorpp

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda x: (x.clamp(-3, 3) * 4).round() / 2,
    "twice": lambda x: ((x * 4).clamp(-4, 4).round() / 2).round(),
    "in place": lambda x: (x.sigmoid() * 7).round_(),
    "shares": lambda x: (x.softmax(1) * 15).round(),
    "magnitudes": lambda x: (x.clamp(-2, 5).abs() - 1).round(),
    "slopes": lambda x: F.leaky_relu(x.clamp(-9, 2), 0.3).round(),
    "sums": lambda x: (x.tanh() * 3 + F.relu6(x)).round(),
    "floor": lambda x: (x.tanh() * 5).floor(),
    "ceil": lambda x: x.clamp(-9, 9).ceil(),
    "trunc": lambda x: x.clamp(-9, 9).trunc(),
    "frac": lambda x: (x.clamp(-9, 9) * 3).frac(),
    "windows": lambda x: x.flatten(0, 1).clamp(-2, 2).round().unflatten(0, (len(x), -1)),
    "quantised": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
}


@pytest.mark.parametrize("name", FORMS)
def test_rounding(name: str) -> None:
    agrees(FORMS[name], images(6, 8, 9) * 2)


def test_any_size_and_a_file(tmp_path: Any) -> None:
    model = Lambda(FORMS["halves"])
    packed = xnorpp.pack(model, example=images(3, 8, 9))
    packed.save(tmp_path / "rounded.xnor")
    x = images(3, 5, 20)
    torch.testing.assert_close(torch.from_numpy(xnorpp.load(tmp_path / "rounded.xnor")(x.numpy())), model(x))


class Few(nn.Module):
    """Activations of so many bits, and filters of one."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.conv = nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3, padding=1)
        self.most = 2**bits - 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x).clamp(0, 1) * self.most
        x = ((x.round() - x).detach() + x) / self.most
        scale = self.conv.weight.abs().mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, self.conv.weight.sign() * scale, padding=1)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_activations_of_a_few_bits(bits: int) -> None:
    packed = agrees(Few(bits), images(6, 8, 9))
    ops = [op.op for op in packed.program.ops]
    assert ("binary_conv2d" in ops) == (bits == 1)


def quantised(kind: Any, observer: Any, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    fake = kind.with_args(observer=observer, quant_min=0, quant_max=255, **settings)()
    model = nn.Sequential(nn.Conv2d(6, 8, 3), fake)
    model(images(6, 8, 8))
    return model


@pytest.mark.parametrize(
    "model",
    [
        quantised(ao.FakeQuantize, ao.MovingAverageMinMaxObserver),
        quantised(ao.FusedMovingAvgObsFakeQuantize, ao.MovingAverageMinMaxObserver),
        quantised(
            ao.FakeQuantize, ao.PerChannelMinMaxObserver, ch_axis=1, qscheme=torch.per_channel_affine,
            dtype=torch.quint8,
        ),
    ],
    ids=["plain", "fused", "by channels"],
)  # fmt: skip
def test_simulated_quantisation_with_the_observer_off(model: nn.Module) -> None:
    with pytest.raises(xnorpp.packing.PackError, match="disable_observer"):
        xnorpp.pack(model, (6, 8, 8))
    model.apply(ao.disable_observer)
    agrees(model, images(6, 8, 8))


def test_decimals_are_refused() -> None:
    is_refused(Lambda(lambda x: x.sigmoid().round(decimals=1)), (3, 5, 6), "decimals", "scale the numbers")


def test_numbers_of_any_size_are_rounded() -> None:
    agrees(Lambda(lambda x: (x * 40000).round()), images(3, 5, 6))
