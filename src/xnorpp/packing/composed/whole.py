"""Whole numbers below, above and towards zero, made of the nearest one; and waves, which need them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# pi in three parts: the first two have so few bits that their products with whole numbers are exact.
_FIRST, _SECOND = 3.140625, 0.000967025756835938
_THIRD = math.pi - _FIRST - _SECOND
_POWERS = (1 / math.factorial(13), -1 / math.factorial(11), 1 / math.factorial(9), -1 / math.factorial(7))
_LAST = (1 / math.factorial(5), -1 / math.factorial(3))


def _floor(input: Tensor) -> Tensor:
    near = torch.round(input)
    return near - (near > input).to(near.dtype)


def _ceil(input: Tensor) -> Tensor:
    near = torch.round(input)
    return near + (near < input).to(near.dtype)


def truncated(input: Tensor) -> Tensor:
    near = torch.round(input)
    sign = torch.where(input < 0, -1.0, 1.0)
    return near - (near * sign > input * sign).to(near.dtype) * sign


def _wave(halves: Tensor, input: Tensor) -> Tensor:
    """The sine of a number less a multiple of pi, which is that of a whole number or a half."""
    rest = ((input - halves * _FIRST) - halves * _SECOND) - halves * _THIRD
    square = rest * rest
    made = square * _POWERS[0]
    for power in (*_POWERS[1:], *_LAST):
        made = (made + power) * square
    return rest + rest * made


def _odd(whole: Tensor) -> Tensor:
    """1 of odd whole numbers, 0 of even ones."""
    return whole - 2 * torch.round(whole * 0.5 - 0.25)


def _sin(input: Tensor) -> Tensor:
    times = torch.round(input * (1 / math.pi))
    return _wave(times, input) * (1 - 2 * _odd(times))


def _cos(input: Tensor) -> Tensor:
    times = torch.round(input * (1 / math.pi) - 0.5)
    return _wave(times + 0.5, input) * (2 * _odd(times) - 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": _floor,
    "ceil": _ceil,
    **dict.fromkeys(("trunc", "fix"), truncated),
    "frac": lambda input: input - torch.trunc(input),
    "sin": _sin,
    "cos": _cos,
    "tan": lambda input: torch.sin(input) / torch.cos(input),
    "sinh": lambda input: 0.5 * (torch.exp(input) - torch.exp(-input)),
    "cosh": lambda input: 0.5 * (torch.exp(input) + torch.exp(-input)),
}
