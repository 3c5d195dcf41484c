"""Linear layers, and what else multiplies and adds over a whole axis."""

from __future__ import annotations

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference import curves
from xnorpp.runtime.reference.arrays import Apply, Array, signs_of, with_bias


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


APPLY: dict[str, Apply] = {
    "log_softmax": _log_softmax,
    "matmul": lambda program, op, a, b: np.matmul(a, b),
    "attention": _attention,
    "linear": _linear,
    "binary_linear": _binary_linear,
    "bitweight_linear": _bitweight_linear,
    "softmax": _softmax,
}
