"""Sums, means and extremes along axes, and normalisation by them."""

from __future__ import annotations

import struct
from typing import Any

from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.plan import Step

_FUNCTIONS = ("mean", "sum", "max", "min", "l2")


def _reduce(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    shape, out = (keeper.program.values[name].shape for name in (step.source, step.op.output))
    fill = [1] * (8 - len(shape))
    function, channels = _FUNCTIONS.index(step.op.attrs["function"]), int(0 in step.op.attrs["axes"])
    return {"number": (function, channels, len(shape), *shape, *fill, *out, *fill)}


def _norm(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    a = step.op.attrs
    low, high = struct.unpack("<ii", struct.pack("<d", float(a["eps"])))
    return {"number": (a["groups"], int(a["pixels"]), int(a["centre"]), low, high)}


KERNELS = r"""// Sums, means and extremes along axes, and normalisation by them. Sums are of doubles and are rounded to float once.
#include "producer.cuh"

enum ReduceKind { MEAN, SUM, MAX, MIN, L2 };

// number: the function, whether channels are reduced, the rank, then for each axis its size in the source (from 3 on) and in
// the result (from 11 on); the first axis is the channels.
XN_INLINE float reduced_value(const PlainArguments& a, int image, long begin, int channel) {
    const int kind = a.number[0], rank = a.number[2], first = a.number[1] ? 0 : channel, last = a.number[1] ? a.c : channel + 1;
    long members = 1;
    for (int axis = 1; axis < rank; ++axis) members *= a.number[11 + axis] == 1 ? a.number[3 + axis] : 1;
    double sum = 0.0;
    float best = source_at(a, image, begin, first);
    for (long m = 0; m < members; ++m) {
        long rest = m, at = begin, step = 1;
        for (int axis = rank - 1; axis > 0; --axis) {
            const int size = a.number[3 + axis];
            if (a.number[11 + axis] == 1) {
                at += rest % size * step;
                rest /= size;
            }
            step *= size;
        }
        for (int c = first; c < last; ++c) {
            const float u = source_at(a, image, at, c);
            if (kind == MAX) best = u <= best || best != best ? best : u;
            else if (kind == MIN) best = u >= best || best != best ? best : u;
            else sum += kind == L2 ? (double)u * u : (double)u;
        }
    }
    if (kind == MAX || kind == MIN) return best;
    const double count = (double)members * (last - first);
    return (float)(kind == MEAN ? sum / count : kind == L2 ? sqrt(sum) : sum);
}

XN_INLINE void reduced_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int rank = a.number[2];
    long rest = pixel_of(a, p), begin = 0, step = 1;
    for (int axis = rank - 1; axis > 0; --axis) {
        const int size = a.number[11 + axis];
        if (size > 1) begin += rest % size * step;
        rest /= size;
        step *= a.number[3 + axis];
    }
    EACH_CHANNEL(v[i] = reduced_value(a, p.image, begin, c))
}

// number: groups, whether all pixels belong together, whether the mean is subtracted; `eps` as two halves of a double.
XN_INLINE void normal_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int groups = a.number[0], size = a.c / groups;
    const bool all = a.number[1], centre = a.number[2];
    const double eps = __hiloint2double(a.number[4], a.number[3]);
    const long own = pixel_of(a, p), begin = all ? 0 : own, end = all ? (long)a.h * a.w : own + 1;
    int known = -1;
    float mean = 0.0f, factor = 0.0f;
    EACH_CHANNEL({
        const int group = c / size;
        if (group != known) {
            const double count = (double)(end - begin) * size;
            double sum = 0.0, squares = 0.0;
            if (centre)
                for (long at = begin; at < end; ++at)
                    for (int k = group * size; k < (group + 1) * size; ++k) sum += source_at(a, p.image, at, k);
            const double middle = centre ? sum / count : 0.0;
            for (long at = begin; at < end; ++at)
                for (int k = group * size; k < (group + 1) * size; ++k) {
                    const double u = (double)source_at(a, p.image, at, k) - middle;
                    squares += u * u;
                }
            mean = (float)middle;
            factor = (float)(1.0 / sqrt(squares / count + eps));
            known = group;
        }
        v[i] = __fmul_rn(__fsub_rn(source_at(a, p.image, own, c), mean), factor);
    })
}

PLAIN(reduce, reduced_values(a, p, v))
PLAIN(norm_lines, normal_values(a, p, v))
"""

ENTRY: dict[str, str] = {}
STAGES: tuple[str, ...] = ()
PRODUCERS = {
    "reduce": Producer(KERNELS, "reduce", _reduce),
    "norm": Producer(KERNELS, "norm_lines", _norm),
}
