"""Which signs the result of a torch function can have: interval arithmetic for the analysis of `binarize`.

A `Range` bounds the values of a tensor from what is known of the function, whatever the weights are. `zeros`
distinguishes ReLU's output, which is often exactly 0 and so keeps both bits (sign(0) = -1), from that of a
sigmoid or of an average, which is 0 hardly anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

INF = math.inf
_SHIFT = 3.0  # standard deviations, after a batch norm: hardly a value is smaller than minus this


@dataclass(frozen=True)
class Range:
    """Bounds of a tensor's values.

    Attributes:
        low: No value is smaller.
        high: No value is larger.
        zeros: Whether many values may be exactly 0 where `low` is 0.
        shifted: Whether a constant was added so that a ReLU afterwards is seldom 0, as in relu6(x + 3).
        origin: The operation that left only one sign.
    """

    low: float = -INF
    high: float = INF
    zeros: bool = False
    shifted: bool = False
    origin: str = ""

    @property
    def bit(self) -> int:
        """+1 or -1 where nearly every value has this sign, else 0."""
        if self.high <= 0:
            return -1
        return 1 if self.low > 0 or (self.low == 0 and not self.zeros) else 0


ANY = Range()
Reader = Callable[[Any], Range]  # the range of an argument


def result_range(name: str, args: Any, kwargs: Any, of: Reader, shrinks: bool) -> Range:
    """The range of a torch function's result.

    Args:
        name: The function's plain name, as `plain_name` gives it.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        of: Gives the range of an argument, a number or tensor.
        shrinks: Whether the result has fewer elements than the first argument.

    Returns:
        The range; `ANY` for a function that is not known.
    """
    rule = _RULES.get(name)
    if rule is None:
        return ANY
    if name in _AVERAGES and not shrinks:
        rule = _same
    try:
        return rule(of, *args, **kwargs)
    except TypeError:  # a form of the call that the rule does not know
        return ANY


def _same(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    return of(x)


def _fixed(low: float, high: float) -> Callable[..., Range]:
    return lambda of, *args, **kwargs: Range(low, high)


def _monotone(low: float, high: float) -> Callable[..., Range]:
    """A function that preserves the sign of its argument, with these limits."""

    def rule(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
        r = of(x)
        if r.low >= 0:
            return replace(r, low=0.0, high=high)
        return replace(r, low=low, high=0.0) if r.high <= 0 else Range(low, high)

    return rule


def _sloped(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    return r if r.low >= 0 else ANY  # the slope of negative values may be negative


def _clamp(of: Reader, x: Any, min: Any = None, max: Any = None, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    low = of(min).low if min is not None else -INF
    high = of(max).high if max is not None else INF
    return _limited(r, low, high)


def _limited(r: Range, low: float, high: float) -> Range:
    cut = r.low < 0 <= low
    zeros = (cut and low == 0 and not r.shifted) or (r.zeros and low <= 0)
    lowest, highest = min(max(r.low, low), high), max(min(r.high, high), low)
    return Range(lowest, highest, zeros, origin="" if cut else r.origin)


def _relu(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    return _limited(of(x), 0.0, INF)


def _relu6(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    return _limited(of(x), 0.0, 6.0)


def _hardtanh(
    of: Reader, x: Any, min_val: float = -1.0, max_val: float = 1.0, *args: Any, **kwargs: Any
) -> Range:
    return _limited(of(x), min_val, max_val)


def _average(of: Reader, x: Any, kernel: Any = None, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    kernel = kwargs.get("kernel_size", kernel)
    if kernel in (1, (1, 1), [1, 1]):  # subsampling
        return r
    return Range(r.low, r.high)


def _mean(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    return Range(r.low, r.high)


def _sum(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    return Range(0.0 if r.low >= 0 else -INF, 0.0 if r.high <= 0 else INF)


def _absolute(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    return Range(0.0, INF, zeros=r.zeros)


def _power(of: Reader, x: Any, exponent: Any = 2, *args: Any, **kwargs: Any) -> Range:
    if isinstance(exponent, int | float) and exponent > 0:
        r = of(x)
        if exponent % 2 == 0 or r.low >= 0:
            return Range(0.0, INF, zeros=r.zeros)
    return ANY


def _root(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    return Range(0.0, INF, zeros=of(x).zeros)


def _add(of: Reader, a: Any, b: Any, *args: Any, alpha: float = 1, **kwargs: Any) -> Range:
    first, second = of(a), _scaled(of(b), alpha)
    low, high = first.low + second.low, first.high + second.high
    zeros = all(r.zeros or r.low == r.high == 0 for r in (first, second))
    shifted = any(_SHIFT <= r.low == r.high for r in (first, second))
    return Range(low, high, zeros, shifted, first.origin or second.origin)


def _subtract(of: Reader, a: Any, b: Any, *args: Any, alpha: float = 1, **kwargs: Any) -> Range:
    return _add(lambda part: part, of(a), _scaled(of(b), -alpha))


def _reversed(of: Reader, a: Any, b: Any, *args: Any, alpha: float = 1, **kwargs: Any) -> Range:
    return _subtract(of, b, a, alpha=alpha)


def _scaled(r: Range, factor: float) -> Range:
    return r if factor == 1 else _times(r, Range(factor, factor))


def _times(first: Range, second: Range) -> Range:
    ends = [_product(a, b) for a in (first.low, first.high) for b in (second.low, second.high)]
    zeros = first.zeros or second.zeros
    return Range(min(ends), max(ends), zeros, origin=first.origin or second.origin)


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _multiply(of: Reader, a: Any, b: Any, *args: Any, **kwargs: Any) -> Range:
    if a is b:
        return _power(of, a, 2)
    return _times(of(a), of(b))


def _divide(of: Reader, a: Any, b: Any, *args: Any, **kwargs: Any) -> Range:
    divisor = of(b)
    if divisor.low > 0:
        return _times(of(a), Range(1 / divisor.high if divisor.high < INF else 0.0, 1 / divisor.low))
    if divisor.bit > 0:
        return _times(of(a), Range(0.0, INF))
    return ANY


def _negative(of: Reader, x: Any, *args: Any, **kwargs: Any) -> Range:
    return _times(of(x), Range(-1.0, -1.0))


def _joined(of: Reader, parts: Any, *args: Any, **kwargs: Any) -> Range:
    ranges = [of(part) for part in parts]
    low, high = min(r.low for r in ranges), max(r.high for r in ranges)
    zeros = any(r.zeros or (r.low == 0 and r.bit <= 0) for r in ranges)
    return Range(low, high, zeros, origin=next((r.origin for r in ranges if r.origin), ""))


def _chosen(of: Reader, condition: Any, a: Any = None, b: Any = None, *args: Any) -> Range:
    return _joined(of, [a, b])


def _largest(of: Reader, x: Any, other: Any = None, *args: Any, **kwargs: Any) -> Range:
    r = of(x)
    if other is None or isinstance(other, int):  # over an axis
        return r
    second = of(other)
    return _limited(r, second.low, INF) if second.low == second.high else Range(
        max(r.low, second.low), max(r.high, second.high), r.zeros and second.zeros
    )  # fmt: skip


def _padded(of: Reader, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Range:
    r = of(x)
    edge = float(value or 0.0)
    # A frame of zeros around positive values leaves the bits inside as constant as they were.
    return r if mode != "constant" or edge == 0 else replace(r, low=min(r.low, edge), high=max(r.high, edge))


_AVERAGES = ("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
             "adaptive_avg_pool3d", "mean", "sum")  # fmt: skip
_RULES: dict[str, Callable[..., Range]] = {
    **dict.fromkeys(
        ("view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "movedim",
         "contiguous", "clone", "detach", "to", "float", "type_as", "expand", "expand_as", "repeat",
         "repeat_interleave", "getitem", "get", "chunk", "split", "unbind", "narrow", "select", "flip",
         "roll", "index_select", "dropout", "dropout1d", "dropout2d", "dropout3d", "max_pool1d", "max_pool2d",
         "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "amax", "interpolate", "upsample",
         "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unflatten", "view_as", "reshape_as",
         "swapaxes", "amin"),
        _same,
    ),
    **dict.fromkeys(("sigmoid", "hardsigmoid", "softmax"), _fixed(0.0, 1.0)),
    **dict.fromkeys(("exp", "softplus", "var", "std", "norm"), _fixed(0.0, INF)),
    **dict.fromkeys(("log_softmax", "logsigmoid"), _fixed(-INF, 0.0)),
    **dict.fromkeys(("tanh", "erf", "softsign"), _monotone(-1.0, 1.0)),
    **dict.fromkeys(
        ("gelu", "silu", "elu", "celu", "selu", "mish", "hardswish"),
        _monotone(-INF, INF),
    ),
    **dict.fromkeys(("leaky_relu", "prelu"), _sloped),
    **dict.fromkeys(("clamp", "clip"), _clamp),
    "clamp_min": _clamp,
    "clamp_max": lambda of, x, max: _clamp(of, x, None, max),
    "relu": _relu,
    "relu6": _relu6,
    "hardtanh": _hardtanh,
    **dict.fromkeys(_AVERAGES[:3], _average),
    **dict.fromkeys(_AVERAGES[3:7], _mean),
    "sum": _sum,
    **dict.fromkeys(("abs", "absolute"), _absolute),
    **dict.fromkeys(("pow", "square"), _power),
    "sqrt": _root,
    **dict.fromkeys(("add", "iadd", "radd"), _add),
    **dict.fromkeys(("sub", "subtract", "isub"), _subtract),
    "rsub": _reversed,
    **dict.fromkeys(("mul", "multiply", "imul", "rmul"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), _divide),
    **dict.fromkeys(("neg", "negative"), _negative),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _joined),
    "where": _chosen,
    **dict.fromkeys(("max", "maximum"), _largest),
    "pad": _padded,
}  # fmt: skip
