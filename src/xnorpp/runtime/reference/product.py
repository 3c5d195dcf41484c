"""Linear layers, and what else multiplies and adds over a whole axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference import curves
from xnorpp.runtime.reference.arrays import Array, signs_of, with_bias
from xnorpp.runtime.reference.convolution import filter_bound
from xnorpp.runtime.reference.rounding import U
from xnorpp.runtime.reference.rows import F64, Folded, Row


def _linear(program: Program, op: Op, x: Array) -> Array:
    weight = program.real(op, "weight")
    assert weight is not None
    return with_bias(program, op, x @ weight.T)


def _binary_linear(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(x.astype(np.float32) @ signs_of(program, op, x).astype(np.float32).T).astype(np.int32)


def _bitweight_linear(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(x @ signs_of(program, op, x).astype(np.float32).T)


def _softmax(program: Program, op: Op, x: Array) -> Array:
    if "axis" in op.attrs:
        _, e, total = _along(op, x)
        return np.asarray(e / total)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _along(op: Op, x: Array) -> tuple[Array, Array, Array]:
    """x - max, its exponential, and the sum of that along the axis, added in float64 and rounded once."""
    axis = op.attrs["axis"] + 1
    rest = x - x.max(axis=axis, keepdims=True)
    e = curves.exp(rest)
    return rest, e, e.sum(axis=axis, keepdims=True, dtype=np.float64).astype(np.float32)


def _log_softmax(program: Program, op: Op, x: Array) -> Array:
    rest, _, total = _along(op, x)
    return np.asarray(rest - curves.log(total))


def _attention(program: Program, op: Op, q: Array, k: Array, v: Array) -> Array:
    """softmax(scale * q.k) v for each head; heads side by side as channels, tokens as pixels."""
    heads, n = op.attrs["heads"], q.shape[0]
    parts = [t.reshape(n, heads, t.shape[1] // heads, -1) for t in (q, k, v)]
    scores = np.matmul((parts[0] * np.float32(op.attrs["scale"])).swapaxes(2, 3), parts[1])
    e = curves.exp(scores - scores.max(axis=3, keepdims=True))
    weights = e / e.sum(axis=3, keepdims=True, dtype=np.float64).astype(np.float32)
    out = np.matmul(parts[2], weights.swapaxes(2, 3))
    return np.asarray(out.reshape(n, v.shape[1], *q.shape[2:]), np.float32)


_NO_PART = 60.0  # e**-60 of the largest part is nothing, next to the rounding


def _softmax_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    axis = 1 + op.attrs.get("axis", 0)
    largest = (x[0] - e[0]).max(axis=axis, keepdims=True)
    hidden = x[0] + e[0] < largest - _NO_PART  # as the scores that a mask hides, however inexact they are
    worst = np.where(hidden, 0.0, e[0]).max(axis=axis, keepdims=True)
    return np.asarray(y * np.expm1(2 * worst) + 32 * U)


def _log_softmax_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    worst = e[0].max(axis=1 + op.attrs["axis"], keepdims=True)
    return np.asarray(e[0] + worst + 16 * U * (np.abs(y) + np.abs(x[0]) + 1))


def _matmul_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    a, b = (np.abs(v.astype(np.float64)) for v in x)
    rounding = (a.shape[-1] + 8) * U * np.matmul(a, b)
    return np.asarray(np.matmul(e[0], b) + np.matmul(a + e[0], e[1]) + rounding)


def _attention_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    """The bounds of the two products and the softmax between them."""
    heads, n = op.attrs["heads"], x[0].shape[0]

    def split(v: Any) -> Any:
        return np.asarray(v, np.float64).reshape(n, heads, v.shape[1] // heads, -1)

    (q, k, v), (eq, ek, ev) = ([split(t) for t in row] for row in (x, e))
    scale, taps = abs(float(op.attrs["scale"])), q.shape[2] + 8
    q, eq = (t.swapaxes(2, 3) * scale for t in (np.abs(q), eq))
    sizes = np.matmul(q, np.abs(k))
    scores = np.matmul(eq, np.abs(k)) + np.matmul(q + eq, ek) + (taps + 4) * U * sizes
    worst = np.expm1(2 * scores.max(axis=3)) + 32 * U  # of a weight, in parts of it
    weights = np.einsum("nhdq->nhqd", split(np.abs(v).max(axis=3, keepdims=True).reshape(n, -1, 1)))
    moved = worst[..., None] * weights + ev.max(axis=3)[:, :, None, :] + (k.shape[3] + 8) * U * weights
    return np.asarray(moved.swapaxes(2, 3).reshape(y.shape))


def _bits_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """A sum of bits is exact, up to bits that rounding may turn."""
    return np.broadcast_to(e[0].sum(axis=1, keepdims=True), y.shape)


_VECTOR = "f32 (i) -> f32 (o)"
_REAL, _BITS = {"weight": "real (o, i)", "bias": "real (o)"}, {"weight": "bits (o, i)"}
ROWS: dict[str, Row] = {
    "linear": Row(_linear, filter_bound, _VECTOR, _REAL),
    "binary_linear": Row(_binary_linear, _bits_bound, "bits (i) -> int (o)", _BITS),
    "bitweight_linear": Row(_bitweight_linear, filter_bound, _VECTOR, _BITS),
    "softmax": Row(_softmax, _softmax_bound, "f32 (c) -> f32 (c)", {"axis": "f32 of any shape"}),
    "log_softmax": Row(_log_softmax, _log_softmax_bound, "f32 -> f32, same shape"),
    "matmul": Row(
        lambda program, op, a, b: np.matmul(a, b),
        _matmul_bound,
        "f32 (.., n, k), f32 (.., k, m) -> f32 (.., n, m)",
    ),
    "attention": Row(
        _attention,
        _attention_bound,
        "queries f32 (c, ..), keys f32 (c, ..), values f32 (v, ..) -> f32 (v, ..)",
    ),
}
