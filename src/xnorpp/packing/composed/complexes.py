"""Complex numbers as pairs of real ones: a value of a program has them along one more axis at its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.packing.calls import tensors_in
from xnorpp.packing.composed import composed, inverse, spectra
from xnorpp.packing.composed.spectra import Parts
from xnorpp.packing.graph import Node
from xnorpp.packing.obstacles import remedy_for
from xnorpp.packing.trace import Trace

# Functions that do the same to both parts, under the name of a method of tensors or a function of torch.
_SAME = frozenset(
    (
        *("getitem", "reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "movedim", "moveaxis", "swapaxes", "T", "mT", "expand", "expand_as", "repeat"),
        *("repeat_interleave", "cat", "concat", "stack", "chunk", "split", "unbind", "narrow", "select"),
        *("index_select", "flip", "roll", "pad", "sum", "mean", "neg", "negative", "cumsum", "tril", "triu"),
        *("diagonal", "gather", "fft_fftshift", "fft_ifftshift"),
    )
)
# Functions that give the same numbers; of a real one, a complex one.
_COPIES = ("view_as_real", "contiguous", "clone", "detach", "resolve_conj", "to", "cfloat")
_BILINEAR = {
    **dict.fromkeys(("mul", "multiply", "imul", "rmul"), torch.mul),
    **dict.fromkeys(("matmul", "mm", "bmm"), torch.matmul),
    "rmatmul": lambda a, b: torch.matmul(b, a),
    "einsum": torch.einsum,
}


class Pair:
    """The parts of a complex argument."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        self.parts: Parts = (numbers[..., 0], numbers[..., 1])


def complex_node(trace: Trace, plain: str, args: Any, kwargs: Any, result: Any) -> Node | list[Node]:
    """The node of a call with complex numbers, or one for each tensor that it returns."""
    function = _function(plain)
    if function is None:
        raise trace.fail("of complex numbers is not supported", remedy_for("lgamma"))

    def run(*given: Any, **named: Any) -> Any:
        return _joined(function(*_each(given, _apart), **_each(named, _apart)))

    real = _each(result, _real)
    args, kwargs = (
        _each(args, lambda t: _real_value(trace, t)),
        _each(kwargs, lambda t: _real_value(trace, t)),
    )
    made = composed(trace, run, args, kwargs, real)
    for tensor, flat in zip(tensors_in(result), tensors_in(real)):
        trace.alive.append(flat)
        trace.follow(tensor, flat)
    return made


def any_complex(*values: Any) -> bool:
    return any(t.is_complex() for t in tensors_in(values))


class _Flat:
    """A complex argument as real numbers, with both parts along its last axis."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return (
            type(value)(_each(item, change) for item in value)
            if type(value) in (list, tuple)
            else [_each(item, change) for item in value]
        )
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return change(value)


def _real(value: Any) -> Any:
    is_complex = isinstance(value, Tensor) and value.is_complex()
    return torch.view_as_real(value.detach().resolve_conj()) if is_complex else value


def _real_value(trace: Trace, value: Any) -> Any:
    if isinstance(value, complex):
        value = torch.tensor(value)
        trace.add_constant(value)
    if not isinstance(value, Tensor) or not value.is_complex():
        return value
    flat = _real(value)
    if trace.is_value(value):
        trace.follow(flat, value)
        trace.bind(flat, trace.node(value, anywhere=True))
    else:
        trace.check_constant(value)
        trace.add_constant(flat)
    return _Flat(flat)


def _apart(value: Any) -> Any:
    return Pair(value.tensor) if isinstance(value, _Flat) else value


def _joined(made: Any) -> Any:
    """Parts as one tensor; real numbers as they are."""
    if isinstance(made, list):
        return [_joined(item) for item in made]
    if isinstance(made, Tensor):
        return made
    return made[0] if made[1] is None else torch.stack([made[0], made[1]], -1)


def _parts(value: Any) -> Parts:
    if isinstance(value, Pair):
        return value.parts
    return (value, None)


def _function(plain: str) -> Callable[..., Any] | None:
    if plain in spectra.FUNCTIONS:
        transform = spectra.FUNCTIONS[plain]
        return lambda input, *args, **kwargs: transform(_parts(input), *args, **kwargs)
    if plain in _SAME:
        return _of_both(plain)
    if plain in _BILINEAR:
        return _product(_BILINEAR[plain])
    return _OTHERS.get(plain)


def _of_both(plain: str) -> Callable[..., Any]:
    name = {"getitem": "__getitem__", "view": "reshape"}.get(plain, plain.removeprefix("fft_"))
    owner = next(own for own in (torch.Tensor, torch, F, torch.fft) if hasattr(own, name))
    function = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        sides = []
        for side in (0, 1):
            given, named = _each([list(args), kwargs], partial(_side, side))
            sides.append(function.__get__(given[0]) if name in ("T", "mT") else function(*given, **named))
        if isinstance(sides[0], Tensor):
            return sides[0], sides[1]
        return [(a, b) for a, b in zip(*sides)]

    return both


def _side(side: int, value: Any) -> Any:
    if isinstance(value, Pair):
        return value.parts[side]
    return value


def _product(function: Callable[..., Tensor]) -> Callable[..., Parts]:
    def product(*args: Any) -> Parts:
        *before, first, second = args if not isinstance(args[-1], list | tuple) else (*args[:-1], *args[-1])
        (a, b), (c, d) = _parts(first), _parts(second)
        if b is None or d is None:
            return function(*before, a, c), function(*before, a, d) if b is None else function(*before, b, c)
        real = function(*before, a, c) - function(*before, b, d)
        return real, function(*before, a, d) + function(*before, b, c)

    return product


def _sum(sign: float) -> Callable[..., Parts]:
    def sum(input: Any, other: Any, *, alpha: float = 1) -> Parts:
        (a, b), (c, d) = _parts(input), _parts(other)
        factor = sign * alpha
        real = a + factor * c
        like = torch.zeros_like(real)
        return real, like + (0.0 if b is None else b) + (0.0 if d is None else factor * d)

    return sum


def _quotient(input: Any, other: Any) -> Parts:
    (a, b), (c, d) = _parts(input), _parts(other)
    if d is None:
        return a / c, b / c
    size = c * c + d * d
    b = 0.0 if b is None else b
    return (a * c + b * d) / size, (b * c - a * d) / size


def _magnitude(input: Pair) -> Tensor:
    a, b = input.parts
    return torch.sqrt(a * a + b * b)


def _power(input: Pair, exponent: Any) -> Parts:
    if exponent != 2:
        raise ValueError(f"the power {exponent} of complex numbers; 2 is supported")
    a, b = input.parts
    return a * a - b * b, 2 * a * b


def _exponential(input: Pair) -> Parts:
    size = torch.exp(input.parts[0])
    return size * torch.cos(input.parts[1]), size * torch.sin(input.parts[1])


def _logarithm(input: Pair) -> Parts:
    return torch.log(_magnitude(input)), inverse.atan2(input.parts[1], input.parts[0])


def _put(input: Any, index: Any, value: Any) -> Parts:
    (a, b), (c, d) = _parts(input), _parts(value)
    a, b = a.clone(), b.clone()
    a[index] = c
    b[index] = 0.0 if d is None else d
    return a, b


def _numbers(input: Any) -> Any:
    return input.numbers if isinstance(input, Pair) else (input, torch.zeros_like(input))


def _conjugate(input: Pair) -> Parts:
    return input.parts[0] * 1.0, -input.parts[1]


_OTHERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "iadd", "radd"), _sum(1.0)),
    **dict.fromkeys(("sub", "subtract", "isub"), _sum(-1.0)),
    "rsub": lambda input, other: _sum(-1.0)(other, input),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), _quotient),
    **dict.fromkeys(("rtruediv", "rdiv"), lambda input, other: _quotient(other, input)),
    **dict.fromkeys(("abs", "absolute"), _magnitude),
    **dict.fromkeys(("conj", "conj_physical"), _conjugate),
    **dict.fromkeys(("pow", "ipow"), _power),
    "square": lambda input: _power(input, 2),
    "exp": _exponential,
    "log": _logarithm,
    "angle": lambda input: inverse.atan2(input.parts[1], input.parts[0]),
    "real": lambda input: input.parts[0],
    "imag": lambda input: input.parts[1],
    **dict.fromkeys(_COPIES, lambda input, *args, **kwargs: _numbers(input)),
    "view_as_complex": lambda input: input,
    "complex": lambda real, imag: (real, imag),
    "polar": lambda abs, angle: (abs * torch.cos(angle), abs * torch.sin(angle)),
    "setitem": _put,
}
