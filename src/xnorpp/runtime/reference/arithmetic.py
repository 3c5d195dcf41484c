"""Signs, factors, sums and products, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import F32, Array, per_channel
from xnorpp.runtime.reference.rounding import U, magnitude
from xnorpp.runtime.reference.rows import F64, Folded, Row


def spatial_factor(program: Program, op: Op) -> F32 | None:
    """The spatial factor, `(h, w)` or `(c, h, w)`: `row[h]*col[w]` in float32, or `map`, or `full`."""
    row, col = program.real(op, "row"), program.real(op, "col")
    if row is not None and col is not None:
        return row[:, None] * col[None, :]
    tensor = program.real(op, "map")
    return program.real(op, "full") if tensor is None else tensor


def _scaled(program: Program, op: Op, x: Array) -> Array:
    factor = spatial_factor(program, op)
    x = x.astype(np.float32, copy=False)
    return x if factor is None else x * factor


def _sign(program: Program, op: Op, x: Array) -> Array:
    v = _scaled(program, op, x)
    threshold, flip = program.real(op, "threshold"), program.stored(op, "flip")
    t = np.float32(0) if threshold is None else per_channel(threshold, v.ndim)
    positive = v > t
    if flip is not None:
        positive = np.where(per_channel(flip, v.ndim) != 0, v < t, positive)
    return np.asarray(np.where(positive, np.int8(1), np.int8(-1)))


def sign_distance(program: Program, op: Op, node: Folded, x: Array) -> F64:
    """How far the trained argument of a sign is from zero, by its input."""
    threshold = program.real(op, "threshold")
    v = _scaled(program, op, x).astype(np.float64)
    t = np.float64(0) if threshold is None else per_channel(threshold, v.ndim)
    gain = np.ones(1) if node.gain is None else np.asarray(node.gain, np.float64)
    return np.asarray(np.abs(v - t) * per_channel(gain, v.ndim))


def multiply_add(x: Array, mult: Array, add: Array) -> Array:
    """A fused multiply-add, `x*mult + add` rounded once, as batch norm does it in PyTorch.

    In float64 the product is exact and the sum is rounded to odd: where it lost something, its last bit is 1.
    So it is the middle of two float32 numbers only where that is exact, and rounding it again does no harm.
    """
    product, summand = x.astype(np.float64) * mult.astype(np.float64), add.astype(np.float64)
    total = product + summand
    back = total - product
    lost = (product - (total - back)) + (summand - back)  # exactly what the sum lost; NaN at infinities
    even = np.isfinite(lost) & (lost != 0) & (total.view(np.int64) & 1 == 0)
    return np.where(even, np.nextafter(total, np.copysign(np.inf, lost)), total).astype(np.float32)


def affine(x: Array, mult: F32 | None, add: F32 | None) -> Array:
    """`x*mult[c] + add[c]`, absent parts left out."""
    if mult is None:
        return x if add is None else x + per_channel(add, x.ndim)
    if add is None:
        return x * per_channel(mult, x.ndim)
    return multiply_add(x, per_channel(mult, x.ndim), per_channel(add, x.ndim))


def _affine(program: Program, op: Op, x: Array) -> Array:
    return affine(_scaled(program, op, x), program.real(op, "mult"), program.real(op, "add"))


def _affine_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    spatial, mult = spatial_factor(program, op), program.real(op, "mult")
    gain = np.float64(1) if mult is None else per_channel(np.abs(mult).astype(np.float64), y.ndim)
    if spatial is not None:
        gain = gain * np.abs(spatial)
    shift = magnitude(program, op, node, y.ndim)
    return np.asarray(gain * e[0] + 8 * U * (gain * np.abs(x[0]) + shift))


def _sign_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """In units of the trained argument of the sign: what the folded chain makes of the error of its input."""
    spatial = spatial_factor(program, op)
    gain = np.ones(1) if node.gain is None else node.gain
    factor = per_channel(np.asarray(gain, np.float64), y.ndim)
    if spatial is not None:
        factor = factor * np.abs(spatial)
    return np.asarray(factor * e[0] + 16 * U * (factor * np.abs(x[0]) + magnitude(program, op, node, y.ndim)))


def _add_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.asarray(e[0] + e[1] + 2 * U * np.abs(y))


def _mul_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.asarray(np.abs(x[0]) * e[1] + np.abs(x[1]) * e[0] + e[0] * e[1] + 4 * U * np.abs(y))


def _div_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    least = np.maximum(np.abs(x[1]) - e[1], np.finfo(np.float64).tiny)
    return np.asarray((e[0] + np.abs(y) * e[1]) / least + 4 * U * np.abs(y))


def _offset_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    constant = program.real(op, "value")
    assert constant is not None
    return np.asarray(e[0] + 4 * U * (np.abs(x[0]) + np.abs(constant)))


_SPREAD = "f32, f32 that broadcast -> f32"
_BROADCAST = {"broadcast": "true: two inputs that broadcast"}
_CHANNELS = {"threshold": "real (c)", "flip": "uint8 (c) of 0 and 1", "mult": "real (c)", "add": "real (c)"}
ROWS: dict[str, Row] = {
    "sign": Row(_sign, _sign_bound, "f32 or int -> bits, same shape", _CHANNELS),
    "affine": Row(_affine, _affine_bound, "f32 or int -> f32, same shape", _CHANNELS),
    "add": Row(lambda program, op, a, b: a + b, _add_bound, "f32, f32 of one shape -> f32", _BROADCAST),
    "mul": Row(
        lambda program, op, a, b: a.astype(np.float32, copy=False) * b,
        _mul_bound,
        "f32 or int, f32 -> f32",
        _BROADCAST,
    ),
    "sub": Row(lambda program, op, a, b: a - b, _add_bound, _SPREAD),
    "div": Row(lambda program, op, a, b: a / b, _div_bound, _SPREAD),
    "offset": Row(
        lambda program, op, x: x + program.real(op, "value"),
        _offset_bound,
        "f32 -> f32, same shape",
        {"value": "real, as many axes as the input, each of its size or 1"},
    ),
}
