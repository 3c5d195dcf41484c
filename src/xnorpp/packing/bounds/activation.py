"""Bounds of functions of one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U
from xnorpp.packing.graph import Node
from xnorpp.runtime import reference
from xnorpp.runtime.format.program import Op, Program


def _activation(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    slope = program.real(op, "slope")
    gain = 1.0 if slope is None else np.maximum(1.0, reference.per_channel(np.abs(slope), y.ndim))
    return np.asarray(gain * e[0] + 2 * U * np.abs(y))


# The largest slope of a curve, and how many units of 2**-24 of |y|, of |x| and of 1 torch's result and ours
# may be apart; both are within half of it of the true one.
CURVES: dict[str, tuple[float, float, float, float]] = {
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


def _curve(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    slope, of_y, of_x, of_one = CURVES[op.op]
    if op.op == "elu":
        slope = max(1.0, abs(float(op.attrs["alpha"])))
    rounding = of_y * np.abs(y) + of_x * np.abs(x[0]) + of_one * slope
    return np.asarray(slope * e[0] + U * rounding)


def _steep(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """Functions without a largest slope: how far the value goes where its input moves by its error."""
    ends = [
        reference.apply(program, op, (x[0].astype(np.float64) + side * e[0]).astype(np.float32))
        for side in (-1, 1)
    ]
    moved = np.maximum(*(np.abs(end.astype(np.float64) - y) for end in ends))
    return np.asarray(np.where(e[0] > 0, moved, 0.0) + 16 * U * np.abs(y))


BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("relu", "prelu", "hardtanh"), _activation),
    **dict.fromkeys(CURVES, _curve),
    **dict.fromkeys(("exp", "log", "sqrt", "reciprocal"), _steep),
}
