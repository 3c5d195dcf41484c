"""Sums, means and extremes along axes, and normalisation by them.

Sums are of float64 and are rounded to float32 once, so that the order of the summands does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Array
from xnorpp.runtime.reference.rounding import U
from xnorpp.runtime.reference.rows import F64, Folded, Row


def _reduce(program: Program, op: Op, x: Array) -> Array:
    axes, function = tuple(axis + 1 for axis in op.attrs["axes"]), op.attrs["function"]
    if function in ("max", "min"):
        return np.asarray((x.max if function == "max" else x.min)(axis=axes, keepdims=True))
    wide = x.astype(np.float64)
    if function == "l2":
        return np.asarray(np.sqrt(np.square(wide).sum(axis=axes, keepdims=True)), np.float32)
    found = (wide.mean if function == "mean" else wide.sum)(axis=axes, keepdims=True)
    return np.asarray(found, np.float32)


def _norm(program: Program, op: Op, x: Array) -> Array:
    """`(x - mean) / sqrt(variance + eps)` over groups of channels, of each pixel or of all; without `centre`
    the mean is 0. Mean and factor are rounded to float32, then the difference and the product are."""
    groups, n = op.attrs["groups"], x.shape[0]
    wide = x.reshape(n, groups, x.shape[1] // groups, -1).astype(np.float64)
    axes = (2, 3) if op.attrs["pixels"] else (2,)
    mean = wide.mean(axis=axes, keepdims=True) if op.attrs["centre"] else np.zeros(1)
    variance = np.square(wide - mean).mean(axis=axes, keepdims=True)
    factor = (1.0 / np.sqrt(variance + op.attrs["eps"])).astype(np.float32)
    y = (wide.astype(np.float32) - mean.astype(np.float32)) * factor
    return np.asarray(y.reshape(x.shape), np.float32)


def _reduce_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
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


def _norm_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
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


ROWS: dict[str, Row] = {
    "reduce": Row(
        _reduce,
        _reduce_bound,
        "f32 -> f32, the axes of size 1",
        {"function": "`mean`, `sum`, `max`, `min`, `l2`", "axes": "rising"},
        example={"function": "mean", "axes": [1, 2]},
    ),
    "norm": Row(
        _norm,
        _norm_bound,
        "f32 -> f32, same shape",
        {"centre": "true or false"},
        example={"groups": 4, "pixels": True, "centre": True, "eps": 1e-5},
    ),
}
