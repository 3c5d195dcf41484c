"""Bounds of convolutions, linear layers and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U, exact, magnitude
from xnorpp.packing.graph import Node
from xnorpp.runtime import reference
from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.program import Op, Program


def _weight(program: Program, op: Op, channels: int) -> Any:
    real = None if program.is_packed(op) else program.real(op, "weight")
    if real is not None:
        return np.abs(real.astype(np.float64))
    stored = program.tensors[op.tensors["weight"]]
    if stored.ndim == 2:
        return np.abs(unpack_bits(stored, channels)).astype(np.float64)
    return np.abs(unpack_conv_weight(stored, channels // op.attrs["groups"])).astype(np.float64)


def _filter(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    weight = _weight(program, op, x[0].shape[1])
    taps = weight[0].size

    def through(v: Any) -> Any:
        if weight.ndim == 2:
            return v @ weight.T
        return reference.convolve(op, v.astype(np.float32), weight, 0).astype(np.float64)

    rounding = (taps + 8) * U * (through(np.abs(x[0])) + magnitude(program, op, node, y.ndim))
    return np.asarray(through(e[0]) * 1.001 + rounding)


def _int_conv2d(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """As a convolution whose input is off by half a step more, and by what goes beyond the limit."""
    steps, limit = float(op.attrs["steps"]), float(op.attrs["limit"])
    step = 0.5 / steps + np.maximum(np.abs(x[0].astype(np.float64)) - limit / steps, 0)
    return _filter(program, op, node, x, [e[0] + step, *e[1:]], y)


def _softmax(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    worst = e[0].max(axis=1 + op.attrs.get("axis", 0), keepdims=True)
    return np.asarray(y * np.expm1(2 * worst) + 32 * U)


def _log_softmax(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    worst = e[0].max(axis=1 + op.attrs["axis"], keepdims=True)
    return np.asarray(e[0] + worst + 16 * U * (np.abs(y) + np.abs(x[0]) + 1))


def _matmul(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    a, b = (np.abs(v.astype(np.float64)) for v in x)
    rounding = (a.shape[-1] + 8) * U * np.matmul(a, b)
    return np.asarray(np.matmul(e[0], b) + np.matmul(a + e[0], e[1]) + rounding)


def _attention(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
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


BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("conv2d", "linear", "bitweight_conv2d", "bitweight_linear"), _filter),
    "int_conv2d": _int_conv2d,
    **dict.fromkeys(("binary_conv2d", "binary_linear"), exact),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "matmul": _matmul,
    "attention": _attention,
}
