"""Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.ops import pooled_size
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import F32, Array, columns_of
from xnorpp.runtime.reference.rounding import U, carried, exact
from xnorpp.runtime.reference.rows import F64, Folded, Row, apply

_PADS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _concat(program: Program, op: Op, *parts: Array) -> Array:
    return np.concatenate(parts, axis=op.attrs["axis"] + 1)


def _slice(program: Program, op: Op, x: Array) -> Array:
    """Along each axis numbers `start`, `start + step`, ... before `stop`; below 0 it counts from the end."""
    parts = zip(op.attrs["start"], op.attrs["stop"], op.attrs["step"], strict=True)
    index = (slice(None), *(slice(*part) for part in parts))
    return np.ascontiguousarray(x[index])


def _expand(program: Program, op: Op, x: Array) -> Array:
    return np.ascontiguousarray(np.broadcast_to(x, (x.shape[0], *op.attrs["shape"])))


def _pixel_shuffle(program: Program, op: Op, x: Array) -> Array:
    """Channel `(c*r + i)*r + j` of a pixel becomes channel c of pixel (i, j) of the r by r in its place."""
    n, c, h, w = x.shape
    r = op.attrs["factor"]
    blocks = x.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(blocks).reshape(n, c // (r * r), h * r, w * r)


def _pixel_unshuffle(program: Program, op: Op, x: Array) -> Array:
    """The inverse of `pixel_shuffle`."""
    n, c, h, w = x.shape
    r = op.attrs["factor"]
    blocks = x.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return np.ascontiguousarray(blocks).reshape(n, c * r * r, h // r, w // r)


def _channel_shuffle(program: Program, op: Op, x: Array) -> Array:
    """Channels as (groups, c/groups) become (c/groups, groups)."""
    groups = op.attrs["groups"]
    blocks = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks).reshape(x.shape)


def _edge_pad2d(program: Program, op: Op, x: Array) -> Array:
    top, bottom, left, right = op.attrs["padding"]
    mode = _PADS[op.attrs["mode"]]
    return np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], mode=mode)  # type: ignore[call-overload, no-any-return]


def upsampling(op: Op, size: int, out: int, axis: int) -> Any:
    """Pixels of the input from one pixel of the result to the next along an axis: as torch has it."""
    if op.attrs["align_corners"]:
        return np.float32(np.float32(size - 1) / np.float32(out - 1) if out > 1 else 0)
    scale = op.attrs["scale"]
    return np.float32(np.float32(size) / np.float32(out) if scale is None else 1.0 / scale[axis])


def upsampled_size(op: Op, size: int, axis: int) -> int:
    """Rows or columns of the result."""
    given = op.attrs["size"]
    return int(np.floor(size * op.attrs["scale"][axis])) if given is None else int(given[axis])


def taps(op: Op, size: int, axis: int) -> tuple[Array, Array, F32, F32]:
    """For each row (or column) of the result two of the input, and their weights in float32."""
    out = upsampled_size(op, size, axis)
    ratio, index = upsampling(op, size, out, axis), np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    place = ratio * index if op.attrs["align_corners"] else ratio * (index + half) - half
    place = np.maximum(place, np.float32(0))
    first = np.minimum(place.astype(np.int64), size - 1)
    high = np.clip(place - first.astype(np.float32), np.float32(0), np.float32(1))
    return first, np.minimum(first + 1, size - 1), np.float32(1) - high, high


def cubic_taps(op: Op, size: int, axis: int) -> tuple[Array, F32]:
    """For each row (or column) of the result four of the input, (4, out), and their weights."""
    out = upsampled_size(op, size, axis)
    ratio, index = upsampling(op, size, out, axis), np.arange(out, dtype=np.float32)
    half, a = np.float32(0.5), -0.75
    place = ratio * index if op.attrs["align_corners"] else ratio * (index + half) - half
    whole = np.floor(place)
    t = (place - whole).astype(np.float64)

    def near(d: Array) -> Array:
        return np.asarray(((a + 2) * d - (a + 3)) * d * d + 1)

    def far(d: Array) -> Array:
        return np.asarray(((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

    weights = np.stack([far(t + 1), near(t), near(1 - t), far(2 - t)]).astype(np.float32)
    return np.clip(whole.astype(np.int64) + np.arange(-1, 3)[:, None], 0, size - 1), weights


def _bicubic(op: Op, x: Array) -> Array:
    """Weighted sums of four columns, then of four rows, from the first to the last, each step rounded."""
    (rows, y), (columns, w) = (cubic_taps(op, size, axis) for axis, size in enumerate(x.shape[2:]))
    along = w[0] * x[:, :, :, columns[0]]
    for k in range(1, 4):
        along = along + w[k] * x[:, :, :, columns[k]]
    result = y[0][:, None] * along[:, :, rows[0]]
    for k in range(1, 4):
        result = result + y[k][:, None] * along[:, :, rows[k]]
    return np.asarray(result)


def chosen(op: Op, size: int, axis: int) -> Array:
    """For each row (or column) of the result the nearest one of the input."""
    out = upsampled_size(op, size, axis)
    half = np.float32(0.5 if op.attrs["mode"] == "nearest-exact" else 0)
    place = (np.arange(out, dtype=np.float32) + half) * upsampling(op, size, out, axis)
    return np.asarray(np.minimum(np.floor(place).astype(np.int64), size - 1))


def _upsample2d(program: Program, op: Op, x: Array) -> Array:
    """Nearest, bicubic or bilinear: `y0*(x0*a + x1*b) + y1*(x0*c + x1*d)`, each step rounded to float32."""
    h, w = x.shape[2:]
    if op.attrs["mode"] == "bicubic":
        return _bicubic(op, x)
    if op.attrs["mode"] != "bilinear":
        return np.ascontiguousarray(x[:, :, chosen(op, h, 0)][:, :, :, chosen(op, w, 1)])
    top, below, y0, y1 = taps(op, h, 0)
    left, right, x0, x1 = taps(op, w, 1)
    left_half, right_half = x0 * x[:, :, :, left], x1 * x[:, :, :, right]
    above, under = (left_half[:, :, rows] + right_half[:, :, rows] for rows in (top, below))
    return np.asarray(y0[:, None] * above + y1[:, None] * under)


def windows(size: int, out: int) -> list[tuple[int, int]]:
    """The windows of an adaptive pool: from floor(i*size/out) to ceil((i+1)*size/out)."""
    return [(i * size // out, -((i + 1) * size // -out)) for i in range(out)]


def _adaptive(program: Program, op: Op, x: Array) -> Array:
    """The largest number or the mean of each window; a sum is taken row by row."""
    rows, columns = (windows(size, out) for size, out in zip(x.shape[2:], op.attrs["size"], strict=True))
    result = np.empty((*x.shape[:2], len(rows), len(columns)), np.float32)
    for i, (top, bottom) in enumerate(rows):
        for j, (left, right) in enumerate(columns):
            part = x[:, :, top:bottom, left:right].reshape(*x.shape[:2], -1)
            if op.op == "adaptive_max_pool2d":
                result[:, :, i, j] = part.max(axis=2)
                continue
            total = np.zeros(x.shape[:2], np.float32)
            for k in range(part.shape[2]):
                total = total + part[:, :, k]
            result[:, :, i, j] = total / np.float32(part.shape[2])
    return result


def _dilated_max_pool2d(program: Program, op: Op, x: Array) -> Array:
    """The largest of numbers that lie `dilation` apart; what lies outside does not count."""
    kernel, stride, padding, dilation = (op.attrs[k] for k in ("kernel", "stride", "padding", "dilation"))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    sizes = enumerate(x.shape[2:])
    out = [pooled_size(n, reach[i], stride[i], padding[i], op.attrs["ceil_mode"]) for i, n in sizes]
    needed = [(o - 1) * stride[i] + reach[i] for i, o in enumerate(out)]
    edges = [(p, max(p, m - n - p)) for p, m, n in zip(padding, needed, x.shape[2:], strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *edges], constant_values=-np.inf)
    flat = padded.reshape(-1, *padded.shape[2:])
    windows = columns_of(flat, kernel, stride, dilation, (out[0], out[1]))
    return np.asarray(windows.max(axis=1)).reshape(*x.shape[:2], *out)


def _constant(program: Program, op: Op, x: Array) -> Array:
    """The same numbers for every image; the input only decides how many images there are."""
    value = program.real(op, "value")
    assert value is not None
    return np.ascontiguousarray(np.broadcast_to(value, (x.shape[0], *value.shape)))


def _concat_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.concatenate(e, axis=op.attrs["axis"] + 1)


def _upsample2d_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    if op.attrs["mode"] == "bicubic":
        return _bicubic_bound(op, x[0], e[0])
    if op.attrs["mode"] != "bilinear":
        return carried(program, op, node, x, e, y)
    # The weights come from places of up to `h` and `w`, rounded: they differ by that many units at most.
    h, w = x[0].shape[2:]
    (top, below, _, _), (left, right, _, _) = taps(op, h, 0), taps(op, w, 1)
    sizes = np.abs(x[0]).astype(np.float64)
    around = sum(sizes[:, :, rows][:, :, :, columns] for rows in (top, below) for columns in (left, right))
    return np.asarray(carried(program, op, node, x, e, y) + (4 * max(h, w) + 16) * U * around)


def _bicubic_bound(op: Op, x: Any, e: F64) -> F64:
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


def _adaptive_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    h, w = x[0].shape[2:]
    size = apply(program, op, np.abs(x[0])).astype(np.float64)
    return np.asarray(carried(program, op, node, x, e, y) + (h * w + 8) * U * size)


_SAME = "f32 -> f32, same shape"
_IMAGE = "f32 (c,h,w) -> f32"
_UPSAMPLING = {
    "size": "rows and columns, or null",
    "scale": "two numbers where `size` is null, else null",
    "mode": "`nearest`, `nearest-exact`, `bilinear`, `bicubic`",
    "align_corners": "true or false",
}
_PADDING = {"padding": "top, bottom, left, right", "mode": "`reflect`, `replicate`, `circular`"}
_STEPS = {
    "start": "one number for each axis",
    "stop": "one for each axis; null, or below 0 from the end",
    "step": "one for each axis",
}
ROWS: dict[str, Row] = {
    "concat": Row(_concat, _concat_bound, "one or more f32 that differ along one axis at most -> f32"),
    "slice": Row(_slice, carried, "f32 of any shape -> f32", _STEPS),
    "flip": Row(
        lambda program, op, x: np.ascontiguousarray(np.flip(x, op.attrs["axis"] + 1)), carried, _SAME
    ),
    "expand": Row(_expand, carried, "f32 -> f32", {"shape": "the input's, with any size where that is 1"}),
    "pixel_shuffle": Row(
        _pixel_shuffle, carried, "f32 (c r r, h, w) -> f32 (c, h r, w r)", {"factor": "`r`"}
    ),
    "pixel_unshuffle": Row(
        _pixel_unshuffle, carried, "f32 (c, h r, w r) -> f32 (c r r, h, w)", {"factor": "`r`"}
    ),
    "channel_shuffle": Row(_channel_shuffle, carried, _SAME),
    "edge_pad2d": Row(_edge_pad2d, carried, _IMAGE, _PADDING),
    "upsample2d": Row(_upsample2d, _upsample2d_bound, _IMAGE, _UPSAMPLING),
    "adaptive_avg_pool2d": Row(_adaptive, _adaptive_bound, "f32 (c,h,w) -> f32 (c, *size)"),
    "adaptive_max_pool2d": Row(_adaptive, carried, "f32 (c,h,w) -> f32 (c, *size)"),
    "dilated_max_pool2d": Row(_dilated_max_pool2d, carried, _IMAGE, {"dilation": "pairs"}),
    "constant": Row(
        _constant,
        exact,
        "f32, which only gives the number of images -> f32",
        {"value": "real, of 1 to 8 axes"},
    ),
}
