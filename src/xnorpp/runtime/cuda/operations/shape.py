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


PRODUCERS = {
    "permute": Producer("shape.cu", "permute", _permute),
    "reshape": Producer("shape.cu", "reshape"),
}
