"""`torch.einsum` as permutes, products and sums: two operands at a time, from the left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from string import ascii_letters
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.places import Place
from xnorpp.packing.moves.views import permuted, reshaped
from xnorpp.packing.operations.arguments import Handler, affine
from xnorpp.packing.operations.product import bit_product, weighed_values
from xnorpp.packing.operations.reduction import emit_reduce
from xnorpp.packing.trace import Trace


@dataclass(frozen=True)
class Operand:
    """A value or a constant, and the letter of each axis; the batch has none."""

    value: Node | Array
    letters: str

    def size(self, letter: str) -> int:
        return int(self.value.shape[self.letters.index(letter)])


def einsum(trace: Trace, result: Tensor, equation: str, *tensors: Any) -> Node:
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    letters, output = _letters(trace, equation, tensors)
    if any(len(set(own)) != len(own) for own in letters):
        raise trace.fail("with a letter twice in an operand is not supported", "take the diagonal outside")
    places = {own[trace.batch_axis(t)] for own, t in zip(letters, tensors) if trace.is_value(t)}
    kinds = {replace(trace.place(t), axis=0) for t in tensors if trace.is_value(t)}
    batch, kind = min(places), min(kinds, key=lambda k: k.count)
    if len(places) > 1 or len(kinds) > 1 or batch not in output:
        raise trace.fail(
            f"of {equation!r} mixes images, which is not supported", "leave each image to itself"
        )
    # A batch that is merged with another axis gives that axis a letter of its own.
    more = (
        next(c for c in ascii_letters if all(c not in own for own in (*letters, output)))
        if kind.count
        else ""
    )
    operands = []
    for own, t in zip(letters, tensors):
        if trace.is_value(t):
            operands.append(Operand(trace.node(t, anywhere=True), own.replace(batch, more)))
        else:
            value = trace.constant(t)
            if batch in own:
                value, own = (
                    _of_each_image(trace, value, own.index(batch), kind),
                    own.replace(batch, more),
                )
            operands.append(Operand(value, own))
    trace.set_place(result, replace(kind, axis=output.index(batch)))
    return _contracted(trace, operands, output.replace(batch, more))


def _of_each_image(trace: Trace, value: Array, axis: int, kind: Place) -> Array:
    """A constant that was repeated for every image, as learned queries are, without the axis of images."""
    apart = trace.plain_of(torch.from_numpy(value), replace(kind, axis=axis)).numpy()
    first: Array = apart.take(0, axis)
    if (apart != np.expand_dims(first, axis)).any():
        raise trace.fail("has a constant that differs from image to image", "give every image the same")
    return np.asarray(first)


def _letters(trace: Trace, equation: str, tensors: tuple[Any, ...]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with those of `...` and of a result that is left out."""
    given, arrow, output = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    free = [c for c in reversed(ascii_letters) if c not in equation]
    dots = ""
    for i, (part, t) in enumerate(zip(parts, tensors)):
        if "..." in part:
            count = t.dim() - len(part.replace("...", ""))
            while len(dots) < count:
                dots = free.pop(0) + dots
            parts[i] = part.replace("...", dots[len(dots) - count :])
    if not arrow:
        seen = "".join(given.replace("...", "").split(","))
        output = "..." + "".join(sorted(c for c in set(seen) if seen.count(c) == 1))
    return parts, output.replace("...", dots)


def _contracted(trace: Trace, operands: list[Operand], output: str) -> Node:
    while len(operands) > 1:
        first, second, *rest = operands
        needed = set(output).union(*(operand.letters for operand in rest))
        operands = [_pair(trace, first, second, needed), *rest]
    (last,) = operands
    last = _summed(trace, last, set(output))
    assert isinstance(last.value, Node)
    missing = [letter for letter in output if letter not in last.letters]
    if missing:
        raise trace.fail(f"has {missing[0]!r} in its result alone", "name letters of the operands only")
    return permuted(trace, last.value, [last.letters.index(letter) for letter in output])


def _summed(trace: Trace, operand: Operand, needed: set[str]) -> Operand:
    """Sums over the letters that nothing needs."""
    axes = [i for i, letter in enumerate(operand.letters) if letter not in needed]
    if not axes:
        return operand
    letters = "".join(letter for letter in operand.letters if letter in needed)
    if not isinstance(operand.value, Node):
        return Operand(operand.value.sum(axis=tuple(axes)), letters)
    made = emit_reduce(trace, operand.value, "sum", axes)
    shape = [n for i, n in enumerate(made.shape) if i not in axes]
    return Operand(reshaped(trace, made, shape or [1]), letters or _one(operand.letters))


def _one(letters: str) -> str:
    """The letter of the single element that a sum over everything leaves."""
    return letters[0]


def _pair(trace: Trace, first: Operand, second: Operand, needed: set[str]) -> Operand:
    first = _summed(trace, first, needed | set(second.letters))
    second = _summed(trace, second, needed | set(first.letters))
    both = [c for c in first.letters if c in second.letters]
    shared, inner = [c for c in both if c in needed], [c for c in both if c not in needed]
    left, right = ([c for c in own.letters if c not in both] for own in (first, second))
    letters = "".join([*shared, *left, *right])
    sizes = [(first if c in first.letters else second).size(c) for c in letters]
    if not isinstance(first.value, Node) and not isinstance(second.value, Node):
        own = f"{first.letters},{second.letters}->{letters}"
        return Operand(np.einsum(own, first.value, second.value), letters)
    wide = [
        _as_value(trace, first, [*shared, *left, *inner]),
        _as_value(trace, second, [*shared, *inner, *right]),
    ]
    deep, rows, columns = (math.prod(op.size(c) for c in part) for op, part in
                           ((first, inner), (first, left), (second, right)))  # fmt: skip
    lead = [first.size(c) for c in shared]
    if not inner:
        shapes = ([*lead, *(first.size(c) for c in left), *[1] * len(right)],
                  [*lead, *[1] * len(left), *(second.size(c) for c in right)])  # fmt: skip
        nodes = [reshaped(trace, node, shape or [1]) for node, shape in zip(wide, shapes)]
        attrs = None if nodes[0].shape == nodes[1].shape else {"broadcast": True}
        return Operand(trace.emit("mul", nodes, tuple(sizes or [1]), attrs), letters or "?")
    flat = [math.prod(lead)] if shared else []
    nodes = [reshaped(trace, wide[0], [*flat, rows, deep]), reshaped(trace, wide[1], [*flat, deep, columns])]
    made = bit_product(trace, *nodes) or weighed_values(trace, *nodes)
    made = made or trace.emit("matmul", nodes, (*flat, rows, columns))
    return Operand(reshaped(trace, made, sizes or [1]), letters or "?")


def _as_value(trace: Trace, operand: Operand, letters: list[str]) -> Node:
    """The operand with its axes in this order."""
    order = [operand.letters.index(c) for c in letters]
    if isinstance(operand.value, Node):
        return permuted(trace, operand.value, order)
    value = np.ascontiguousarray(operand.value.transpose(order)).astype(np.float32)
    value = value.reshape(value.shape or (1,))
    made = trace.emit("constant", [trace.input], value.shape, None, {"value": value})
    return affine(trace, made, None, None) if not letters else made


FUNCTIONS: dict[str, Handler] = {"einsum": einsum}
