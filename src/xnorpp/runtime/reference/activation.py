"""Functions of one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Apply, Array, per_channel
from xnorpp.runtime.reference.curves import CURVES
from xnorpp.runtime.reference.rounding import U
from xnorpp.runtime.reference.rows import F64, Folded, Row, apply


def _prelu(program: Program, op: Op, x: Array) -> Array:
    slope = program.real(op, "slope")
    assert slope is not None
    return np.where(x > 0, x, x * per_channel(slope, x.ndim))


def _hardtanh(program: Program, op: Op, x: Array) -> Array:
    return np.clip(x, np.float32(op.attrs["min"]), np.float32(op.attrs["max"]))


def _curve(name: str) -> Apply:
    def curve(program: Program, op: Op, x: Array) -> Array:
        return CURVES[name](x, op.attrs["alpha"]) if name == "elu" else CURVES[name](x)

    return curve


def _activation_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    slope = program.real(op, "slope")
    gain = 1.0 if slope is None else np.maximum(1.0, per_channel(np.abs(slope), y.ndim))
    return np.asarray(gain * e[0] + 2 * U * np.abs(y))


# The largest slope of a curve, and how many units of 2**-24 of |y|, of |x| and of 1 torch's result and ours
# may be apart; both are within half of it of the true one.
SLOPES: dict[str, tuple[float, float, float, float]] = {
    "sigmoid": (0.25, 16, 0, 0),
    "silu": (1.1, 16, 0, 0),
    "tanh": (1.0, 16, 0, 0),
    "elu": (1.0, 16, 0, 2),
    "softplus": (1.0, 16, 0, 0.1),
    "mish": (1.1, 24, 4, 0),
    "gelu": (1.13, 16, 8, 0),
    "gelu_tanh": (1.13, 16, 8, 0),
    "hardswish": (1.5, 16, 4, 0),
    "erf": (1.13, 16, 0, 0),
}


def _curve_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    slope, of_y, of_x, of_one = SLOPES[op.op]
    if op.op == "elu":
        slope = max(1.0, abs(float(op.attrs["alpha"])))
    rounding = of_y * np.abs(y) + of_x * np.abs(x[0]) + of_one * slope
    return np.asarray(slope * e[0] + U * rounding)


def _steep_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """Functions without a largest slope: how far the value goes where its input moves by its error."""
    ends = [
        apply(program, op, (x[0].astype(np.float64) + side * e[0]).astype(np.float32)) for side in (-1, 1)
    ]
    moved = np.maximum(*(np.abs(end.astype(np.float64) - y) for end in ends))
    return np.asarray(np.where(e[0] > 0, moved, 0.0) + 16 * U * np.abs(y))


_SAME = "f32 -> f32, same shape"
ROWS: dict[str, Row] = {
    "relu": Row(lambda program, op, x: np.maximum(x, np.float32(0)), _activation_bound, _SAME),
    "prelu": Row(_prelu, _activation_bound, _SAME, {"slope": "real (c) or (1)"}),
    "hardtanh": Row(_hardtanh, _activation_bound, _SAME, {"max": "finite numbers"}),
    **{
        name: Row(
            _curve(name), _curve_bound if name in SLOPES else _steep_bound, _SAME, {"alpha": "a number"}
        )
        for name in CURVES
    },
}
