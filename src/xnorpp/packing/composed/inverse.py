"""Angles of waves and of hyperbolas: quotients, square roots, logarithms and a polynomial.

The polynomial is the series of the arc tangent, of numbers up to tan(pi/8), where nine terms leave less than
1e-8 of it. All together is within four units of the last place of float32 of a result, or of pi beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_TERMS = 10  # of the arc tangent
_LOG_TERMS = 7  # of a logarithm near 1
_HALF = 0.5  # up to which 1 + x is not rounded
_LARGE = 1e9  # beyond, a hyperbola is its asymptote
_TINY = 1e-37


def _series(square: Tensor, terms: int, sign: float) -> Tensor:
    """`1 + sign*x/3 + x**2/5 + ...`."""
    made = square * (sign ** (terms - 1) / (2 * terms - 1))
    for term in range(terms - 2, 0, -1):
        made = (made + sign**term / (2 * term + 1)) * square
    return made + 1.0


def _steep(tangent: Tensor) -> Tensor:
    """The angle of a tangent between 0 and 1: twice that of half of it."""
    half = tangent / (1.0 + torch.sqrt(tangent * tangent + 1.0))
    return 2.0 * (half * _series(half * half, _TERMS, -1.0))


def _with_sign(size: Tensor, of: Tensor) -> Tensor:
    return size * torch.where(of < 0, -1.0, 1.0)


def _atan(input: Tensor) -> Tensor:
    size = input.abs()
    angle = _steep(size.clamp(max=1.0) / size.clamp(min=1.0))
    return _with_sign(torch.where(size > 1.0, math.pi / 2 - angle, angle), input)


def atan2(input: Any, other: Any) -> Tensor:
    """The angle of a point; -0 counts as 0."""
    rise, run = input.abs(), other.abs()
    more = F.relu(rise - run)
    angle = _steep((rise - more) / (run + more).clamp(min=_TINY))
    angle = torch.where(rise > run, math.pi / 2 - angle, angle)
    return _with_sign(torch.where(other < 0, math.pi - angle, angle), input)


def _other_leg(input: Tensor) -> Tensor:
    return torch.sqrt((1.0 - input) * (1.0 + input))


def _log1p(input: Tensor) -> Tensor:
    """Of numbers from 0 on, to the last places where they are small."""
    small = input.clamp(max=1.0)
    part = small / (small + 2.0)
    near = 2.0 * (part * _series(part * part, _LOG_TERMS, 1.0))
    return torch.where(input > _HALF, torch.log(input + 1.0), near)


def _asinh(input: Tensor) -> Tensor:
    size = input.abs()
    near = size.clamp(max=_LARGE)
    more = near * (near / (1.0 + torch.sqrt(near * near + 1.0)))
    return _with_sign(_log1p(near + more) + torch.log((size * (1 / _LARGE)).clamp(min=1.0)), input)


def _acosh(input: Tensor) -> Tensor:
    near = input.clamp(max=_LARGE)
    more = near - 1.0
    made = _log1p(more + torch.sqrt(more * (near + 1.0)))
    return made + torch.log((input * (1 / _LARGE)).clamp(min=1.0))


def _atanh(input: Tensor) -> Tensor:
    size = input.abs()
    return _with_sign(0.5 * _log1p(2.0 * size / (1.0 - size)), input)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("atan", "arctan"), _atan),
    **dict.fromkeys(("atan2", "arctan2"), atan2),
    "angle": lambda input: torch.where(input < 0, math.pi, 0.0),
    **dict.fromkeys(("asin", "arcsin"), lambda input: atan2(input, _other_leg(input))),
    **dict.fromkeys(("acos", "arccos"), lambda input: atan2(_other_leg(input), input)),
    **dict.fromkeys(("asinh", "arcsinh"), _asinh),
    **dict.fromkeys(("acosh", "arccosh"), _acosh),
    **dict.fromkeys(("atanh", "arctanh"), _atanh),
}
