"""Values of two numbers: what follows from nothing but the sign of one value.

Much public code has no binary layer, but torch's own functions: `torch.sign`, a comparison and a choice, or a
straight-through estimator around them. What follows from one sign takes three numbers, for the value below 0,
at 0 and above 0. They are followed through the graph; where two are equal, the value is one bit.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """The ends of a value where `root` is below 0, at 0 and above 0: (3, 1), or (3, c) by channels."""

    root: Node | None  # None: a constant, or unknown
    low: Array
    high: Array
    never_zero: bool = False  # the root is 0 by chance alone

    @property
    def numbers(self) -> Array:
        """One number for each of the three; NaN where it depends on more than that sign."""
        return np.where(self.low == self.high, self.low, np.nan)

    @property
    def known(self) -> bool:
        return bool((self.low == self.high).all())

    @property
    def uniform(self) -> bool:
        return all(bool((ends == ends[:, :1]).all()) for ends in (self.low, self.high))


def _exactly(root: Node | None, numbers: Array, never_zero: bool = False) -> Levels:
    return Levels(root, numbers, numbers, never_zero)


_INFINITE, _LEAST = np.full((3, 1), np.inf), np.finfo(np.float32).smallest_subnormal
_UNKNOWN = Levels(None, -_INFINITE, _INFINITE)


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
        return _of_sign(node.inputs[0].inputs[0], given[0], id(node) in trace.signs.one_bit)
    if node.op in _PICKED:
        return _of_picked(trace, node, given) if any(own.root is not None for own in given) else _UNKNOWN
    if node.op in _POINTWISE:
        return _of_pointwise(node, given)
    if node.op not in _KEPT or given[0].root is None or not given[0].uniform:
        return _UNKNOWN
    root = given[0].root
    moved = (
        permuted(trace, root, node.attrs["axes"])
        if node.op == "permute"
        else reshaped(trace, root, node.shape)
    )
    return Levels(moved, given[0].low[:, :1], given[0].high[:, :1], given[0].never_zero)


def _of_constant(node: Node) -> Levels:
    rows = node.tensors["value"].reshape(node.shape[0], -1).astype(np.float64)
    if (rows != rows[:, :1]).any():
        return _UNKNOWN
    return _exactly(None, np.tile(rows[:, 0], (3, 1)))


def _of_sign(argument: Node, inner: Levels, never_zero: bool) -> Levels:
    """Of a sign that is -1 at 0; `never_zero`: of torch.sign, which is 0 there."""
    above, others = inner.low > 0, inner.high < 0 if never_zero else inner.high <= 0
    if inner.root is not None and (above | others).all():
        return _exactly(inner.root, np.where(above, 1.0, -1.0), inner.never_zero)
    root, turned = argument, np.ones(1)
    while root.op == "affine" and not root.spatial and not np.any(root.tensors.get("add", 0)):
        mult = root.tensors.get("mult", np.ones(1))
        if not (np.abs(mult) == 1).all():
            break
        root, turned = root.inputs[0], turned * mult
    at = np.zeros_like(turned) if never_zero else -np.ones_like(turned)
    return _exactly(root, np.stack([-turned, at, turned]), never_zero)


def _of_pointwise(node: Node, given: list[Levels]) -> Levels:
    """Of values that follow from one sign, and perhaps of its argument itself, as in `y[y < 0] = -1`."""
    known = [own.root for own in given if own.known and own.root is not None]
    roots = known or [own.root for own in given if own.root is not None]
    root = roots[0] if roots else None
    if any(other is not root for other in roots) or (root is not None and root.shape != node.shape):
        return _UNKNOWN
    if root is None and not all(own.known for own in given):
        return _UNKNOWN
    ends = []
    for source, own in zip(node.inputs, given):
        if source is root:
            low = np.array([-np.inf, 0.0, _LEAST]).reshape(3, 1)
            ends += [(low, -low[::-1])]
        else:
            used = own if own.root in (None, root) else _UNKNOWN
            ends += [(used.low, used.high)]
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = _POINTWISE[node.op](node, *ends)
    never_zero = any(own.never_zero for own in given if own.root is root)
    low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    return Levels(root, low, high, never_zero)


def _of_picked(trace: Trace, node: Node, given: list[Levels]) -> Levels:
    """Numbers that are picked from values of the same two numbers are of these two."""
    numbers = np.unique(np.concatenate([_taken(own).reshape(-1) for own in given]))
    if node.op == "pad2d":
        numbers = np.unique(np.append(numbers, float(node.attrs["value"])))
    nearest = node.op not in ("upsample2d", "resize2d") or node.attrs.get("mode", "nearest") == "nearest"
    largest = node.op != "reduce" or node.attrs["function"] in ("max", "min")
    if len(numbers) != 2 or not np.isfinite(numbers).all() or not nearest or not largest:
        return _UNKNOWN
    middle = numbers.mean()
    root = affine(trace, node, None, np.array([-middle])) if middle else node
    trace.keep(root, node, lambda t: t - middle)
    return _exactly(root, numbers[[0, 0, 1]].reshape(3, 1))


Ends = tuple[Array, Array]


def _times(a: Array, b: Array) -> Array:
    """0 times a value is 0: so a choice is written."""
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _mul(node: Node, a: Ends, b: Ends) -> Ends:
    products = [_times(x, y) for x in a for y in b]
    return np.min(np.broadcast_arrays(*products), 0), np.max(np.broadcast_arrays(*products), 0)


def _affine(node: Node, x: Ends) -> Ends:
    if node.spatial:
        return -_INFINITE, _INFINITE
    low, high = _mul(node, x, (node.tensors.get("mult", np.ones(1)),) * 2)
    shift = node.tensors.get("add", 0.0)
    return low + shift, high + shift


def _prelu(node: Node, x: Ends) -> Ends:
    ends = [np.where(end > 0, end, _times(end, node.tensors["slope"])) for end in x]
    crossing = (x[0] < 0) & (x[1] > 0)
    low, high = np.minimum(*ends), np.maximum(*ends)
    return np.where(crossing, np.minimum(low, 0), low), np.where(crossing, np.maximum(high, 0), high)


def _monotone(function: Callable[[Node, Array], Array]) -> Callable[[Node, Ends], Ends]:
    return lambda node, x: (function(node, x[0]), function(node, x[1]))


_POINTWISE: dict[str, Any] = {
    "affine": _affine,
    "add": lambda node, a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda node, a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "relu": _monotone(lambda node, x: np.maximum(x, 0.0)),
    "prelu": _prelu,
    "hardtanh": _monotone(lambda node, x: np.clip(x, node.attrs["min"], node.attrs["max"])),
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
    below, at, above = _taken(levels)
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


def _taken(levels: Levels) -> Array:
    """The numbers of a value, without one that its root never makes of it."""
    below, at, above = numbers = levels.numbers
    if levels.never_zero:
        return np.stack([below, np.where(at == above, above, below), above])
    if levels.root is not None and _is_never_negative(levels.root):
        return np.stack([np.where((at == below) | (at == above), below, at), at, above])
    return numbers


def _is_never_negative(node: Node) -> bool:
    while node.op in (*_KEPT, *_PICKED, "avg_pool2d", "adaptive_avg_pool2d", "global_avg_pool"):
        if len(node.inputs) > 1 or node.attrs.get("value", 0) < 0:
            return False
        (node,) = node.inputs
    if node.op == "hardtanh":
        return bool(node.attrs["min"] >= 0)
    return node.op in ("relu", "sigmoid", "softplus", "softmax", "exp", "sqrt", "abs_mean")


def layer_input(trace: Trace, input: Any) -> Node:
    """The value that a layer with weights reads. One bit must have been meant where that is torch.sign of
    numbers that often are 0, or follows from it."""
    node = trace.node(input)
    stack = [node]
    while stack:
        source = stack.pop()
        levels = levels_of(trace, source)
        below, at, above = _taken(levels)
        if np.isfinite(above).all() and np.any((below != at) & (at != above) & (below != above)):
            for sign in trace.signs.three_way.values():
                if levels_of(trace, sign.node).root is levels.root:
                    raise trace.fail(f"reads {sign}", "use xnorpp.nn.sign instead")
        if source.op in _KEPT or source.op in _PICKED:
            stack += source.inputs
    return node
