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


BOUNDS: dict[str, Bound] = {**dict.fromkeys(("relu", "prelu", "hardtanh"), _activation)}
