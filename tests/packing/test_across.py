"""Rows of each image by computed places: with the images beside them, and counted through the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor


def nearest(x: Tensor, k: int = 3) -> Tensor:
    """The places of the k points, (n, points, c), that are nearest to each."""
    distance = (x.unsqueeze(2) - x.unsqueeze(1)).pow(2).sum(-1)
    return distance.topk(k, largest=False)[1]


def beside(x: Tensor) -> Tensor:
    places = nearest(x)
    rows = torch.arange(len(x)).view(-1, 1, 1).expand_as(places)
    return x[rows, places, :] - x.unsqueeze(2)


def through_the_batch(
    x: Tensor, flat: Callable[[Tensor, Tensor], Tensor] = lambda rows, i: rows[i, :]
) -> Tensor:
    n, points, c = x.shape
    places = nearest(x)
    places = (places + torch.arange(0, n).view(-1, 1, 1) * points).view(-1)
    return flat(x.reshape(n * points, c), places).view(n, points, 3, c) * 2


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "beside": beside,
    "unsqueezed": lambda x: x[torch.arange(len(x))[:, None, None], nearest(x)],
    "one of each": lambda x: x[torch.arange(len(x)), x.sum(2).argmax(1), ...],
    "of numbers": lambda x: x[..., 0][torch.arange(len(x)).unsqueeze(1), nearest(x)[:, 0]],
    "through the batch": through_the_batch,
    "selected": lambda x: through_the_batch(x, lambda rows, i: rows.index_select(0, i)),
    "plain": lambda x: through_the_batch(x, lambda rows, i: rows[i]),
    "one through the batch": lambda x: x.flatten(0, 1)[
        x.sum(2).argmax(1) + torch.arange(len(x)) * x.shape[1]
    ],
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_by_computed_places(name: str) -> None:
    agrees(FORMS[name], images(7, 3) * 1.3)


def counted(x: Tensor) -> Tensor:
    return x.argmax(1) + torch.arange(len(x)) * x.shape[1]


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "returned": lambda x: (x * 2, counted(x)),
    "as numbers": lambda x: counted(x) * 2.0,
    "of others": lambda x: torch.cat([x, x], 1).reshape(-1)[counted(x)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_places_through_the_batch_are_no_numbers(name: str) -> None:
    is_refused(Lambda(REFUSED[name]), (5,), "count through the batch", "torch.gather")


def test_filters_of_each_image_over_one_constant_image() -> None:
    constant, filters = torch.randn(1, 4, 5, 6), torch.randn(2, 4, 3, 3)

    def modulated(x: Tensor) -> Tensor:
        n = len(x)
        own = (filters * x.view(n, 1, 4, 1, 1)).view(n * 2, 4, 3, 3)
        wide = constant.repeat(n, 1, 1, 1).reshape(1, n * 4, 5, 6)
        return torch.conv2d(wide, own, padding=1, groups=n).view(n, 2, 5, 6)

    agrees(modulated, images(4))


def test_questions_about_a_type_are_no_reading() -> None:
    agrees(lambda x: (x > 0).type(x.type()) + x * float(x.is_signed()), images(4))
