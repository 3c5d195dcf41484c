"""Functions of single numbers and truth values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """`x if x > threshold else value`."""
    return torch.where(input > threshold, input, value)


def power(base: Any, exponent: Any) -> Tensor:
    """A power of a number that is not negative: one exponent for each channel, or computed ones."""
    natural = torch.log(base) if isinstance(base, Tensor) else math.log(base)
    return torch.exp(natural * exponent)


def any_power(base: Tensor, exponent: Any, fractions: bool = False) -> Any:
    """A power of any number: 0 to the power of 0 is 1, and a negative number has whole powers alone.
    `fractions`: whether constant exponents have others, which are no number then."""
    zero = (base == 0).float()
    made = torch.exp(torch.log(base.abs() + zero) * exponent)
    near = torch.round(exponent)
    odd = near - 2 * torch.round(near * 0.5 - 0.25)
    negative = (base < 0).float()
    made = made * (1.0 - zero * (exponent > 0)) / (1.0 - zero * (exponent < 0)) * (1.0 - 2.0 * odd * negative)
    return made + torch.sqrt(-negative * (exponent != near)) if fractions else made


def softplus(input: Tensor, beta: float, threshold: float) -> Tensor:
    """Softplus up to a threshold below which the curve is not yet x itself."""
    return torch.where(input * beta > threshold, input, F.softplus(input, beta))


def _rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    return F.leaky_relu(input, (lower + upper) / 2)


def _softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return input - input.clamp(-lambd, lambd)


def _hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return input * (input.abs() > lambd)


def logaddexp(input: Tensor, other: Any) -> Tensor:
    return torch.maximum(input, other) + torch.log1p(torch.exp(-(input - other).abs()))


def _logit(input: Tensor, eps: float | None = None) -> Tensor:
    part = input if eps is None else input.clamp(eps, 1 - eps)
    return torch.log(part / (1 - part))


def _lerp(input: Any, end: Any, weight: Any) -> Any:
    return input + weight * (end - input)


def _addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    return input + value * (tensor1 / tensor2)


def _heaviside(input: Tensor, values: Tensor) -> Tensor:
    return torch.where(input == 0, values, (input > 0).float())


def _is_mask(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool)


def _number(truth: Any) -> Any:
    return truth.float() if isinstance(truth, Tensor) else float(truth)


def _equal(input: Any, other: Any) -> Any:
    """Of numbers or of truth values, which are the numbers 0 and 1."""
    a, b = (_number(t) if _is_mask(t) else t for t in (input, other))
    return (a >= b) & (a <= b)


def _either(input: Any, other: Any) -> Tensor:
    if not (_is_mask(input) and _is_mask(other)):
        raise ValueError("numbers; compare them with 0 first")
    return torch.ne(input, other) if isinstance(input, Tensor) else torch.ne(other, input)


def _sinc(input: Tensor) -> Tensor:
    angle = input * math.pi
    zero = (input == 0).to(input.dtype)
    return torch.sin(angle) / (angle + zero) + zero


def _xlogy(input: Any, other: Any) -> Any:
    """0 where the factor is 0, and whatever the logarithm is there."""
    if not isinstance(other, Tensor):
        return input * math.log(other)
    none = (input == 0) if isinstance(input, Tensor) else torch.tensor(input == 0)
    return input * torch.log(torch.where(none, 1.0, other))


def _copysign(input: Tensor, other: Any) -> Tensor:
    size = input.abs()
    return size * (
        torch.where(other < 0, -1.0, 1.0) if isinstance(other, Tensor) else math.copysign(1.0, other)
    )


def _isnan(input: Tensor) -> Tensor:
    """Only what is no number is not above -1 without its sign."""
    return ~(input.abs() + 1.0 > 0)


def _isinf(input: Tensor) -> Tensor:
    return input.abs() > _LARGEST


def without_infinite(input: Tensor, largest: Any, smallest: Any) -> Tensor:
    made = input.clamp(-_LARGEST, _LARGEST)
    if smallest is not None:
        made = torch.where(input < -_LARGEST, smallest, made)
    return made if largest is None else torch.where(input > _LARGEST, largest, made)


def _isclose(
    input: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    return (input - other).abs() <= atol + rtol * abs(other)


def both(input: Tensor, other: Tensor) -> Tensor:
    return (input != 0) & (other != 0)


def either(input: Tensor, other: Tensor) -> Tensor:
    return (input != 0) | (other != 0)


def _is_in(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    others = test_elements if isinstance(test_elements, Tensor) else torch.tensor([test_elements])
    found = (elements.unsqueeze(-1) == others.reshape(-1)).any(-1)
    return ~found if invert else found


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isin": _is_in,
    "sinc": _sinc,
    "xlogy": _xlogy,
    "entr": lambda input: -_xlogy(input, input),
    "erfc": lambda input: 1.0 - torch.erf(input),
    "ndtr": lambda input: 0.5 * (1.0 + torch.erf(input * math.sqrt(0.5))),
    "logaddexp2": lambda a, b: logaddexp(a * math.log(2.0), b * math.log(2.0)) * (1.0 / math.log(2.0)),
    "deg2rad": lambda input: input * (math.pi / 180.0),
    "rad2deg": lambda input: input * (180.0 / math.pi),
    "ldexp": lambda input, other: input * torch.exp2(other),
    "copysign": _copysign,
    "signbit": lambda input: input < 0,
    "fmax": torch.maximum,
    "fmin": torch.minimum,
    "isnan": _isnan,
    "isinf": _isinf,
    "isposinf": lambda input: input > _LARGEST,
    "isneginf": lambda input: input < -_LARGEST,
    "isfinite": lambda input: (input.abs() <= _LARGEST) & (input.abs() + 1.0 > 0),
    "isclose": _isclose,
    "rrelu": _rrelu,
    "softshrink": _softshrink,
    "hardshrink": _hardshrink,
    "tanhshrink": lambda input: input - torch.tanh(input),
    "expit": torch.sigmoid,
    "logit": _logit,
    "logaddexp": logaddexp,
    "exp2": lambda input: torch.exp(input * math.log(2.0)),
    "rpow": lambda exponent, base: torch.pow(base, exponent),
    "float_power": lambda input, exponent: torch.pow(input, exponent),
    "hypot": lambda input, other: torch.sqrt(input * input + other * other),
    "lerp": _lerp,
    "addcdiv": _addcdiv,
    "heaviside": _heaviside,
    "eq": _equal,
    **dict.fromkeys(("ne", "not_equal"), lambda input, other: ~_equal(input, other)),
    **dict.fromkeys(("xor", "ixor", "rxor", "bitwise_xor"), _either),
    "logical_xor": lambda input, other: torch.ne(input != 0, other != 0),
}
