"""A monotone function before a sign becomes a threshold, taken from the trained float32 function.

Let f be what the trained network computes in float32 from a number v to the argument of the sign: scale,
bias, batch norm, ReLU, PReLU with slopes >= 0, hardtanh. Each of these rounds monotonically, so f is monotone
in v in float32 too, and `f(v) > 0` changes at most once along the number line:

    rising     bit = v > t      t = the largest v with f(v) <= 0     (integers: half-way to the next one)
    falling    bit = v < t      t = the smallest v with f(v) <= 0    `flip` is 1
    constant   bit = v > t      t = +inf (never) or -inf (always): a zero multiplier, ReLU's flat side, ...

The change is found by bisection over all float32 numbers in order (32 evaluations of f on one number per
channel), or over the integers a dot product can be. No division, no tolerance: the flip of a negative
multiplier and the constants come out of the evaluation itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xnorpp.packing.graph import F32, Array, Trained

_STEPS = 16  # by which a shift is moved at most
_LAST = np.int64(0x7F7FFFFF)  # the place of the largest finite float32, counted from zero

I64 = npt.NDArray[np.int64]


def float_at(place: I64) -> F32:
    """The float32 at a place in their order: 0 is 0.0, 1 the smallest positive one, -1 its negative."""
    magnitude = np.abs(place).astype(np.uint32).view(np.float32)
    return np.where(place < 0, -magnitude, magnitude).astype(np.float32)


def real_threshold(f: Trained, channels: int) -> tuple[F32, npt.NDArray[np.uint8]]:
    """(threshold, flip) for a real v: `(v < t if flip else v > t) == (f(v) > 0)` for every finite v."""
    rising, falling, low, high = _bracket(lambda place: f(float_at(place)), -_LAST, _LAST, channels)
    threshold = np.where(falling, float_at(high), float_at(low)).astype(np.float32)
    return _with_constants(threshold, rising, falling, f(float_at(np.zeros(channels, np.int64))))


def integer_threshold(f: Trained, channels: int, largest: int) -> tuple[F32, npt.NDArray[np.uint8]]:
    """(threshold, flip) for an integer v in -largest..largest; a threshold lies between two integers."""
    bound = np.int64(largest + 1)
    rising, falling, low, _ = _bracket(lambda v: f(v.astype(np.float32)), -bound, bound, channels)
    threshold = (low + 0.5).astype(np.float32)
    return _with_constants(threshold, rising, falling, f(np.zeros(channels, np.float32)))


def shift_with_signs(f: Trained, mult: Array, add: Array, largest: int) -> Array:
    """`add`, moved where `v*mult + add` has another sign than f(v) for an integer v in -largest..largest.

    Only integers next to the zero can differ, and by rounding alone; so a few steps to the next float32 do.
    """
    m, a = (np.ascontiguousarray(tensor, np.float32) for tensor in (mult, add))
    with np.errstate(all="ignore"):
        zero = np.nan_to_num(-a.astype(np.float64) / m)
        near = np.clip(np.floor(zero) + np.arange(-1, 3)[:, None], -largest, largest).astype(np.float32)
        goal = _positive(f(near))
        for _ in range(_STEPS):
            # With the product rounded before the sum, and with the sum rounded alone.
            product, exact = near * m + a, near.astype(np.float64) * m + a
            low = (goal & ~(_positive(product) & (exact > 0))).any(0)
            high = (~goal & (_positive(product) | (exact > 0))).any(0)
            wrong = (low ^ high) & (m != 0)
            if not wrong.any():
                break
            a = np.where(wrong, np.nextafter(a, np.where(low, np.inf, -np.inf).astype(np.float32)), a)
    changed = a != np.asarray(add, np.float32)
    return np.where(changed & ~wrong, a, add)


def _bracket(
    f: Callable[[I64], F32], first: np.int64, last: np.int64, channels: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], I64, I64]:
    """Per channel: whether `f > 0` rises or falls from first to last, and the two neighbours there."""
    with np.errstate(all="ignore"):
        low, high = np.full(channels, first), np.full(channels, last)
        at_low, at_high = _positive(f(low)), _positive(f(high))
        while bool(np.any(high - low > 1)):
            middle = (low + high) // 2
            as_low = _positive(f(middle)) == at_low
            low, high = np.where(as_low, middle, low), np.where(as_low, high, middle)
        return at_high & ~at_low, at_low & ~at_high, low, high


def _positive(y: F32) -> npt.NDArray[np.bool_]:
    return np.asarray(y > 0)


def _with_constants(
    threshold: F32, rising: npt.NDArray[np.bool_], falling: npt.NDArray[np.bool_], at_zero: F32
) -> tuple[F32, npt.NDArray[np.uint8]]:
    constant = np.where(_positive(at_zero), -np.inf, np.inf)
    t = np.where(rising | falling, threshold, constant).astype(np.float32)
    return t, falling.astype(np.uint8)
