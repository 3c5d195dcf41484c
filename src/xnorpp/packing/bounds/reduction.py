"""Bounds of sums, means and extremes along axes, and of normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U
from xnorpp.packing.graph import Node
from xnorpp.runtime.format.program import Op, Program


def _reduce(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """An extreme moves by at most the largest error, a sum of n by theirs and by torch's rounding, n*u."""
    axes, function = tuple(axis + 1 for axis in op.attrs["axes"]), op.attrs["function"]
    if function in ("max", "min"):
        return np.asarray(e[0].max(axis=axes, keepdims=True))
    count = np.prod([x[0].shape[axis] for axis in axes])
    size = np.abs(x[0].astype(np.float64))
    if function == "l2":
        moved = np.sqrt(np.square(e[0]).sum(axis=axes, keepdims=True))
        return np.asarray(moved + (count + 8) * U * np.abs(y))
    rounding = e[0] + (count + 8) * U * size
    return np.asarray((rounding.mean if function == "mean" else rounding.sum)(axis=axes, keepdims=True))


def _norm(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """Where all of a group moves by `err`, `(x - mean)*r` moves by at most `2*err*r*(1 + |y|)`; torch's own
    mean and variance are sums of n float32 numbers, added in parts: 64 units of rounding cover them."""
    groups, n = op.attrs["groups"], x[0].shape[0]
    wide = x[0].astype(np.float64).reshape(n, groups, x[0].shape[1] // groups, -1)
    axes = (2, 3) if op.attrs["pixels"] else (2,)
    mean = wide.mean(axis=axes, keepdims=True) if op.attrs["centre"] else np.zeros((1, 1, 1, 1))
    factor = 1.0 / np.sqrt(np.square(wide - mean).mean(axis=axes, keepdims=True) + op.attrs["eps"])
    error = e[0].reshape(wide.shape)
    worst = error.max(axis=axes, keepdims=True)
    size = 1 + np.abs(y.reshape(wide.shape).astype(np.float64))
    largest = np.abs(wide).max(axis=axes, keepdims=True)
    found = factor * (error + worst * size) + 64 * U * (size + factor * largest * size)
    return np.asarray(found.reshape(x[0].shape))


BOUNDS: dict[str, Bound] = {"reduce": _reduce, "norm": _norm}
