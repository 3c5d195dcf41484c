"""How a program runs: what it takes, and one operation after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from xnorpp.runtime.format.batch import check_input, shape_of_batch
from xnorpp.runtime.format.preprocess import normalise as normalise_images
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.reference import (
    activation,
    arithmetic,
    convolution,
    moves,
    product,
    reduction,
    shape,
    sizes,
    window,
)
from xnorpp.runtime.reference.arrays import F32, Array
from xnorpp.runtime.reference.rows import ROWS, apply

for _family in (convolution, product, reduction, arithmetic, activation, window, shape, moves, sizes):
    ROWS.update(_family.ROWS)


def normalise(program: Program, x: Array) -> F32:
    """uint8 `(n, h, w, c)` -> `(x/255 - mean)/std` as float32 `(n, c, h, w)`; float32 passes unchanged."""
    if x.dtype != np.uint8:
        return x.astype(np.float32, copy=False)
    return normalise_images(x, program.mean, program.std)


def byte_values(program: Program) -> F32:
    """What `normalise` makes of each byte: `(256, c)`, or `(256, 1)` where all channels are alike."""
    one = len(set(program.mean)) == len(set(program.std)) == 1
    mean, std = (np.asarray(row[:1] if one else row, np.float32) for row in (program.mean, program.std))
    table: F32 = (np.arange(256, dtype=np.float32) / np.float32(255))[:, None] - mean
    table /= std
    return table


def run(program: Program, x: Array, keep: Iterable[str] | None = None) -> Any:
    """The output for a batch, a dict by name where there are several; with `keep` (value names), the output
    and a dict of those values."""
    wanted = set(keep) if keep is not None else set()
    last = {name: index for index, op in enumerate(program.ops) for name in op.inputs}
    given = check_input(program, x)
    if program.variable:
        program = program.for_input(shape_of_batch(given))
    outputs = program.outputs
    values: dict[str, Array] = {INPUT: normalise(program, given)}
    kept = {INPUT: values[INPUT]} if INPUT in wanted else {}
    for index, op in enumerate(program.ops):
        if "byte_weight" in op.tensors and given.dtype == np.uint8:
            values[op.output] = convolution.byte_conv(program, op, given)
        else:
            values[op.output] = apply(program, op, *(values[name] for name in op.inputs))
        if op.output in wanted:
            kept[op.output] = values[op.output]
        for name in set(op.inputs):
            if last[name] == index and name not in outputs.values():
                del values[name]
    found = {name: values[value] for name, value in outputs.items()}
    result = found if len(found) > 1 else values[program.output]
    return (result, kept) if keep is not None else result
