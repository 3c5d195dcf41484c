"""Checks for NaN and infinity are left out, and every other decision by the values of images is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor

GUARDS: dict[str, Callable[[Tensor], Any]] = {
    "isnan": lambda x: torch.isnan(x).any(),
    "not isfinite": lambda x: not x.isfinite().all(),
    "either": lambda x: (torch.isnan(x) | torch.isinf(x)).any(),
    "one and the other": lambda x: x.isnan().any() | ~torch.isfinite(x).all(),
    "item": lambda x: torch.any(torch.isinf(x * 2)).item(),
    "logical": lambda x: torch.logical_not(x.isfinite()).any(),
}


def guarded(test: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        y = x * 2 + 1
        if test(y):
            raise ValueError("not finite")
        return y.relu()

    return forward


@pytest.mark.parametrize("name", GUARDS)
def test_a_check_for_nan_is_left_out(name: str) -> None:
    packed = agrees(guarded(GUARDS[name]), images(3, 4, 5))
    assert {op.op for op in packed.program.ops} <= {"affine", "relu", "clamp", "hardtanh"}


def test_masks_of_such_tests_are_values_still() -> None:
    agrees(lambda x: torch.where(torch.isnan(x) | (x > 0), 0.5, x), images(3, 4, 5))


@pytest.mark.parametrize(
    "test",
    [
        lambda x: (x > 100).any(),
        lambda x: x.isnan().any() | (x > 100).any(),
        lambda x: (torch.isnan(x) | (x > 100)).any(),
        lambda x: torch.isnan(x).any(1).any(),
        lambda x: x.max() > 100,
    ],
)
def test_other_decisions_are_refused(test: Callable[[Tensor], Any]) -> None:
    is_refused(Lambda(guarded(test)), images(3, 4, 5), "", "")


def test_the_answer_of_a_check_is_no_value() -> None:
    is_refused(Lambda(lambda x: x * torch.isnan(x).any()), images(3, 4, 5), "not packed", "")
