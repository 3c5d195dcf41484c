"""Numbers that move and stay as they are."""

from __future__ import annotations

import math

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Array
from xnorpp.runtime.reference.rounding import carried
from xnorpp.runtime.reference.rows import Row


def _pad2d(program: Program, op: Op, x: Array) -> Array:
    front, back, top, bottom, left, right = op.attrs["padding"]
    edges = [(0, 0), (front, back), (top, bottom), (left, right)]
    return np.pad(x, edges, constant_values=np.float32(op.attrs["value"]))


def _permute(program: Program, op: Op, x: Array) -> Array:
    """Axis i of the result is axis `axes[i]` of the input."""
    return np.ascontiguousarray(x.transpose(0, *(axis + 1 for axis in op.attrs["axes"])))


ROWS: dict[str, Row] = {
    "flatten": Row(
        lambda program, op, x: x.reshape(x.shape[0], math.prod(x.shape[1:])),
        carried,
        "f32 of any shape -> f32 (c*h*w)",
    ),
    "pad2d": Row(_pad2d, carried, "f32 (c,h,w) -> f32", {"padding": "six integers"}),
    "signs": Row(lambda program, op, x: x.astype(np.float32), carried, "bits -> f32, same shape"),
    "permute": Row(
        _permute,
        carried,
        "f32 of any shape -> f32",
        {"axes": "each axis once"},
        example={"axes": [2, 0, 1]},
    ),
    "reshape": Row(
        lambda program, op, x: x.reshape(x.shape[0], *op.attrs["shape"]),
        carried,
        "f32 of any shape -> f32",
        {"shape": "as many elements"},
    ),
}
