"""Bounds of signs, factors, sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U, magnitude
from xnorpp.packing.graph import Node
from xnorpp.runtime import reference
from xnorpp.runtime.format.program import Op, Program


def _affine(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    spatial, mult = reference.spatial_factor(program, op), program.real(op, "mult")
    gain = np.float64(1) if mult is None else reference.per_channel(np.abs(mult).astype(np.float64), y.ndim)
    if spatial is not None:
        gain = gain * np.abs(spatial)
    shift = magnitude(program, op, node, y.ndim)
    return np.asarray(gain * e[0] + 8 * U * (gain * np.abs(x[0]) + shift))


def _sign(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """In units of the trained argument of the sign: what the folded chain makes of the error of its input."""
    spatial = reference.spatial_factor(program, op)
    gain = np.ones(1) if node.gain is None else node.gain
    factor = reference.per_channel(np.asarray(gain, np.float64), y.ndim)
    if spatial is not None:
        factor = factor * np.abs(spatial)
    return np.asarray(factor * e[0] + 16 * U * (factor * np.abs(x[0]) + magnitude(program, op, node, y.ndim)))


def _add(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.asarray(e[0] + e[1] + 2 * U * np.abs(y))


def _mul(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.asarray(np.abs(x[0]) * e[1] + np.abs(x[1]) * e[0] + e[0] * e[1] + 4 * U * np.abs(y))


def _div(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    least = np.maximum(np.abs(x[1]) - e[1], np.finfo(np.float64).tiny)
    return np.asarray((e[0] + np.abs(y) * e[1]) / least + 4 * U * np.abs(y))


def _offset(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    constant = program.real(op, "value")
    assert constant is not None
    return np.asarray(e[0] + 4 * U * (np.abs(x[0]) + np.abs(constant)))


BOUNDS: dict[str, Bound] = {
    "affine": _affine,
    "sign": _sign,
    **dict.fromkeys(("add", "sub"), _add),
    "mul": _mul,
    "div": _div,
    "offset": _offset,
}
