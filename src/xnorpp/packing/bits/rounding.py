"""`torch.round` of numbers whose range is known: a whole-numbered convolution with a filter of a single 1.

Its input is rounded to the nearest whole number, halves to even, up to 32767 in magnitude. Where only two
whole numbers are possible the result is a comparison, which may be one bit of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.composed import composed_value
from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import reshaped
from xnorpp.packing.trace import Trace

MOST = 32767
_STEPS = 64  # back through the graph

Span = tuple[float, float]
_ANY: Span = (-math.inf, math.inf)
_SPANS: dict[str, Span] = {
    "sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0),
    "signs": (-1.0, 1.0),
}  # fmt: skip
_MOVES = (
    *(
        "reshape",
        "flatten",
        "permute",
        "slice",
        "flip",
        "expand",
        "concat",
        "pixel_shuffle",
        "channel_shuffle",
    ),
    *("pixel_unshuffle", "max_pool2d", "avg_pool2d", "global_avg_pool", "adaptive_avg_pool2d"),
)


def span_of(node: Node, steps: int = _STEPS) -> Span:
    """The least and the greatest number that a value may have, as far as the last operations show."""
    if node.op in _SPANS:
        return _SPANS[node.op]
    rule = _RULES.get(node.op)
    if not steps or (rule is None and node.op not in _MOVES):
        return _ANY
    given = [span_of(source, steps - 1) for source in node.inputs]
    if rule is None:
        return min(low for low, _ in given), max(high for _, high in given)
    return rule(node, given)


def _affine(node: Node, given: list[Span]) -> Span:
    if node.spatial:
        return _ANY
    mult, add = node.tensors.get("mult", np.ones(1)), node.tensors.get("add", np.zeros(1))
    ends = [_times(mult, end) + add for end in given[0]]
    return float(np.min(ends)), float(np.max(ends))


def _times(numbers: Any, end: float) -> Any:
    with np.errstate(invalid="ignore"):
        return np.where(numbers == 0, 0.0, numbers * end)


def _limited(node: Node, given: list[Span]) -> Span:
    low, high = float(node.attrs["min"]), float(node.attrs["max"])
    return min(max(given[0][0], low), high), min(max(given[0][1], low), high)


def _relu(node: Node, given: list[Span]) -> Span:
    return max(given[0][0], 0.0), max(given[0][1], 0.0)


def _prelu(node: Node, given: list[Span]) -> Span:
    low, high = given[0]
    ends = [max(low, 0.0), max(high, 0.0)]
    ends += [float(slope) for end in (low, high) for slope in _times(node.tensors["slope"], min(end, 0.0))]
    return min(ends), max(ends)


def _sum(node: Node, given: list[Span]) -> Span:
    return given[0][0] + given[1][0], given[0][1] + given[1][1]


_RULES: dict[str, Callable[[Node, list[Span]], Span]] = {
    "affine": _affine,
    "hardtanh": _limited,
    "relu": _relu,
    "prelu": _prelu,
    "add": _sum,
    "int_conv2d": lambda node, given: (given[0][0] - 0.5, given[0][1] + 0.5),
}


def rounded(trace: Trace, result: Tensor, input: Any, *, decimals: int = 0) -> Node:
    """`torch.round`."""
    source = trace.node(input)
    if decimals:
        raise trace.fail("with `decimals` is not supported", "multiply by a power of ten, round, and divide")
    low, high = span_of(source)
    if not max(abs(low), abs(high)) <= MOST:
        raise trace.fail(
            f"rounds numbers that may be beyond {MOST}, which is not supported",
            f"limit them before it: x.clamp(-{MOST}, {MOST}), or the range that is meant",
        )
    first, last = round(low), round(high)
    if last - first <= 1:
        return composed_value(trace, lambda x: _one_of_two(x, first, last), (input,), result)
    rows = math.prod(source.shape[:-1])
    image = reshaped(trace, source, (1, rows, source.shape[-1]))
    attrs = {
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "groups": 1,
        "steps": 1.0,
        "limit": MOST,
    }
    made = trace.emit("int_conv2d", [image], image.shape, attrs, {"weight": np.ones((1, 1, 1, 1), np.int8)})
    return reshaped(trace, made, source.shape)


def _one_of_two(x: Tensor, first: int, last: int) -> Tensor:
    """The even one where both are as near."""
    if first == last:
        return x * 0.0 + first
    middle = first + 0.5
    return torch.where(x > middle if first % 2 == 0 else x >= middle, float(last), float(first))
