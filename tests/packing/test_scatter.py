"""Numbers put or summed at constant places of an axis, and what has been summed up to each number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor

SHAPE = (4, 8)
NODES, ONCE = torch.tensor([0, 2, 2, 0]), torch.tensor([3, 0, 4, 1])


def rows(x: Tensor, index: Tensor = NODES) -> Tensor:
    """One index for each image and channel."""
    return index[None, :, None].expand(len(x), -1, x.shape[2])


def zeros(x: Tensor, size: int = 3) -> Tensor:
    return torch.zeros(len(x), size, x.shape[2])


def reduced(x: Tensor, own: bool) -> Tensor:
    kinds = ("sum", "mean", "amax", "amin")
    return torch.cat([zeros(x).scatter_reduce(1, rows(x), x, kind, include_self=own) for kind in kinds], 1)


PLACED: dict[str, Callable[[Tensor], Tensor]] = {
    "index_add": lambda x: torch.zeros_like(x).index_add(1, NODES, x),
    "index_add in place": lambda x: x.new_zeros(len(x), 3, 8).index_add_(1, NODES, x * 2, alpha=0.5),
    "index_add to a value": lambda x: torch.index_add(x, -1, torch.tensor([7, 0]), x[..., :2]),
    "index_copy": lambda x: zeros(x, 5).index_copy(1, ONCE, x),
    "index_fill": lambda x: x.index_fill(1, NODES[:2], -2.0),
    "scatter_add": lambda x: zeros(x).scatter_add(1, rows(x), x),
    "scatter_add in place": lambda x: (x * 2).scatter_add_(1, rows(x), x),
    "scatter_add of less": lambda x: zeros(x).scatter_add(1, rows(x)[:, :2], x),
    "scatter": lambda x: zeros(x, 5).scatter(1, rows(x, ONCE), x),
    "scatter of a number": lambda x: x.scatter(1, rows(x, ONCE[3:]), 0.5),
    "scatter_reduce": lambda x: reduced(x, True),
    "scatter_reduce without itself": lambda x: reduced(x, False),
    "index_reduce": lambda x: zeros(x).index_reduce(1, NODES, x, "amax", include_self=False),
    "sums of neighbours": lambda x: torch.zeros_like(x).index_add_(1, NODES, x[:, ONCE % 4]) + x,
}
RUNNING: dict[str, Callable[[Tensor], Tensor]] = {
    "logcumsumexp": lambda x: torch.logcumsumexp(x * 20, 1),
    "logcumsumexp of channels": lambda x: x.logcumsumexp(-1),
    "cummax": lambda x: torch.cummax(x, 1)[0],
    "cummin": lambda x: x.cummin(-1).values,
    "logaddexp": lambda x: torch.logaddexp(x * 30, x.flip(1)),
}
REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "places put twice": lambda x: zeros(x, 5).index_copy(1, NODES, x),
    "other places for each channel": lambda x: zeros(x, 8).scatter_add(
        1, torch.arange(8).expand(len(x), 4, 8), x
    ),
    "an index of fewer channels": lambda x: zeros(x).scatter_add(1, rows(x)[..., :2], x),
    "a product": lambda x: zeros(x).scatter_reduce(1, rows(x), x, "prod"),
}


@pytest.mark.parametrize("name", [*PLACED, *RUNNING])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_placed_and_running_numbers(name: str) -> None:
    agrees({**PLACED, **RUNNING}[name], images(*SHAPE))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_remedy(name: str) -> None:
    is_refused(Lambda(REFUSED[name]), images(*SHAPE), "is not supported", "the same for every image")
