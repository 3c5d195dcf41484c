"""Pools and filters over windows of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.ops import pooled_size, window_size
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Array, columns_of, pad_images
from xnorpp.runtime.reference.rounding import U, carried
from xnorpp.runtime.reference.rows import F64, Folded, Row, apply


def _pool_columns(op: Op, x: Array, fill: float) -> Array:
    """Windows `(n, c, kh*kw, oh*ow)`; the padding and what `ceil_mode` reads beyond it are `fill`."""
    kernel, stride, padding = op.attrs["kernel"], op.attrs["stride"], op.attrs["padding"]
    n, c, h, w = x.shape
    oh, ow = (
        pooled_size(s, kernel[i], stride[i], padding[i], op.attrs["ceil_mode"]) for i, s in enumerate((h, w))
    )
    needed = [(o - 1) * stride[i] + kernel[i] for i, o in enumerate((oh, ow))]
    edges = [(p, max(p, m - s - p)) for p, m, s in zip(padding, needed, (h, w), strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *edges], constant_values=fill)
    flat = padded.reshape(n * c, *padded.shape[2:])
    return columns_of(flat, kernel, stride, (1, 1), (oh, ow)).reshape(n, c, kernel[0] * kernel[1], oh, ow)


def _max_pool2d(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(_pool_columns(op, x, -np.inf).max(axis=2))


def _avg_pool2d(program: Program, op: Op, x: Array) -> Array:
    """Sum over the window / its size. The size counts the padding with `count_include_pad`, never more."""
    total = _pool_columns(op, x, 0.0).sum(axis=2, dtype=np.float32)
    inside = np.ones((1, 1, *x.shape[2:]), np.float32)
    if op.attrs["count_include_pad"]:
        inside = pad_images(inside, op.attrs["padding"], 1.0)
        plain = Op(op.op, op.name, op.inputs, op.output, {**op.attrs, "padding": [0, 0]})
        count = _pool_columns(plain, inside, 0.0).sum(axis=2)[..., : total.shape[2], : total.shape[3]]
    else:
        count = _pool_columns(op, inside, 0.0).sum(axis=2)
    return np.asarray(total / count.astype(np.float32))


def _global_avg_pool(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(x.mean(axis=(2, 3), keepdims=True, dtype=np.float32))


def _abs_mean(program: Program, op: Op, x: Array) -> Array:
    """Mean of |x| over the channels, summed in float64 and rounded once: the same in whatever order."""
    return np.asarray(np.abs(x).mean(axis=1, keepdims=True, dtype=np.float64), np.float32)


def _box_filter(program: Program, op: Op, x: Array) -> Array:
    """Mean over the window with zeros outside: divisor `kh*kw` everywhere (XNOR-Net's filter k).

    Summed in float64 and rounded once, as `_abs_mean`.
    """
    kernel, stride, padding, dilation = (op.attrs[k] for k in ("kernel", "stride", "padding", "dilation"))
    out = [window_size(n, kernel[i], stride[i], padding[i], dilation[i]) for i, n in enumerate(x.shape[2:])]
    padded = pad_images(x, padding, 0.0)
    padded = padded.reshape(math.prod(x.shape[:2]), *padded.shape[2:])
    columns = columns_of(padded, kernel, stride, dilation, (out[0], out[1]))
    mean = columns.sum(axis=1, dtype=np.float64) / (kernel[0] * kernel[1])
    return np.asarray(mean.reshape(*x.shape[:2], *out).astype(np.float32))


def _mean_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    kernel = op.attrs.get("kernel")
    count = x[0][0].size if kernel is None else kernel[0] * kernel[1]
    magnitude = apply(program, op, np.abs(x[0]))
    return np.asarray(carried(program, op, node, x, e, y) + (count + 8) * U * magnitude.astype(np.float64))


_IMAGE = "f32 (c,h,w) -> f32"
_WINDOW = {"padding": "pairs"}
ROWS: dict[str, Row] = {
    "max_pool2d": Row(_max_pool2d, carried, _IMAGE, _WINDOW),
    "avg_pool2d": Row(_avg_pool2d, _mean_bound, _IMAGE, _WINDOW),
    "global_avg_pool": Row(_global_avg_pool, _mean_bound, "f32 (c,h,w) -> f32 (c,1,1)"),
    "abs_mean": Row(_abs_mean, _mean_bound, "f32 of any shape -> f32, one channel"),
    "box_filter": Row(_box_filter, _mean_bound, "f32 (c,h,w) -> f32 (c,h',w')", {"dilation": "pairs"}),
}
