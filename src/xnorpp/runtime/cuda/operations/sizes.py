"""Values that get the size of another one, whatever that is: a plan knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from xnorpp.runtime.cuda.launch import Array, extent
from xnorpp.runtime.cuda.operations import moves, shape
from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.plan import Step
from xnorpp.runtime.reference.sizes import POOLS, of_one_size, places

# What `number[0]` of the kernel is for an adaptive pool; moves.py has the smaller ones.
_POOLED = {"mean": 3, "max": 4}


def _resize2d(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    mode = step.op.attrs["mode"]
    if mode in POOLS:
        return {"number": (_POOLED[mode],)}
    fixed = replace(step, op=of_one_size(step.op, extent(step.shape)[1:]))
    return moves.PRODUCERS["upsample2d"].arguments(keeper, fixed)


def _fit2d(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    op, (_, h, w), (_, rows, columns) = step.op, extent(keeper.program.values[step.source].shape), step.shape

    def table(axis: int) -> Array:
        return places(op, (h, w)[axis], (rows, columns)[axis], axis).astype(np.int32)

    kept = [keeper.keep(f"{step.index}.places.{axis}", lambda axis=axis: table(axis)) for axis in (0, 1)]  # type: ignore[misc]
    return {"constant": tuple(kept), "real": (float(op.attrs["value"]),)}


KERNELS = (
    moves.KERNELS.partition("\nPLAIN(")[0]
    + r"""
// number[0]: 3 for the means of windows, 4 for their maxima, otherwise as in enlarged_values.
XN_INLINE void resized_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    if (a.number[0] == 3) return adaptive_means(a, p, v);
    if (a.number[0] == 4) return adaptive_maxima(a, p, v);
    enlarged_values(a, p, v);
}

// constant: the row of the source for each row, and the column for each column; -1 where real[0] is.
XN_INLINE void fitted_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int y = ((const int*)a.constant[0])[p.y], x = ((const int*)a.constant[1])[p.x];
    if (y < 0 || x < 0) { EACH8(v[i] = a.real[0]) return; }
    EACH_CHANNEL(v[i] = fetch(a, p.image, y, x, c))
}

PLAIN(resized, resized_values(a, p, v))
PLAIN(fitted, fitted_values(a, p, v))
"""
)

ENTRY: dict[str, str] = {}
STAGES: tuple[str, ...] = ()
PRODUCERS = {
    "resize2d": Producer(KERNELS, "resized", _resize2d),
    "fit2d": Producer(KERNELS, "fitted", _fit2d),
    "reshape_to": shape.PRODUCERS["reshape"],
}
