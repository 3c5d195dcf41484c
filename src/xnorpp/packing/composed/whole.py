"""Whole numbers below, above and towards zero, made of the nearest one; and what needs them: quotients with
a rest, and waves."""

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


def _number(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and not value.is_floating_point() else value


def _halves(divisor: Any) -> tuple[Any, Any]:
    """A divisor in two parts of 12 bits, whose products with whole numbers up to 4096 are exact."""
    if not isinstance(divisor, Tensor):
        whole = torch.tensor(float(divisor))
        high, low = _halves(whole)
        return float(high), float(low)
    large = divisor * 4097.0
    high = large - (large - divisor)
    return high, divisor - high


def _floored(input: Any, other: Any) -> tuple[Tensor, Tensor]:
    """The whole quotient below, and the rest, which has the sign of the divisor.

    The quotient was rounded, so that it may be one too large or too small: then the rest shows it.
    """
    input, other = _number(input), _number(other)
    exact = not isinstance(other, Tensor) and math.frexp(other)[0] in (0.5, -0.5)
    if exact:  # of a power of two
        quotient = torch.floor(input * (1.0 / other))
        return quotient, input - quotient * other
    high, low = _halves(other)
    quotient = torch.floor(input / other)
    rest = (input - quotient * high) - quotient * low
    sign = torch.where(other < 0, -1.0, 1.0) if isinstance(other, Tensor) else math.copysign(1.0, other)
    under = (rest * sign < 0).to(rest.dtype)
    over = (rest * sign >= other * sign).to(rest.dtype)
    return quotient - under + over, rest + other * under - other * over


def _remainder(input: Any, other: Any) -> Tensor:
    return _floored(input, other)[1]


def _fmod(input: Any, other: Any) -> Tensor:
    """The rest with the sign of what is divided."""
    rest = _floored(abs(input), abs(other))[1]
    negative = input < 0
    return (
        rest * torch.where(negative, -1.0, 1.0) if isinstance(negative, Tensor) else rest * (1 - 2 * negative)
    )


def divided(input: Any, other: Any, rounding_mode: str) -> Tensor:
    """The whole quotient below, which is exact, or the rounded quotient towards zero, as torch has them."""
    if rounding_mode == "floor":
        return _floored(input, other)[0]
    if rounding_mode != "trunc":
        raise ValueError(f"rounding_mode={rounding_mode!r}")
    input, other = _number(input), _number(other)
    divisor = (
        0.0 * input + other if isinstance(input, Tensor) else other
    )  # a constant, but not its reciprocal
    return torch.trunc(input / divisor)


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
    **dict.fromkeys(("remainder", "mod", "imod"), _remainder),
    "rmod": lambda input, other: _remainder(other, input),
    "fmod": _fmod,
    **dict.fromkeys(("floor_divide", "floordiv", "ifloordiv"), lambda a, b: divided(a, b, "floor")),
    "rfloordiv": lambda input, other: divided(other, input, "floor"),
    "frac": lambda input: input - torch.trunc(input),
    "sin": _sin,
    "cos": _cos,
    "tan": lambda input: torch.sin(input) / torch.cos(input),
    "sinh": lambda input: 0.5 * (torch.exp(input) - torch.exp(-input)),
    "cosh": lambda input: 0.5 * (torch.exp(input) + torch.exp(-input)),
}
