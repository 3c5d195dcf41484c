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


PRODUCERS = {
    "reduce": Producer("reduction.cu", "reduce", _reduce),
    "norm": Producer("reduction.cu", "norm", _norm),
}
