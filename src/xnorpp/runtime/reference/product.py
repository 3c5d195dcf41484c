"""Linear layers, and what else multiplies and adds over a whole axis."""

from __future__ import annotations

import numpy as np

from xnorpp.runtime.format.program import Op, Program
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
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


APPLY: dict[str, Apply] = {
    "linear": _linear,
    "binary_linear": _binary_linear,
    "bitweight_linear": _bitweight_linear,
    "softmax": _softmax,
}
