"""Sums, differences, products and quotients whose operands lie on each other in any way."""

from __future__ import annotations

import math
from typing import Any

from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.plan import Step

_FUNCTIONS = ("add", "sub", "mul", "div")


def _combine(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    values = keeper.program.values
    shape = values[step.op.output].shape
    fill = [0] * (8 - len(shape))
    numbers = [_FUNCTIONS.index(step.kind), len(shape), *shape, *fill]
    for name in (step.source, *step.operands):
        own = values[name].shape
        steps = [1, *(math.prod(own[axis + 1 :]) for axis in range(1, len(own)))]
        numbers += [far if size > 1 else 0 for far, size in zip(steps, own, strict=True)] + fill
    return {"number": tuple(numbers)}


KERNELS = r"""// Sums, differences, products and quotients whose operands lie on each other in any way.
#include "producer.cuh"

// number: the function (add, sub, mul, div), the rank, the size of each axis of the result (from 2 on), and how far it goes in
// each operand (from 10 and from 18 on): the first axis in channels, the others in pixels.
XN_INLINE long place_of(const PlainArguments& a, long pixel, int first) {
    long at = 0;
    for (int axis = a.number[1] - 1; axis > 0; --axis) {
        at += pixel % a.number[2 + axis] * a.number[first + axis];
        pixel /= a.number[2 + axis];
    }
    return at;
}

XN_INLINE void combined_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int function = a.number[0];
    const long left = place_of(a, pixel_of(a, p), 10), right = place_of(a, pixel_of(a, p), 18);
    EACH_CHANNEL(const float x = source_at(a, p.image, left, c * a.number[10]); const float y = operand_at(a, 0, p.image, right, c * a.number[18]);
                 v[i] = function == 0 ? __fadd_rn(x, y) : function == 1 ? __fsub_rn(x, y) : function == 2 ? __fmul_rn(x, y) : __fdiv_rn(x, y))
}

PLAIN(combine, combined_values(a, p, v))
"""

ENTRY: dict[str, str] = {}
STAGES = ("sign", "affine", *_FUNCTIONS, "offset")
PRODUCERS = {name: Producer(KERNELS, "combine", _combine) for name in _FUNCTIONS}
