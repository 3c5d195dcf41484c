"""Padding before a convolution as its own: a binary convolution pads both sides alike, and may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import reshaped, sliced
from xnorpp.packing.trace import Trace


@dataclass(frozen=True)
class Border:
    """A value without its padding, and the convolution that pads both sides alike instead.

    `padding` is at least what the model pads before rows and columns, by whole strides: `begin` rows and
    columns of the result are too many, and perhaps some after `shape`, that of the result.
    """

    source: Node
    filling: float
    padding: list[int]
    begin: tuple[int, int]
    wide: tuple[int, ...]
    shape: tuple[int, ...]

    def cut(self, trace: Trace, made: Node) -> Node:
        for axis, begin in enumerate(self.begin, 1):
            made = sliced(trace, made, axis, begin, begin + self.shape[axis])
        return made


def border_of(
    trace: Trace, source: Node, reach: list[int], attrs: dict[str, Any], shape: tuple[int, ...]
) -> Border:
    """`attrs` are those of conv2d, `reach` how far its kernel reaches, and `shape` that of the result."""
    padding = [int(n) for n in attrs["padding"]]
    plain = Border(source, 0.0, padding, (0, 0), shape, shape)
    found = _padded(trace, source)
    if found is None:
        return plain
    inner, sides, filling = found
    if any(padding) and filling:
        return plain
    sides = [(before + own, after + own) for (before, after), own in zip(sides, padding)]
    steps = [-(min(before - after, 0) // stride) for (before, after), stride in zip(sides, attrs["stride"])]
    both = [
        max(before + step * stride, 0) for (before, _), step, stride in zip(sides, steps, attrs["stride"])
    ]
    size = [
        (n + 2 * p - r - 1) // stride + 1
        for n, p, r, stride in zip(inner.shape[1:], both, reach, attrs["stride"])
    ]
    return Border(inner, filling, both, (steps[0], steps[1]), (shape[0], *size), shape)


def _padded(trace: Trace, source: Node) -> tuple[Node, list[tuple[int, int]], float] | None:
    """The value inside a constant padding, what is before and after rows and columns, and the constant."""
    outer = source.inputs[0] if source.op == "reshape" else source
    if outer.op != "pad2d":
        return None
    front, back, top, bottom, left, right = (int(n) for n in outer.attrs["padding"])
    if front or back or min(top, bottom, left, right) < 0:
        return None
    filling = float(outer.attrs["value"])
    if outer is source:
        return source.inputs[0], [(top, bottom), (left, right)], filling
    c, length, one = outer.shape  # a sequence was padded as a column, and is a row here
    if one != 1 or left or right or source.shape != (c, 1, length):
        return None
    row = reshaped(trace, outer.inputs[0], (c, 1, length - top - bottom))
    return row, [(0, 0), (top, bottom)], filling
