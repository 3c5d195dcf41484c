"""Whole numbers next to real ones, and waves, of which whole numbers of periods are taken off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images
from torch import Tensor, nn

import xnorpp

HALVES = torch.arange(-27, 27).reshape(1, 6, 9) / 2  # where torch rounds half to even
NEAR = torch.nextafter(HALVES, HALVES.new_tensor(100.0))
LARGE = (torch.arange(54.0).reshape(1, 6, 9) - 20) * 123_456.75
NUMBERS = torch.cat([images(6, 9, n=20) * 4, HALVES, NEAR, LARGE])

WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "round": torch.round,
    "round in place": lambda x: (x * 1).round_(),
    "floor": torch.floor,
    "ceil": lambda x: x.ceil(),
    "trunc": torch.trunc,
    "fix": torch.fix,
    "frac": lambda x: torch.frac(x),
    "long": lambda x: x.long().float(),
    "int": lambda x: x.int() * 2.0,
    "rounded and passed through": lambda x: (torch.round(x) - x).detach() + x,
}
WAVES: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "cos": lambda x: x.cos(),
    "sin of many periods": lambda x: torch.sin(100 * x),
    "cos of many periods": lambda x: torch.cos(100 * x),
    "tan": lambda x: torch.tan(x * 0.08),
    "sinh": lambda x: torch.sinh(x * 0.3),
    "cosh": lambda x: torch.cosh(x * 0.3),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_torchs(name: str) -> None:
    packed = agrees(WHOLE[name], NUMBERS)
    if name != "frac" and "passed" not in name:
        np.testing.assert_array_equal(packed(NUMBERS.numpy()), WHOLE[name](NUMBERS).numpy())


@pytest.mark.parametrize("name", WAVES)
def test_waves(name: str) -> None:
    x = NUMBERS[:-1]
    packed = agrees(WAVES[name], x)
    np.testing.assert_allclose(packed(x.numpy()), WAVES[name](x).numpy(), rtol=2e-5, atol=3e-7)


class Quantized(nn.Module):
    """Weights and activations of four bits, with learned steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 16), nn.Linear(16, 4)
        self.step = nn.Parameter(torch.tensor(0.1))

    def rounded(self, x: Tensor) -> Tensor:
        y = torch.clamp(x / self.step, -8, 7)
        return ((torch.round(y) - y).detach() + y) * self.step

    def forward(self, x: Tensor) -> Tensor:
        x = self.rounded(F.relu(F.linear(x, self.rounded(self.first.weight), self.first.bias)))
        return F.linear(x, self.rounded(self.second.weight), self.second.bias)


def test_quantized_activations() -> None:
    torch.manual_seed(0)
    agrees(Quantized(), images(10))


class Siren(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x))
        return self.layers[-1](x)


def test_a_network_of_sines() -> None:
    torch.manual_seed(0)
    model, x = Siren(), images(2, n=50)
    xnorpp.binarize(model, example=x)
    agrees(model, x, rtol=1e-3)
