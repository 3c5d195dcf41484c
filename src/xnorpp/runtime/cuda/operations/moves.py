"""Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from xnorpp.runtime.cuda.launch import Array, extent
from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.plan import Step
from xnorpp.runtime.reference import apply
from xnorpp.runtime.reference.moves import cubic_taps, taps


def _tables(keeper: Keeper, step: Step) -> tuple[Array, Array]:
    """Where each number comes from: (channel, pixel) that its channel and that its pixel contribute.

    Found by moving the numbers 0, 1, 2, ... as the reference does: a place of the source is the sum of what a
    channel and what a pixel contribute in all of these operations.
    """
    assert step.op is not None
    program, source = keeper.program, keeper.program.values[step.source].shape
    places = np.arange(math.prod(source), dtype=np.float64).reshape(1, *source)
    moved = apply(program, step.op, places).astype(np.int64).reshape(step.shape[0], -1)
    pixels = math.prod(source[1:])
    channel, pixel = moved // pixels, moved % pixels
    columns = np.stack([channel[:, 0], pixel[:, 0]], axis=1)
    rows = np.stack([channel[0] - channel[0, 0], pixel[0] - pixel[0, 0]], axis=1)
    return columns.astype(np.int32), rows.astype(np.int32)


def _moved(keeper: Keeper, step: Step) -> dict[str, Any]:
    key = f"{step.index}.moved"
    channels = keeper.keep(f"{key}.channels", lambda: _tables(keeper, step)[0])
    return {"constant": (channels, keeper.keep(f"{key}.pixels", lambda: _tables(keeper, step)[1]))}


MOST_PARTS = 4  # inputs of one launch


def in_short_joins(program: Program) -> Program:
    """The same program with concatenations of many values as chains of concatenations of few."""
    if all(op.op != "concat" or len(op.inputs) <= MOST_PARTS for op in program.ops):
        return program
    ops: list[Op] = []
    for op in program.ops:
        while op.op == "concat" and len(op.inputs) > MOST_PARTS:
            begun = f"{op.output} up to {len(op.inputs)}"
            while begun in program.values:
                begun += "'"
            ops.append(replace(op, name=begun, inputs=op.inputs[:MOST_PARTS], output=begun))
            op = replace(op, inputs=(begun, *op.inputs[MOST_PARTS:]))
        ops.append(op)
    return replace(program, ops=tuple(ops))


def _concat(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    axis, values = step.op.attrs["axis"], keeper.program.values
    sizes = [values[name].shape[axis] for name in step.op.inputs]
    return {"number": (axis, math.prod(step.shape[axis + 1 :]), len(sizes), *sizes)}


def _upsample2d(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    mode = step.op.attrs["mode"]
    if mode not in ("bilinear", "bicubic"):
        return {**_moved(keeper, step), "number": (0,)}
    op, (_, h, w) = step.op, extent(keeper.program.values[step.source].shape)

    def table(axis: int) -> Array:
        """Rows or columns of places and as many weights, these as the bits of float32."""
        if mode == "bicubic":
            places, weights = cubic_taps(op, (h, w)[axis], axis)
            return np.asarray(np.concatenate([places.astype(np.int32), weights.view(np.int32)]).T)
        first, second, low, high = taps(op, (h, w)[axis], axis)
        rows = [part.astype(np.int32) for part in (first, second)]
        return np.stack([*rows, low.view(np.int32), high.view(np.int32)], axis=1)

    key = f"{step.index}.taps"
    rows, columns = (keeper.keep(f"{key}.{axis}", lambda axis=axis: table(axis)) for axis in (0, 1))  # type: ignore[misc]
    return {"constant": (rows, columns), "number": (1 if mode == "bilinear" else 2,)}


def _window(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    names = ("kernel", "stride", "padding", "dilation")
    return {"number": tuple(int(n) for name in names for n in step.op.attrs[name])}


def _constant(keeper: Keeper, step: Step) -> dict[str, Any]:
    """The value as [pixel][channel]."""
    assert step.op is not None
    op, program = step.op, keeper.program

    def by_pixel() -> Array:
        value = program.real(op, "value")
        assert value is not None
        return np.asarray(value.reshape(value.shape[0], -1).T)

    return {"constant": (keeper.keep(f"{step.index}.value", by_pixel),)}


KERNELS = r"""// Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes.
#include "producer.cuh"

// constant: (channel, pixel) of the source that each channel of the result, and that each pixel of it contributes.
XN_INLINE void moved_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int* channels = (const int*)a.constant[0];
    const int* pixel = (const int*)a.constant[1] + 2 * pixel_of(a, p);
    EACH_CHANNEL(v[i] = source_at(a, p.image, channels[2 * c + 1] + pixel[1], channels[2 * c] + pixel[0]))
}

// Number `c` of pixel `at` of one of the inputs.
XN_INLINE float part_at(const PlainArguments& a, int part, int image, long at, int c) {
    return part == 0 ? source_at(a, image, at, c) : operand_at(a, part - 1, image, at, c);
}

// number: the axis, the numbers of one step along it, how many inputs there are, and the size of each along it.
XN_INLINE void joined_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int axis = a.number[0], parts = a.number[2];
    const long pixel = pixel_of(a, p);
    if (axis == 0) {
        EACH_CHANNEL(int part = 0; int at = c; while (part + 1 < parts && at >= a.number[3 + part]) at -= a.number[3 + part++];
                     v[i] = part_at(a, part, p.image, pixel, at))
        return;
    }
    const long inner = a.number[1];
    int whole = 0, part = 0;
    for (int k = 0; k < parts; ++k) whole += a.number[3 + k];
    long at = pixel / inner % whole;
    while (part + 1 < parts && at >= a.number[3 + part]) at -= a.number[3 + part++];
    const long from = (pixel / (inner * whole) * a.number[3 + part] + at) * inner + pixel % inner;
    EACH_CHANNEL(v[i] = part_at(a, part, p.image, from, c))
}

// constant: for each row and for each column four of the source and the bits of their weights.
XN_INLINE void cubic_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int* y = (const int*)a.constant[0] + 8 * p.y;
    const int* x = (const int*)a.constant[1] + 8 * p.x;
    for (int r = 0; r < 4; ++r) {
        const float weight = __uint_as_float((u32)y[4 + r]);
        EACH_CHANNEL(float row = __fmul_rn(__uint_as_float((u32)x[4]), fetch(a, p.image, y[r], x[0], c));
                     for (int k = 1; k < 4; ++k)
                         row = __fadd_rn(row, __fmul_rn(__uint_as_float((u32)x[4 + k]), fetch(a, p.image, y[r], x[k], c)));
                     v[i] = r == 0 ? __fmul_rn(weight, row) : __fadd_rn(v[i], __fmul_rn(weight, row)))
    }
}

// number[0]: 0 where each number is one of the source, 2 for four by four of them. Otherwise constant: for each row and for
// each column two of the source and the bits of their weights.
XN_INLINE void enlarged_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    if (a.number[0] == 0) return moved_values(a, p, v);
    if (a.number[0] == 2) return cubic_values(a, p, v);
    const int* y = (const int*)a.constant[0] + 4 * p.y;
    const int* x = (const int*)a.constant[1] + 4 * p.x;
    const float y0 = __uint_as_float((u32)y[2]), y1 = __uint_as_float((u32)y[3]);
    const float x0 = __uint_as_float((u32)x[2]), x1 = __uint_as_float((u32)x[3]);
    EACH_CHANNEL(const float above = __fadd_rn(__fmul_rn(x0, fetch(a, p.image, y[0], x[0], c)),
                                               __fmul_rn(x1, fetch(a, p.image, y[0], x[1], c)));
                 const float under = __fadd_rn(__fmul_rn(x0, fetch(a, p.image, y[1], x[0], c)),
                                               __fmul_rn(x1, fetch(a, p.image, y[1], x[1], c)));
                 v[i] = __fadd_rn(__fmul_rn(y0, above), __fmul_rn(y1, under)))
}

struct Window {
    int top, bottom, left, right;
};
XN_INLINE Window window_of(const PlainArguments& a, const Place& p) {
    Window w;
    w.top = (int)((long)p.y * a.h / a.oh);
    w.bottom = (int)(((long)(p.y + 1) * a.h + a.oh - 1) / a.oh);
    w.left = (int)((long)p.x * a.w / a.ow);
    w.right = (int)(((long)(p.x + 1) * a.w + a.ow - 1) / a.ow);
    return w;
}

XN_INLINE void adaptive_means(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const Window w = window_of(a, p);
    for (int y = w.top; y < w.bottom; ++y)
        for (int x = w.left; x < w.right; ++x) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], fetch(a, p.image, y, x, c))) }
    const float size = __int2float_rn((w.bottom - w.top) * (w.right - w.left));
    EACH8(v[i] = __fdiv_rn(v[i], size))
}

XN_INLINE float greater_of(float best, float u) { return u <= best ? best : best != best ? best : u; }  // a NaN wins and stays

XN_INLINE void adaptive_maxima(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const Window w = window_of(a, p);
    EACH8(v[i] = -__uint_as_float(0x7f800000u))
    for (int y = w.top; y < w.bottom; ++y)
        for (int x = w.left; x < w.right; ++x) { EACH_CHANNEL(v[i] = greater_of(v[i], fetch(a, p.image, y, x, c))) }
}

// number: rows and columns of the kernel, the stride, the padding and the dilation.
XN_INLINE void dilated_maxima(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH8(v[i] = -__uint_as_float(0x7f800000u))
    for (int ky = 0; ky < a.number[0]; ++ky)
        for (int kx = 0; kx < a.number[1]; ++kx) {
            const int y = p.y * a.number[2] - a.number[4] + ky * a.number[6], x = p.x * a.number[3] - a.number[5] + kx * a.number[7];
            if (y >= 0 && y < a.h && x >= 0 && x < a.w) { EACH_CHANNEL(v[i] = greater_of(v[i], fetch(a, p.image, y, x, c))) }
        }
}

// constant: [pixel][channel].
XN_INLINE void constant_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const float* value = (const float*)a.constant[0] + pixel_of(a, p) * a.oc;
    EACH_CHANNEL(v[i] = value[c])
}

PLAIN(moved, moved_values(a, p, v))
PLAIN(concat, joined_values(a, p, v))
PLAIN(upsample, enlarged_values(a, p, v))
PLAIN(adaptive_mean, adaptive_means(a, p, v))
PLAIN(adaptive_max, adaptive_maxima(a, p, v))
PLAIN(dilated_max, dilated_maxima(a, p, v))
PLAIN(constant_value, constant_values(a, p, v))
"""

ENTRY: dict[str, str] = {}
STAGES: tuple[str, ...] = ()
PRODUCERS = {
    **{
        name: Producer(KERNELS, "moved", _moved)
        for name in (
            "slice", "flip", "expand", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "edge_pad2d",
        )
    },
    "concat": Producer(KERNELS, "concat", _concat),
    "upsample2d": Producer(KERNELS, "upsample", _upsample2d),
    "adaptive_avg_pool2d": Producer(KERNELS, "adaptive_mean"),
    "adaptive_max_pool2d": Producer(KERNELS, "adaptive_max"),
    "dilated_max_pool2d": Producer(KERNELS, "dilated_max", _window),
    "constant": Producer(KERNELS, "constant_value", _constant),
}  # fmt: skip
