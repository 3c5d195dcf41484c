"""Numbers that move and stay as they are."""

from __future__ import annotations

import math
from typing import Any

from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.plan import Step


def steps_of(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """How far apart neighbours along each axis are, in channels and in pixels."""
    return [(1, 0), *((0, math.prod(shape[axis + 1 :])) for axis in range(1, len(shape)))]


def _permute(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    axes, source = step.op.attrs["axes"], keeper.program.values[step.source].shape
    steps = [steps_of(source)[axis] for axis in axes]
    fill = [0] * (8 - len(axes))
    sizes = [*(source[axis] for axis in axes), *fill]
    channels, pixels = ([*(pair[i] for pair in steps), *fill] for i in (0, 1))
    return {"number": (len(axes), *sizes, *channels, *pixels)}


KERNELS = r"""// Numbers that move and stay as they are.
#include "producer.cuh"

// number: rank, then for each axis of the result its size, and its step in channels and in pixels of the source.
XN_INLINE void permuted_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int rank = a.number[0];
    long rest = pixel_of(a, p), pixel = 0, channel = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
        const int size = a.number[1 + axis];
        pixel += rest % size * a.number[17 + axis];
        channel += rest % size * a.number[9 + axis];
        rest /= size;
    }
    EACH_CHANNEL(v[i] = source_at(a, p.image, pixel + (long)c * a.number[17], (int)(channel + (long)c * a.number[9])))
}

XN_INLINE void reshaped_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const long wide = (long)a.oh * a.ow, pixels = (long)a.h * a.w, first = pixel_of(a, p);
    EACH_CHANNEL(const long at = c * wide + first; v[i] = source_at(a, p.image, at % pixels, (int)(at / pixels)))
}

PLAIN(permute, permuted_values(a, p, v))
PLAIN(reshape, reshaped_values(a, p, v))
"""

ENTRY = {"flatten": "flatten", "pad2d": "pad", "signs": "signs"}
STAGES: tuple[str, ...] = ()
PRODUCERS = {
    "permute": Producer(KERNELS, "permute", _permute),
    "reshape": Producer(KERNELS, "reshape"),
}
