"""Bounds of numbers that are joined, chosen, repeated, enlarged or pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U, carried, exact
from xnorpp.packing.graph import Node
from xnorpp.runtime import reference
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.moves import cubic_taps, taps


def _concat(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.concatenate(e, axis=op.attrs["axis"] + 1)


def _upsample2d(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    if op.attrs["mode"] == "bicubic":
        return _bicubic(op, x[0], e[0])
    if op.attrs["mode"] != "bilinear":
        return carried(program, op, node, x, e, y)
    # The weights come from places of up to `h` and `w`, rounded: they differ by that many units at most.
    h, w = x[0].shape[2:]
    (top, below, _, _), (left, right, _, _) = taps(op, h, 0), taps(op, w, 1)
    sizes = np.abs(x[0]).astype(np.float64)
    around = sum(sizes[:, :, rows][:, :, :, columns] for rows in (top, below) for columns in (left, right))
    return np.asarray(carried(program, op, node, x, e, y) + (4 * max(h, w) + 16) * U * around)


def _bicubic(op: Op, x: Any, e: F64) -> F64:
    """As bilinear ones, but weights are of either sign, and twice as steep."""
    (rows, y), (columns, w) = (cubic_taps(op, size, axis) for axis, size in enumerate(x.shape[2:]))
    sizes, bound = np.abs(x).astype(np.float64), np.zeros((*x.shape[:2], rows.shape[1], columns.shape[1]))
    steep = (8 * max(x.shape[2:]) + 64) * U
    for i in range(4):
        for j in range(4):
            weight = np.abs(y[i].astype(np.float64))[:, None] * np.abs(w[j])
            bound += weight * e[:, :, rows[i]][:, :, :, columns[j]]
            bound += steep * sizes[:, :, rows[i]][:, :, :, columns[j]]
    return bound


def _adaptive(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    h, w = x[0].shape[2:]
    size = reference.apply(program, op, np.abs(x[0])).astype(np.float64)
    return np.asarray(carried(program, op, node, x, e, y) + (h * w + 8) * U * size)


BOUNDS: dict[str, Bound] = {
    "concat": _concat,
    "upsample2d": _upsample2d,
    "adaptive_avg_pool2d": _adaptive,
    "constant": exact,
    **dict.fromkeys(
        ("slice", "flip", "expand", "edge_pad2d", "adaptive_max_pool2d", "dilated_max_pool2d"), carried
    ),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), carried),
}
