"""Values of two numbers: what follows from nothing but the sign of one value.

Much public code has no binary layer, but torch's own functions: `torch.sign`, a comparison and a choice, or a
straight-through estimator around them. What follows from one sign takes three numbers, for the value below 0,
at 0 and above 0. They are followed through the graph; where two are equal, the value is one bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import permuted, reshaped
from xnorpp.packing.operations.arguments import affine
from xnorpp.packing.trace import Trace


@dataclass(frozen=True)
class Levels:
    """What a value is where `root` is below 0, at 0 and above 0: (3, 1), or (3, c) by channels.

    It is NaN where it depends on more than that sign.
    """

    root: Node | None  # None: a constant, or unknown
    numbers: Array

    @property
    def uniform(self) -> bool:
        return bool((self.numbers == self.numbers[:, :1]).all())


_UNKNOWN = Levels(None, np.full((3, 1), np.nan))


def levels_of(trace: Trace, node: Node) -> Levels:
    """The levels of a value."""
    stack = [node]
    while stack:
        last = stack[-1]
        missing = [source for source in _followed(last) if id(source) not in trace.levels]
        stack += missing
        if not missing:
            if id(last) not in trace.levels:
                given = [trace.levels[id(source)][1] for source in _followed(last)]
                trace.levels[id(last)] = last, _levels(trace, last, given)
            stack.pop()
    found: Levels = trace.levels[id(node)][1]
    return found


def _followed(node: Node) -> list[Node]:
    """The values that the levels of a value follow from."""
    if node.op == "signs":
        return node.inputs[0].inputs
    return node.inputs if node.op in _POINTWISE or node.op in _KEPT or node.op in _PICKED else []


def _levels(trace: Trace, node: Node, given: list[Levels]) -> Levels:
    if node.op == "constant":
        return _of_constant(node)
    if node.op == "signs":
        return _of_sign(node.inputs[0].inputs[0], given[0])
    roots = [own.root for own in given if own.root is not None]
    if node.op in _PICKED:
        return _of_picked(trace, node, given) if roots else _UNKNOWN
    if not roots or any(root is not roots[0] for root in roots):
        return _UNKNOWN
    if node.op in _POINTWISE:
        known = node.shape == roots[0].shape
        return (
            Levels(roots[0], _POINTWISE[node.op](node, *(own.numbers for own in given)))
            if known
            else _UNKNOWN
        )
    if not given[0].uniform:
        return _UNKNOWN
    moved = (
        permuted(trace, roots[0], node.attrs["axes"])
        if node.op == "permute"
        else reshaped(trace, roots[0], node.shape)
    )
    return Levels(moved, given[0].numbers[:, :1])


def _of_constant(node: Node) -> Levels:
    rows = node.tensors["value"].reshape(node.shape[0], -1).astype(np.float64)
    return Levels(None, np.tile(rows[:, 0], (3, 1))) if (rows == rows[:, :1]).all() else _UNKNOWN


def _of_sign(argument: Node, inner: Levels) -> Levels:
    if inner.root is not None and np.isfinite(inner.numbers).all():
        return Levels(inner.root, np.where(inner.numbers > 0, 1.0, -1.0))
    root, turned = argument, np.ones(1)
    while root.op == "affine" and not root.spatial and not np.any(root.tensors.get("add", 0)):
        mult = root.tensors.get("mult", np.ones(1))
        if not (np.abs(mult) == 1).all():
            break
        root, turned = root.inputs[0], turned * mult
    return Levels(root, np.stack([-turned, -np.ones_like(turned), turned]))


def _affine(node: Node, x: Array) -> Array:
    if node.spatial:
        return x * np.nan
    return np.asarray(x * node.tensors.get("mult", 1.0) + node.tensors.get("add", 0.0))


def _mul(node: Node, a: Array, b: Array) -> Array:
    """0 times a value is 0: so a choice is written."""
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _of_picked(trace: Trace, node: Node, given: list[Levels]) -> Levels:
    """Numbers that are picked from values of the same two numbers are of these two."""
    numbers = np.unique(np.concatenate([own.numbers.reshape(-1) for own in given]))
    if node.op == "pad2d":
        numbers = np.unique(np.append(numbers, float(node.attrs["value"])))
    nearest = node.op not in ("upsample2d", "resize2d") or node.attrs.get("mode", "nearest") == "nearest"
    largest = node.op != "reduce" or node.attrs["function"] in ("max", "min")
    if len(numbers) != 2 or not np.isfinite(numbers).all() or not nearest or not largest:
        return _UNKNOWN
    middle = numbers.mean()
    root = affine(trace, node, None, np.array([-middle])) if middle else node
    trace.keep(root, node, lambda t: t - middle)
    return Levels(root, numbers[[0, 0, 1]].reshape(3, 1))


_POINTWISE: dict[str, Any] = {
    "affine": _affine,
    "add": lambda node, a, b: a + b,
    "sub": lambda node, a, b: a - b,
    "mul": _mul,
    "relu": lambda node, x: np.maximum(x, 0.0),
    "prelu": lambda node, x: np.where(x > 0, x, x * node.tensors["slope"]),
    "hardtanh": lambda node, x: np.clip(x, node.attrs["min"], node.attrs["max"]),
}

_KEPT = ("reshape", "flatten", "permute")
_PICKED = (
    *("slice", "concat", "expand", "flip", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"),
    *("pad2d", "edge_pad2d", "upsample2d", "resize2d"),
    *("max_pool2d", "dilated_max_pool2d", "adaptive_max_pool2d", "reduce"),
)


@dataclass(frozen=True)
class TwoNumbers:
    """A value `half*s + middle`, s the signs of `bits`; `half` and `middle` (1,), or (c,) by channels."""

    bits: Node
    half: Array
    middle: Array


def two_numbers(trace: Trace, node: Node) -> TwoNumbers | None:
    """A value as bits, or None where it is none of two numbers."""
    levels = levels_of(trace, node)
    below, at, above = levels.numbers
    half, middle = (above - below) / 2, (above + below) / 2
    if levels.root is None or not (np.isfinite(half) & (half != 0)).all():
        return None
    if (at == below).all():
        return TwoNumbers(trace.emit_sign(levels.root), half, middle)
    if (at == above).all():
        opposite = affine(trace, levels.root, np.array([-1.0]), None)
        trace.keep(opposite, levels.root, torch.neg)
        return TwoNumbers(trace.emit_sign(opposite), -half, middle)
    return None
