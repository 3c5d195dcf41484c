"""Numbers that computed masks choose, changed and put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor


def changed(x: Tensor) -> Tensor:
    y = x.clone()
    y[y < 0] *= 0.1
    y[y > 1] = 1.0
    y[y > 0.5] += 2
    return y


def both_sides(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    mask = x > 0
    y[mask] = x[mask] * 2 + 1
    y[~mask] = torch.exp(-x[~mask].abs())
    return y


def of_two(x: Tensor) -> Tensor:
    y, mask = x * 3, (x > -0.5) & (x < 0.5)
    y[mask] = (x[mask] - y[mask]).clamp(min=-0.2) ** 2
    return F.relu(y)


def rows(x: Tensor) -> Tensor:
    y, mask = x * 1, x.mean(-1) > 0
    y[mask] = -x[mask]
    return y


def of_a_part(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 0] = y[:, 1]
    mask = y > 0.3
    y[mask] = torch.sqrt(y[mask])
    return y


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "changed": changed,
    "both sides": both_sides,
    "of two": of_two,
    "rows": rows,
    "of a part": of_a_part,
}


@pytest.mark.parametrize("name", FORMS)
def test_numbers_by_a_mask(name: str) -> None:
    agrees(FORMS[name], images(3, 4, 5))


def other_mask(x: Tensor) -> Tensor:
    y = x * 1
    y[x > 0] = (x[x < 0])[: int((x > 0).sum())]
    return y


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x * x[x > 0].sum(),
    "sorted": lambda x: x + x[x > 0].sort()[0].mean(),
    "returned": lambda x: x[x > 0],
    "other mask": other_mask,
    "linear": lambda x: x + F.linear(x[x.sum(-1) > 0], torch.eye(5)).mean(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_how_many_there_are_is_not_known(name: str) -> None:
    is_refused(Lambda(REFUSED[name]), (3, 4, 5), "", "")


CHOSEN: dict[str, Callable[[Tensor], Tensor]] = {
    "root": lambda x: torch.where(x > 0, torch.sqrt(x), x),
    "logarithm": lambda x: torch.where(x > 0.1, 2 * torch.log(x) + 1, torch.zeros_like(x)),
    "quotient": lambda x: torch.where(x != 0, 1 / x, torch.ones_like(x)),
    "of two": lambda x: torch.where(x > 0, (x * 2) / x.relu(), -x),
    "power": lambda x: torch.where(x < 0, x, x**1.7 * 3 - torch.tanh(x.log())),
    "filled": lambda x: (x.relu() / x.relu()).masked_fill(x <= 0, 3.0),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_not_chosen_may_be_no_number(name: str) -> None:
    agrees(CHOSEN[name], images(3, 4, 5))
