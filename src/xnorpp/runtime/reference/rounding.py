"""What the bounds share: the unit of rounding, summands, moved errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import per_channel
from xnorpp.runtime.reference.rows import F64, Folded, apply

U = 2.0**-24


def magnitude(program: Program, op: Op, node: Folded, ndim: int) -> Any:
    """How large the summands of a node's shift are in all, to broadcast; at least the shift itself."""
    shift = next((t for t in (program.real(op, "add"), program.real(op, "bias")) if t is not None), None)
    size = np.zeros(1) if node.size is None else node.size
    return per_channel(np.maximum(size, np.zeros(1) if shift is None else np.abs(shift)), ndim)


def exact(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """No error: whole numbers, constants."""
    return np.zeros(y.shape)


def carried(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """Moved or picked numbers: the error goes the same way; the numbers of a padding have none."""
    if op.op == "pad2d":
        op = Op(op.op, op.name, op.inputs, op.output, {**op.attrs, "value": 0.0})
    return np.asarray(apply(program, op, e[0].astype(np.float32)) * np.float64(1.001))
