"""Sums, means and extremes along axes, and normalisation by them.

Sums are of float64 and are rounded to float32 once, so that the order of the summands does not matter.
"""

from __future__ import annotations

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Apply, Array


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


APPLY: dict[str, Apply] = {"reduce": _reduce, "norm": _norm}
