"""Functions of one number."""

from __future__ import annotations

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Apply, Array, per_channel
from xnorpp.runtime.reference.curves import CURVES


def _prelu(program: Program, op: Op, x: Array) -> Array:
    slope = program.real(op, "slope")
    assert slope is not None
    return np.where(x > 0, x, x * per_channel(slope, x.ndim))


def _curve(name: str) -> Apply:
    def apply(program: Program, op: Op, x: Array) -> Array:
        return CURVES[name](x, op.attrs["alpha"]) if name == "elu" else CURVES[name](x)

    return apply


APPLY: dict[str, Apply] = {
    **{name: _curve(name) for name in CURVES},
    "relu": lambda program, op, x: np.maximum(x, np.float32(0)),
    "prelu": _prelu,
    "hardtanh": lambda program, op, x: np.clip(x, np.float32(op.attrs["min"]), np.float32(op.attrs["max"])),
}
