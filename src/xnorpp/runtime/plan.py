"""The plan of a program as plain data: made by the native core for every engine (`csrc/core/program/plan.h`).

A **step** is one pass over memory: a *producer* (a convolution, a pool, ...) makes a number for every channel
and pixel, and an *epilogue* of micro-operations runs on that number while it is in a register:

    binary_conv2d, Affine(row, col, mult, add), Prelu, AddValue(shortcut), StoreFloat(x), StoreBits(a)

The epilogue is a straight line. `StoreFloat` and `StoreBits` write the register as it is at their place and
leave it unchanged, so one pass can store a sum in float for the shortcut and give the next layers' bits too.
An integer dot product enters the register as float32, exactly (it is below 2**24), and is stored so. Every
value that a step reads comes from an earlier step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.ops import Value, operations
from xnorpp.runtime.format.program import Op, Program

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Spatial:
    """A constant factor per pixel: `row[h]*col[w]` (rounded to float32 first), `map[h,w]` or
    `full[c,h,w]`."""

    row: F32 | None = None
    col: F32 | None = None
    map: F32 | None = None
    full: F32 | None = None

    def dense(self) -> F32:
        """The factor as one array, `(h, w)` or `(c, h, w)`."""
        if self.row is not None and self.col is not None:
            with np.errstate(over="ignore", under="ignore"):  # infinities are values here
                return self.row[:, None] * self.col[None, :]
        factor = self.map if self.map is not None else self.full
        assert factor is not None
        return factor


@dataclass(frozen=True)
class Affine:
    """`v = (v*spatial)*mult[c] + add[c]`; an absent part is left out."""

    mult: F32 | None = None
    add: F32 | None = None
    spatial: Spatial | None = None


@dataclass(frozen=True)
class Relu:
    """`v = max(v, 0)`; NaN stays NaN."""


@dataclass(frozen=True)
class Prelu:
    """`v = v if v > 0 else v*slope[c]`; a single slope is already repeated for every channel."""

    slope: F32


@dataclass(frozen=True)
class Hardtanh:
    """`v = min(max(v, low), high)`; NaN stays NaN."""

    low: float
    high: float


@dataclass(frozen=True)
class AddValue:
    """`v = v + value`, a float value of an earlier step with the same shape."""

    value: str


@dataclass(frozen=True)
class MulValue:
    """`v = v * value`; `per_pixel`: `value` has one channel, `(1, h, w)`, shared by all."""

    value: str
    per_pixel: bool


@dataclass(frozen=True)
class Combine:
    """`v = v + value`, `-`, `*` or `/`: what `AddValue` and `MulValue` are not.

    `function` is add, sub, mul or div, `spread` how the value lies on the register: each, pixel (one channel,
    shared by all), channel (one pixel, shared by all) or one.
    """

    function: str
    value: str
    spread: str


@dataclass(frozen=True)
class Offset:
    """`v = v + constant`, an array that broadcasts to the register's shape."""

    constant: F32
    shape: tuple[int, ...]  # of the operation's own value: the register's, perhaps with other axes


@dataclass(frozen=True)
class Curve:
    """`v = function(v)`, one of `reference/curves.py`; `alpha` is ELU's."""

    function: str
    alpha: float = 0.0


@dataclass(frozen=True)
class StoreFloat:
    """Write `v` to the float value `value`."""

    value: str


@dataclass(frozen=True)
class StoreBits:
    """Write a bit: `u = v*spatial; bit = (u < threshold[c]) if flip[c] else (u > threshold[c])`.

    `integer`: `v` is the bare dot product and there is no spatial factor: the thresholds can then be
    compared as integers. Thresholds may be infinite (a constant channel).
    """

    value: str
    threshold: F32
    flip: U8
    spatial: Spatial | None
    integer: bool


MicroOp = (
    Affine | Relu | Prelu | Hardtanh | AddValue | MulValue | Combine | Offset | Curve | StoreFloat | StoreBits
)
PLAIN_ONLY = (Combine, Offset, Curve)  # not in the lines of the GPU's tensor-core kernels
SPREADS = ("each", "pixel", "channel", "one")  # as the core numbers them


@dataclass(frozen=True)
class Step:
    """One fused pass.

    `kind` is the producer's operation name, or "pointwise" where the register starts as the float value
    `source` itself (for a producer `signs`, as the -1 and +1 of the bits `source`). `op` is the program's
    producer (attributes, tensors; None for pointwise), `weight` and `bias` its tensors: packed weights as
    stored (U8), real ones as float32. `shape` is the register's shape, `(c, h, w)` or `(c,)`. `reads` are all
    values the step reads (source and operands), `writes` all it stores. `in_place` maps a stored float value
    to the operand whose memory it takes over. `feeds_pool`: its only result is one float value that only the
    next step, a max pool, reads. `packed`: the weight has one bit for each number. `window` is the rows and
    columns of a filter, `takes_bytes` states that the step has whole-numbered filters for the bytes of an
    image (`stem.py`).
    """

    index: int
    kind: str
    op: Op | None
    source: str
    shape: tuple[int, ...]
    weight: npt.NDArray[Any] | None
    bias: F32 | None
    epilogue: tuple[MicroOp, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)
    feeds_pool: bool = False
    packed: bool = False
    window: tuple[int, int] = (1, 1)
    takes_bytes: bool = False
    operands: tuple[str, ...] = ()  # further inputs of the producer


@dataclass(frozen=True)
class Plan:
    """Steps in order, and for every stored value its byte offset and size in an arena of `arena` bytes."""

    program: Program
    steps: tuple[Step, ...]
    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    arena: int

    def value(self, name: str) -> Value:
        return self.program.values[name]


def default_size(value: Value) -> int:
    """Bytes of one image's value: float32, or per pixel the channels' bits in whole 64-bit words."""
    if value.kind != "bits":
        return 4 * value.elements
    pixels = value.elements // value.shape[0]
    return 8 * pixels * ((value.shape[0] + 63) // 64)


def make_plan(program: Program, size_of: Callable[[Value], int] = default_size, align: int = 64) -> Plan:
    """The whole plan. `size_of` gives an engine's own bytes for a value (its layout, padding, word size)."""
    sizes = {name: size_of(value) for name, value in program.values.items()}
    offsets, arena, places = program.native.plan(sizes, align)
    steps = (replace(step, in_place=place) for step, place in zip(make_steps(program), places, strict=True))
    return Plan(program, tuple(steps), offsets, {name: sizes[name] for name in offsets}, arena)


def make_steps(program: Program) -> tuple[Step, ...]:
    """The fused steps that the outputs need."""
    return tuple(_step(program, index, row) for index, row in enumerate(program.native.steps()))


def _step(program: Program, index: int, row: Mapping[str, Any]) -> Step:
    op = None if row["op"] < 0 else program.ops[row["op"]]
    weighted = op is not None and "weight" in op.tensors
    return Step(
        index=index,
        kind=row["kind"],
        op=op,
        source=row["source"],
        shape=row["shape"],
        weight=_weight(program, op) if op is not None and weighted else None,
        bias=None if op is None else program.real(op, "bias"),
        epilogue=tuple(_micro(program, *move) for move in row["epilogue"]),
        reads=row["reads"],
        writes=row["writes"],
        feeds_pool=row["feeds_pool"],
        packed=op is not None and program.is_packed(op),
        window=program.window(op) if op is not None and weighted else (1, 1),
        takes_bytes=row["bytes"],
        operands=() if op is None else op.inputs[1 : len(op.inputs) - operations()[op.op].shapes],
    )


def _weight(program: Program, op: Op) -> npt.NDArray[Any] | None:
    return program.stored(op, "weight") if program.is_packed(op) else program.real(op, "weight")


def _spatial(program: Program, op: Op) -> Spatial | None:
    parts = {role: program.real(op, role) for role in ("row", "col", "map", "full")}
    return None if all(part is None for part in parts.values()) else Spatial(**parts)


def _micro(program: Program, kind: str, index: int, value: str | None, spread: int) -> MicroOp:
    """A move of the core with the constants of its operation."""
    if kind == "relu":
        return Relu()
    if kind == "store_float":
        assert value is not None
        return StoreFloat(value)
    if value is not None and kind != "store_bits":
        lies = SPREADS[spread]
        if kind == "add_value" and lies == "each":
            return AddValue(value)
        if kind == "mul_value" and lies in ("each", "pixel"):
            return MulValue(value, lies == "pixel")
        return Combine(kind.removesuffix("_value"), value, lies)
    op = program.ops[index]
    if kind == "curve":
        return Curve(op.op, float(op.attrs.get("alpha", 0.0)))
    if kind == "offset":
        constant = program.real(op, "value")
        assert constant is not None
        return Offset(constant, program.values[op.output].shape)
    if kind == "affine":
        return Affine(program.real(op, "mult"), program.real(op, "add"), _spatial(program, op))
    if kind == "hardtanh":
        return Hardtanh(float(op.attrs["min"]), float(op.attrs["max"]))
    channels = program.values[op.output].shape[0]
    if kind == "prelu":
        slope = program.real(op, "slope")
        assert slope is not None
        return Prelu(np.ascontiguousarray(np.broadcast_to(slope, (channels,))))
    threshold, flip = program.real(op, "threshold"), program.stored(op, "flip")
    spatial = _spatial(program, op)
    return StoreBits(
        op.output,
        np.zeros(channels, np.float32) if threshold is None else threshold,
        np.zeros(channels, np.uint8) if flip is None else flip,
        spatial,
        integer=program.values[op.inputs[0]].kind == "int" and spatial is None,
    )
