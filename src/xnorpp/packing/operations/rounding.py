"""Whole numbers next to real ones.

A program has no operation for it: added to 1.5 * 2**23, a number of float32 is rounded to a whole one, half
to even, as torch does. What is taken off again is a node of its own, which no folding joins with the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.composed import composed_value, whole
from xnorpp.packing.graph import Node
from xnorpp.packing.trace import Trace

_LARGE = 1.5 * 2**23


def round_(trace: Trace, result: Tensor, input: Any, *, decimals: int = 0) -> Node:
    if decimals:
        raise trace.fail("with `decimals` is not supported", "scale the numbers before and after")
    node = trace.node(input)
    value = np.full((1,) * len(node.shape), _LARGE, np.float32)
    constant = trace.emit("constant", [trace.input], value.shape, None, {"value": value})
    attrs = None if value.shape == node.shape else {"broadcast": True}
    sum = trace.emit("add", [node, constant], node.shape, attrs)
    return trace.emit("sub", [sum, constant], node.shape)


def any_rounding(trace: Trace, function: str, result: Tensor, input: Any, decimals: int = 0) -> Node:
    """`round`, `floor` or `ceil` of numbers of any size."""
    if function == "round":
        return round_(trace, result, input, decimals=decimals)
    return composed_value(trace, whole.FUNCTIONS[function], (input,), result)
