"""Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from xnorpp.runtime.cuda.launch import Array, extent
from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.plan import Step
from xnorpp.runtime.reference import apply
from xnorpp.runtime.reference.moves import cubic_taps, taps


def _tables(keeper: Keeper, step: Step) -> tuple[Array, Array]:
    """Where each number comes from: (channel, pixel) that its channel and that its pixel contribute.

    Found by moving the numbers 0, 1, 2, ... as the reference does: a place of the source is the sum of what a
    channel and what a pixel contribute in all of these operations.
    """
    assert step.op is not None
    program, source = keeper.program, keeper.program.values[step.source].shape
    places = np.arange(math.prod(source), dtype=np.float64).reshape(1, *source)
    moved = apply(program, step.op, places).astype(np.int64).reshape(step.shape[0], -1)
    pixels = math.prod(source[1:])
    channel, pixel = moved // pixels, moved % pixels
    columns = np.stack([channel[:, 0], pixel[:, 0]], axis=1)
    rows = np.stack([channel[0] - channel[0, 0], pixel[0] - pixel[0, 0]], axis=1)
    return columns.astype(np.int32), rows.astype(np.int32)


def _moved(keeper: Keeper, step: Step) -> dict[str, Any]:
    key = f"{step.index}.moved"
    channels = keeper.keep(f"{key}.channels", lambda: _tables(keeper, step)[0])
    return {"constant": (channels, keeper.keep(f"{key}.pixels", lambda: _tables(keeper, step)[1]))}


MOST_PARTS = 4  # inputs of one launch


def in_short_joins(program: Program) -> Program:
    """The same program with concatenations of many values as chains of concatenations of few."""
    if all(op.op != "concat" or len(op.inputs) <= MOST_PARTS for op in program.ops):
        return program
    ops: list[Op] = []
    for op in program.ops:
        while op.op == "concat" and len(op.inputs) > MOST_PARTS:
            begun = f"{op.output} up to {len(op.inputs)}"
            while begun in program.values:
                begun += "'"
            ops.append(replace(op, name=begun, inputs=op.inputs[:MOST_PARTS], output=begun))
            op = replace(op, inputs=(begun, *op.inputs[MOST_PARTS:]))
        ops.append(op)
    return replace(program, ops=tuple(ops))


def _concat(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    axis, values = step.op.attrs["axis"], keeper.program.values
    sizes = [values[name].shape[axis] for name in step.op.inputs]
    return {"number": (axis, math.prod(step.shape[axis + 1 :]), len(sizes), *sizes)}


def _upsample2d(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    mode = step.op.attrs["mode"]
    if mode not in ("bilinear", "bicubic"):
        return {**_moved(keeper, step), "number": (0,)}
    op, (_, h, w) = step.op, extent(keeper.program.values[step.source].shape)

    def table(axis: int) -> Array:
        """Rows or columns of places and as many weights, these as the bits of float32."""
        if mode == "bicubic":
            places, weights = cubic_taps(op, (h, w)[axis], axis)
            return np.asarray(np.concatenate([places.astype(np.int32), weights.view(np.int32)]).T)
        first, second, low, high = taps(op, (h, w)[axis], axis)
        rows = [part.astype(np.int32) for part in (first, second)]
        return np.stack([*rows, low.view(np.int32), high.view(np.int32)], axis=1)

    key = f"{step.index}.taps"
    rows, columns = (keeper.keep(f"{key}.{axis}", lambda axis=axis: table(axis)) for axis in (0, 1))  # type: ignore[misc]
    return {"constant": (rows, columns), "number": (1 if mode == "bilinear" else 2,)}


def _window(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    names = ("kernel", "stride", "padding", "dilation")
    return {"number": tuple(int(n) for name in names for n in step.op.attrs[name])}


def _constant(keeper: Keeper, step: Step) -> dict[str, Any]:
    """The value as [pixel][channel]."""
    assert step.op is not None
    op, program = step.op, keeper.program

    def by_pixel() -> Array:
        value = program.real(op, "value")
        assert value is not None
        return np.asarray(value.reshape(value.shape[0], -1).T)

    return {"constant": (keeper.keep(f"{step.index}.value", by_pixel),)}


PRODUCERS = {
    **{
        name: Producer("moves.cu", "moved", _moved)
        for name in (
            "slice", "flip", "expand", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "edge_pad2d",
        )
    },
    "concat": Producer("moves.cu", "concat", _concat),
    "upsample2d": Producer("moves.cu", "upsample", _upsample2d),
    "adaptive_avg_pool2d": Producer("moves.cu", "adaptive_mean"),
    "adaptive_max_pool2d": Producer("moves.cu", "adaptive_max"),
    "dilated_max_pool2d": Producer("moves.cu", "dilated_max", _window),
    "constant": Producer("moves.cu", "constant_value", _constant),
}  # fmt: skip
