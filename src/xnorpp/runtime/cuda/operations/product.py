"""Products of two values, softmax along an axis, and attention."""

from __future__ import annotations

import math
from typing import Any

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


PRODUCERS = {
    "matmul": Producer("product.cu", "matmul", _matmul),
    "softmax": Producer("product.cu", "soft_axis", _soft),
    "log_softmax": Producer("product.cu", "soft_axis", _soft),
    "attention": Producer("product.cu", "attention", _attention),
}
