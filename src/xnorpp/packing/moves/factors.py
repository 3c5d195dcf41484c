"""Numbers that follow from a size, `x * (h*w) ** -0.5` or `x.sum((2, 3)) / (h*w)`, at every height and width.

A program has no such number. It counts the pixels of a value instead: a one made as large, and summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.alike import Alike, Row

_CLOSE = 2e-6  # relative: one number may have been rounded to float32
_POWERS = (-1.0, -0.5, 0.5, 1.0, -2.0, 2.0)
_MORE = (0, -1, 1)
_AXES = ((1, 2), (1,), (2,))


class Factor(NamedTuple):
    """`times * (n + more) ** power`, with the n pixels, rows or columns of another row's value."""

    row: Row
    axes: tuple[int, ...]
    more: int
    power: float
    times: float


def numbers_of(row: Row) -> list[float]:
    """The number that an operation multiplies by, in each graph."""
    return [_number(node) for node in row.nodes if node is not None]


def _number(node: Node) -> float:
    if node.op == "attention":
        return float(node.attrs["scale"])
    return float(node.tensors["mult"][0]) if "mult" in node.tensors else 1.0


def factor_of(alike: Alike, row: Row, place: int) -> Factor | None:
    """What the number of a row is a function of, or None."""
    numbers = np.array(numbers_of(row))
    graphs = range(alike.graphs)
    if len(numbers) != alike.graphs or not numbers.all():
        return None
    for other in (row.inputs[0], *alike.rows[:place]):
        shapes = [other.shape(g) for g in graphs]
        if any(len(shape) != 3 for shape in shapes):
            continue
        for axes in _AXES:
            counts = np.array([math.prod(shape[axis] for axis in axes) for shape in shapes], np.float64)
            found = _power(counts, numbers)
            if found is not None:
                return Factor(other, axes, *found)
    return None


def _power(counts: Array, numbers: Array) -> tuple[int, float, float] | None:
    for more in _MORE:
        if len(set(counts)) < 3 or (counts + more <= 0).any():
            continue
        for power in _POWERS:
            times = numbers / (counts + more) ** power
            if np.ptp(times) <= _CLOSE * abs(times).max():
                return more, power, float(np.median(times))
    return None


def counted(factor: Factor, given: Node, like: Node) -> Node:
    """The number as a value of as many axes as `like` has; `given` is the value whose pixels count."""

    def made(op: str, inputs: Sequence[Node], shape: tuple[int, ...], attrs: dict[str, Any]) -> Node:
        return Node(op, list(inputs), shape, attrs, {}, like.path, like.line, like.serial)

    one = made("constant", [_origin(given)], (1, 1, 1), {})
    one.tensors = {"value": np.ones((1, 1, 1), np.float32)}
    size = [[0, 1, 1, 0] if axis in factor.axes else None for axis in (1, 2)]
    shape = (1, *(given.shape[axis] if axis in factor.axes else 1 for axis in (1, 2)))
    attrs = {"size": size, "mode": "nearest", "align_corners": False}
    wide = made("resize2d", [one, given], shape, attrs)
    node = made("reduce", [wide], (1, 1, 1), {"function": "sum", "axes": [1, 2]})
    if factor.more:
        node = made("affine", [node], (1, 1, 1), {})
        node.tensors = {"add": np.full(1, float(factor.more))}
    for name in _STEPS[factor.power]:
        node = made(name, [node, node] if name == "mul" else [node], (1, 1, 1), {})
    if factor.times != 1:
        node = made("affine", [node], (1, 1, 1), {})
        node.tensors = {"mult": np.full(1, factor.times)}
    rank = len(like.shape)
    return node if rank == 3 else made("reshape", [node], (1,) * rank, {"shape": [1] * rank})


def by_one_number(node: Node, factor: Node | None) -> Node:
    """`x * number + another` of a value whose first axis may have any size, where an affine has one for each.

    The number is `factor`, or that of the node where it is None.
    """
    first, rank = node.inputs[0], len(node.shape)
    made = first
    if factor is None and _number(node) != 1:
        factor = Node("constant", [_origin(first)], (1,) * rank, path=node.path, line=node.line)
        factor.serial, factor.tensors = node.serial, {"value": np.full((1,) * rank, _number(node))}
    if factor is not None:
        attrs = {"broadcast": True}
        made = replace(node, op="mul", inputs=[made, factor], attrs=attrs, tensors={}, trained=None)
    if "add" in node.tensors:
        value = {"value": np.full((1,) * rank, float(node.tensors["add"][0]))}
        made = replace(node, op="offset", inputs=[made], tensors=value, trained=None)
    return made


def _origin(node: Node) -> Node:
    while node.inputs:
        node = node.inputs[0]
    return node


_STEPS: dict[float, tuple[str, ...]] = {
    -1.0: ("reciprocal",),
    -0.5: ("sqrt", "reciprocal"),
    0.5: ("sqrt",),
    1.0: (),
    -2.0: ("mul", "reciprocal"),
    2.0: ("mul",),
}
