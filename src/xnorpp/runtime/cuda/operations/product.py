"""Products of two values, convolutions of whole numbers, softmax along an axis, and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xnorpp.runtime.cuda.launch import Array
from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.plan import Step


def _matmul(keeper: Keeper, step: Step) -> dict[str, Any]:
    left, right = (keeper.program.values[name].shape for name in (step.source, step.operands[0]))
    return {"number": (int(len(left) == 2), left[-1], right[-1], left[-2])}


def _soft(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    shape, axis = keeper.program.values[step.source].shape, step.op.attrs["axis"]
    between = math.prod(shape[axis + 1 :]) if axis else 0
    return {"number": (shape[axis], between, int(step.kind == "log_softmax"))}


def _attention(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    return {"number": (step.op.attrs["heads"],), "real": (float(step.op.attrs["scale"]),)}


def _whole(keeper: Keeper, step: Step) -> dict[str, Any]:
    op, program = step.op, keeper.program
    assert op is not None
    (kh, kw), attrs = program.window(op), op.attrs

    def factors() -> Array:
        """The factor of each filter's sum, then its bias."""
        scale = program.tensors[program.scales[op.tensors["weight"]]].astype(np.float32)
        bias = program.real(op, "bias")
        rows = [scale / np.float32(attrs["steps"]), np.zeros_like(scale) if bias is None else bias]
        return np.stack(rows)

    def filters() -> Array:
        return np.ascontiguousarray(program.tensors[op.tensors["weight"]].astype(np.int32))

    weight = keeper.keep(f"{step.index}.whole", filters)
    geometry = (kh, kw, *attrs["stride"], *attrs["padding"], attrs["dilation"][0])
    return {
        "number": (*geometry, int("bias" in op.tensors)),
        "real": (float(attrs["steps"]), float(attrs["limit"])),
        "constant": (weight, keeper.keep(f"{step.index}.factors", factors)),
    }


KERNELS = r"""// Products of two values, convolutions of whole numbers, softmax along an axis, and attention.
#include "producer.cuh"

// (.., n, k) x (.., k, m). number: whether there are two axes alone, k, m, and how many pixels a row of the first has.
// Two axes: the first one is the channels, so pixel j of the result is made of all pixels of the first.
XN_INLINE void product_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const long own = pixel_of(a, p);
    const int inner = a.number[1];
    if (a.number[0]) {
        EACH_CHANNEL(for (int k = 0; k < inner; ++k) v[i] = __fmaf_rn(source_at(a, p.image, k, c), operand_at(a, 0, p.image, own, k), v[i]))
        return;
    }
    const int rows = a.number[3], columns = a.number[2];
    const long batch = own / ((long)rows * columns), row = own / columns % rows, column = own % columns;
    EACH_CHANNEL(for (int k = 0; k < inner; ++k) v[i] = __fmaf_rn(source_at(a, p.image, (batch * rows + row) * inner + k, c),
                     operand_at(a, 0, p.image, (batch * inner + k) * columns + column, c), v[i]))
}

// A convolution of whole numbers. number: rows and columns of the filters, of the stride and of the padding, the dilation of rows,
// whether there is a bias; real: steps and limit; constant: filters [o][c][kh][kw], then the factors of the sums and the biases.
XN_INLINE int whole_number(float x, float steps, float limit) {
    const float scaled = __fmul_rn(x, steps), above = scaled > -limit ? scaled : -limit;
    return (int)__fsub_rn(__fadd_rn(above < limit ? above : limit, 12582912.0f), 12582912.0f);  // 1.5 * 2^23: to the nearest
}

XN_INLINE void whole_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int kh = a.number[0], kw = a.number[1];
    const int* filters = (const int*)a.constant[0];
    const float* factors = (const float*)a.constant[1];
    int sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int row = 0; row < kh; ++row)
        for (int column = 0; column < kw; ++column) {
            const int y = p.y * a.number[2] - a.number[4] + row * a.number[6], x = p.x * a.number[3] - a.number[5] + column;
            if (y < 0 || y >= a.h || x < 0 || x >= a.w) continue;
            for (int from = 0; from < a.c; ++from) {
                const int number = whole_number(fetch(a, p.image, y, x, from), a.real[0], a.real[1]);
                EACH_CHANNEL(sum[i] += number * filters[((long)(c * a.c + from) * kh + row) * kw + column])
            }
        }
    EACH_CHANNEL(v[i] = __fmul_rn((float)sum[i], factors[c]); if (a.number[7]) v[i] = __fadd_rn(v[i], factors[a.oc + c]))
}

// number: the size of the axis, how many pixels lie between its neighbours (0: it is the channels), whether the logarithm is
// meant.
XN_INLINE float soft_value(const PlainArguments& a, int image, long own, int c) {
    const int size = a.number[0];
    const long between = a.number[1];
    const long first = between ? own - own / between % size * between : own;
    float most = between ? source_at(a, image, first, c) : source_at(a, image, own, 0);
    for (int k = 1; k < size; ++k) {
        const float u = between ? source_at(a, image, first + k * between, c) : source_at(a, image, own, k);
        most = u <= most || most != most ? most : u;
    }
    double sum = 0.0;
    for (int k = 0; k < size; ++k) {
        const float u = between ? source_at(a, image, first + k * between, c) : source_at(a, image, own, k);
        sum += curve_exp(__fsub_rn(u, most));
    }
    const float total = (float)sum, rest = __fsub_rn(source_at(a, image, own, c), most);
    return a.number[2] ? __fsub_rn(rest, curve_log(total)) : __fdiv_rn(curve_exp(rest), total);
}

XN_INLINE void soft_axis_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH_CHANNEL(v[i] = soft_value(a, p.image, pixel_of(a, p), c))
}

// number: heads; real: the scale. One pass over the keys with the largest score so far; four channels share their head's.
XN_INLINE void attended_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int heads = a.number[0], deep = a.c / heads, wide = a.oc / heads, keys = a.operand[0].pixels;
    const long own = pixel_of(a, p);
    for (int j = 0; j < 2; ++j) {
        const int c0 = channel_of(p, 4 * j);
        if (c0 >= a.oc) continue;
        const bool one = c0 / wide == (c0 + 3 < a.oc ? c0 + 3 : a.oc - 1) / wide;
        for (int e = 0; e < 4; ++e) {
            const int c = c0 + e;
            if (c >= a.oc || (one && e > 0)) continue;
            const int head = c / wide, count = one ? 4 : 1;
            float top = -XN_INFINITY, all = 0.0f;
            float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (int t = 0; t < keys; ++t) {
                float score = 0.0f;
                for (int d = 0; d < deep; ++d)
                    score = __fmaf_rn(__fmul_rn(source_at(a, p.image, own, head * deep + d), a.real[0]), operand_at(a, 0, p.image, t, head * deep + d), score);
                if (!(score <= top)) {
                    const float less = curve_exp(__fsub_rn(top, score));
                    all = __fmul_rn(all, less);
                    for (int n = 0; n < count; ++n) part[n] = __fmul_rn(part[n], less);
                    top = score;
                }
                const float weight = curve_exp(__fsub_rn(score, top));
                all = __fadd_rn(all, weight);
                for (int n = 0; n < count; ++n)
                    if (c + n < a.oc) part[n] = __fmaf_rn(weight, operand_at(a, 1, p.image, t, c + n), part[n]);
            }
            for (int n = 0; n < count; ++n) v[4 * j + e + n] = __fdiv_rn(part[n], all);
        }
    }
}

PLAIN(matmul, product_values(a, p, v))
PLAIN(whole_conv, whole_values(a, p, v))
PLAIN(soft_axis, soft_axis_values(a, p, v))
PLAIN(attention, attended_values(a, p, v))
"""

ENTRY = {
    "linear": "linear", "bitweight_linear": "linear", "binary_linear": "bit_conv",
    "softmax": "softmax",  # of a vector
}  # fmt: skip
STAGES: tuple[str, ...] = ()
PRODUCERS = {
    "int_conv2d": Producer(KERNELS, "whole_conv", _whole),
    "matmul": Producer(KERNELS, "matmul", _matmul),
    "softmax": Producer(KERNELS, "soft_axis", _soft),  # along an axis
    "log_softmax": Producer(KERNELS, "soft_axis", _soft),
    "attention": Producer(KERNELS, "attention", _attention),
}
