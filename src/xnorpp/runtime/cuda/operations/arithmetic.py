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


PRODUCERS = {name: Producer("arithmetic.cu", "combine", _combine) for name in _FUNCTIONS}
