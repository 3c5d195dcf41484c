"""A program for images of one size, without operations that take their size from another value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from xnorpp.runtime.format.ops import operations
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.sizes import of_one_size, place_by


def check_program(program: Any) -> None:
    """Refuse what is no program, such as a loaded model or a path."""
    if not isinstance(program, Program):
        raise TypeError(
            f"`program` is {type(program).__name__}; a Program is needed, which `model.program` is and "
            "xnorpp.runtime.read(path) gives"
        )


def for_one_size(program: Program) -> Program:
    """The program for its `input_shape` alone, with the numbers that its rules give there."""
    if not program.variable and all(operations()[op.op].since < 3 for op in program.ops):
        return program
    ops: list[Op] = []
    for op in program.ops:
        size = program.values[op.output].shape[1:]
        if op.op == "fit2d":
            ops += _fitted(program, op)
        elif op.op == "reshape_to":
            shape = list(program.values[op.output].shape)
            ops.append(replace(op, op="reshape", inputs=op.inputs[:1], attrs={"shape": shape}))
        else:
            ops.append(of_one_size(op, size) if op.op == "resize2d" else op)
    return replace(program, ops=tuple(ops), free_axes=())


def _fitted(program: Program, op: Op) -> Iterator[Op]:
    """A slice where rows or columns leave, and a padding where some come; one of them at least."""
    before, after = program.values[op.inputs[0]].shape, program.values[op.output].shape
    firsts = [place_by(place, after[axis] - before[axis]) for axis, place in zip((1, 2), op.attrs["before"])]
    lasts = [after[axis] - before[axis] - first for axis, first in zip((1, 2), firsts)]
    edges = [n for pair in zip(firsts, lasts, strict=True) for n in pair]
    source, more = op.inputs[0], any(n > 0 for n in edges)
    if not more or any(n < 0 for n in edges):
        attrs: dict[str, Any] = {
            "start": [0, *(max(0, -first) for first in firsts)],
            "stop": [None, *(last if last < 0 else None for last in lasts)],
            "step": [1, 1, 1],
        }
        cut = _new_name(program, op) if more else op.output
        yield Op("slice", op.name, (source,), cut, attrs)
        source = cut
    if more:
        padding, mode = [max(0, n) for n in edges], op.attrs["mode"]
        if mode == "constant":
            attrs = {"padding": [0, 0, *padding], "value": op.attrs["value"]}
            yield Op("pad2d", op.name, (source,), op.output, attrs)
        else:
            yield Op("edge_pad2d", op.name, (source,), op.output, {"padding": padding, "mode": mode})


def _new_name(program: Program, op: Op) -> str:
    name = f"{op.output} cut"
    while name in program.values:
        name += "'"
    return name
