"""Bounds of pools and means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U, carried
from xnorpp.packing.graph import Node
from xnorpp.runtime import reference
from xnorpp.runtime.format.program import Op, Program


def _mean(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    kernel = op.attrs.get("kernel")
    count = x[0][0].size if kernel is None else kernel[0] * kernel[1]
    magnitude = reference.apply(program, op, np.abs(x[0]))
    return np.asarray(carried(program, op, node, x, e, y) + (count + 8) * U * magnitude.astype(np.float64))


BOUNDS: dict[str, Bound] = {
    "max_pool2d": carried,
    **dict.fromkeys(("avg_pool2d", "global_avg_pool", "abs_mean", "box_filter"), _mean),
}
