"""Numbers in order, the largest ones, and what is chosen by places that are computed from the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

SHAPE = (5, 7)
ORDER: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: torch.cat([x.sort(-1)[0], torch.sort(x, 1, True)[0]], 1),
    "places of a sort": lambda x: x.sort(dim=1, stable=True)[1].float(),
    "argsort": lambda x: x.argsort(dim=1, descending=True, stable=True).float(),
    "topk": lambda x: x.topk(3, 1)[0],
    "topk, the smallest": lambda x: x.topk(2, largest=False)[0],
    "argmax": lambda x: x.argmax(1).float(),
    "argmin": lambda x: x.argmin(-1, keepdim=True) + x,
    "argmax of equal numbers": lambda x: (x.relu() + 0.1).argmax(1).float(),
    "argmax of windows": lambda x: x.flatten(0, 1).argmax(1).view(len(x), -1).float(),
    "gather": lambda x: x.gather(1, x.argsort(dim=1, stable=True)),
    "gather less": lambda x: x.gather(2, x.argmax(2, keepdim=True)),
    "a row for each image": lambda x: x[torch.arange(len(x)), x[:, :, 0].argmax(1)] * 2,
    "scatter": lambda x: x.scatter(1, x.argmax(1, keepdim=True), -2.0),
    "scatter of values": lambda x: torch.zeros_like(x).scatter(2, x.argsort(dim=2, stable=True), x.exp()),
    "scatter_add": lambda x: x.scatter_add(1, x.argmax(1, keepdim=True), x[:, :1]),
    "a normalisation to a few parts": lambda x: sparsemax(x),
}


def sparsemax(x: Tensor) -> Tensor:
    ordered = x.sort(descending=True, dim=-1)[0]
    count, sums = torch.arange(1, x.shape[-1] + 1), ordered.cumsum(-1)
    chosen = (1 + count * ordered > sums).sum(-1, keepdim=True)
    return (x - (sums.gather(-1, chosen - 1) - 1) / chosen).clamp(min=0)


class Experts(nn.Module):
    """The two best of four experts, by their scores."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.scores, self.experts = nn.Linear(10, 4), nn.ModuleList(nn.Linear(10, 6) for _ in range(4))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        best, places = scores.topk(2, -1)
        made = torch.stack([expert(x) for expert in self.experts], 1)
        if self.way == "scatter":
            shares = torch.full_like(scores, -torch.inf).scatter(-1, places, best).softmax(-1)
            return torch.einsum("ne,nec->nc", shares, made)
        chosen = made.gather(1, places.unsqueeze(-1).expand(-1, -1, 6))
        return (chosen * best.softmax(-1).unsqueeze(-1)).sum(1)


@pytest.mark.parametrize("name", ORDER)
def test_order(name: str) -> None:
    agrees(ORDER[name], images(*SHAPE))


@pytest.mark.parametrize("way", ["scatter", "gather"])
def test_the_best_experts(way: str) -> None:
    torch.manual_seed(0)
    agrees(Experts(way), images(10, n=20))


def test_what_compares_images_or_too_many_numbers_is_refused() -> None:
    is_refused(Lambda(lambda x: x.argmax()), images(*SHAPE), "argmax is not supported", "name one axis")
    is_refused(Lambda(lambda x: x.argmax(0)), images(*SHAPE), "argmax", "leave each image to itself")
    is_refused(Lambda(lambda x: x.sort(1)[0]), images(600), "600 numbers", "at most 512 numbers")


@pytest.mark.parametrize("function", [torch.max, torch.min])
@pytest.mark.parametrize("keepdim", [False, True])
def test_places_of_extremes(function: Any, keepdim: bool) -> None:
    """The first of equal ones, as torch has it; a value and its place, or the place alone."""
    x = torch.randint(-3, 4, (6, 5, 4, 7), generator=torch.Generator().manual_seed(0)).float()
    for axis in (1, 2, -1):
        agrees(lambda x: (lambda value, place: value * 10 + place)(*function(x, axis, keepdim)), x)  # noqa: B023
        agrees(lambda x: function(x, dim=axis, keepdim=keepdim).indices.float(), x)  # noqa: B023


def test_a_heatmap_becomes_coordinates() -> None:
    def found(x: Tensor) -> Tensor:
        best, place = x.flatten(2).max(2)
        return torch.stack([place % x.shape[3], place // x.shape[3], best], 2)

    agrees(found, torch.randn(6, 5, 4, 7, generator=torch.Generator().manual_seed(1)))


class Positions(nn.Module):
    """A table that is the same for every image, read at computed places, as in text models."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(5)[None] * 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.gather(self.table.expand(len(x), -1), 1, x.argmax(1)).float() + x.sum(1)


def test_a_table_of_all_images_is_read_at_computed_places() -> None:
    agrees(Positions(), images(*SHAPE))
    other = Lambda(
        lambda x: torch.gather(torch.arange(4 * len(x)).view(len(x), 4), 1, x.argmax(1)[:, :2]).float()
    )
    is_refused(other, torch.zeros(2, *SHAPE), "gather", "")
