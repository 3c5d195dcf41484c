"""Layers applied to every step of (steps, n, channels), as steps times images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d, BinaryLinear

torch.manual_seed(0)
STEPS, VECTOR, MATRIX = torch.randn(5, 8), torch.randn(1, 3), torch.randn(8, 5)


class EachStep(nn.Module):
    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1).contiguous()
        steps, n = y.shape[:2]
        made = self.function(y.view(steps * n, *y.shape[2:]), *self.layers)
        return made.view(steps, n, *made.shape[1:]).transpose(0, 1)


def each(function: Callable[..., Tensor], *layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: EachStep(function, *(layer() for layer in layers))


def linear(outputs: int = 8) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(8, outputs)


SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "linear": each(lambda z, layer: layer(z), linear(3)),
    "binary": each(
        lambda z, norm, layer: layer(norm(z)), lambda: nn.BatchNorm1d(8), lambda: BinaryLinear(8, 3)
    ),
    "softmax": each(lambda z, layer: F.softmax(layer(z), dim=1), linear(3)),
    "mean": each(lambda z, layer: layer(z).mean(1, keepdim=True), linear()),
    "reshaped": each(lambda z, layer: layer(z).view(-1, 2, 4).permute(0, 2, 1).sum(2), linear()),
    "joined": each(lambda z, layer: torch.cat([layer(z), z], 1), linear()),
    "joined to a constant": each(
        lambda z, layer: torch.cat([layer(z), VECTOR.expand(len(z), -1)], 1), linear()
    ),
    "a constant for each step": each(
        lambda z, layer: layer(z) + STEPS.repeat_interleave(len(z) // 5, 0), linear()
    ),
    "parts": each(lambda z, layer: layer(z)[:, 2:] * z[:, None, 1], linear()),
    "einsum": each(lambda z: torch.einsum("ab,bc->ac", z, MATRIX)),
    "products": each(lambda z: z[:, :, None] * z[:, None] @ MATRIX),
}
FRAMES: dict[str, Callable[[], nn.Module]] = {
    "convolutions": each(
        lambda z, first, norm, second: second(norm(first(z)).relu()).mean((2, 3)),
        lambda: nn.Conv2d(1, 4, 3),
        lambda: nn.BatchNorm2d(4),
        lambda: BinaryConv2d(4, 6, 3),
    ),
}


class Reader(nn.Module):
    """Recurrent layers with the steps first, a linear layer after each, as text recognition has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.between = nn.LSTM(8, 6, bidirectional=True), nn.Linear(12, 7)
        self.second, self.last = nn.GRU(7, 6, bidirectional=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.transpose(0, 1))[0]
        steps, n, width = y.size()
        y = self.second(self.between(y.view(steps * n, width)).view(steps, n, -1))[0]
        return self.last(y.reshape(-1, 12)).reshape(steps, n, -1).permute(1, 0, 2).log_softmax(2)


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_step_of_a_sequence(name: str) -> None:
    torch.manual_seed(0)
    agrees(SEQUENCES[name](), images(5, 8))


@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_of_a_video(name: str) -> None:
    torch.manual_seed(0)
    agrees(FRAMES[name](), images(5, 1, 9, 9))


def test_recurrent_layers_with_the_steps_first() -> None:
    torch.manual_seed(0)
    agrees(Reader(), images(5, 8))


def test_sequences_at_every_step() -> None:
    torch.manual_seed(0)
    build = each(lambda z, layer: layer(z)[0], lambda: nn.GRU(8, 2, batch_first=True))
    agrees(build(), images(5, 6, 8))
    build = each(lambda z, layer: layer(z, z, z)[0], lambda: nn.MultiheadAttention(8, 2, batch_first=True))
    agrees(build(), images(5, 6, 8))


def test_an_output_with_the_steps_first_is_refused() -> None:
    is_refused(nn.Sequential(nn.Linear(8, 8), Turned()), images(5, 8), "not the batch", "y.movedim(1, 0)")


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)
