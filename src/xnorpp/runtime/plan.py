"""From a program to fused steps and a memory plan, shared by the CPU and CUDA engines.

A **step** is one pass over memory: a *producer* (a convolution, a pool, ...) makes a number for every channel
and pixel, and an *epilogue* of micro-operations runs on that number while it is in a register:

    binary_conv2d, Affine(row, col, mult, add), Prelu, AddValue(shortcut), StoreFloat(x), StoreBits(a)

The epilogue is a straight line. `StoreFloat` and `StoreBits` write the register as it is at their place and
leave it unchanged, so one pass can keep a sum in float for the shortcut and give the next layers' bits too.
An integer dot product enters the register as float32, exactly (it is below 2**24), and is stored so.

How steps are made (`make_steps`): operations are taken in program order. A pointwise operation joins the step
that holds its input in the register at the end of the line; a `sign` joins the step wherever its input is in
the line; anything else opens a new step. An `add` or `mul` joins the later of its two producers, so that the
other operand is already in memory; every value a step reads therefore comes from an earlier step.

Memory (`plan_memory`): each stored value lives from the step that writes it to the last that reads it. Values
whose lives overlap get disjoint places in one arena (for one image), largest first at the lowest free offset.
A stored sum takes the place of the shortcut it was added to where that one is read for the last time
(`Step.in_place`): at each element the epilogue reads before it writes, so no order of pixels can go wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import INPUT, Op, Program

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Spatial:
    """A constant factor a pixel: `row[h]*col[w]` (rounded to float32 first), `map[h,w]` or `full[c,h,w]`."""

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
    """`v = v * value`; `per_pixel` says that `value` has one channel, `(1, h, w)`, shared by all."""

    value: str
    per_pixel: bool


@dataclass(frozen=True)
class StoreFloat:
    """Write `v` to the float value `value`."""

    value: str


@dataclass(frozen=True)
class StoreBits:
    """Write a bit: `u = v*spatial; bit = (u < threshold[c]) if flip[c] else (u > threshold[c])`.

    `integer` says that `v` is the bare dot product and there is no spatial factor: the thresholds can then be
    compared as integers. Thresholds may be infinite (a constant channel).
    """

    value: str
    threshold: F32
    flip: U8
    spatial: Spatial | None
    integer: bool


MicroOp = Affine | Relu | Prelu | Hardtanh | AddValue | MulValue | StoreFloat | StoreBits


@dataclass(frozen=True)
class Step:
    """One fused pass.

    `kind` is the producer's operation name, or "pointwise" where the register starts as the float value
    `source` itself (for a producer `signs`, as the -1 and +1 of the bits `source`). `op` is the program's
    producer (attributes, tensors; None for pointwise), `weight` and `bias` its tensors: packed weights as
    stored (U8), real ones as float32. `shape` is the register's shape, `(c, h, w)` or `(c,)`.
    `reads` are all values the step reads (source and operands), `writes` all it stores.
    `in_place` maps a stored float value to the operand whose memory it takes over.
    `feeds_pool`: its only result is one float value that only the next step, a max pool, reads.
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


_POINTWISE = {"affine", "relu", "prelu", "hardtanh", "add", "mul"}


@dataclass
class _Line:
    """A step while it grows: the values its register takes in turn and the micro-operations between them."""

    kind: str
    op: Op | None
    source: str
    names: list[str]  # names[i] is the register after moves[:i]; the move None is another name for the same
    moves: list[MicroOp | None] = field(default_factory=list)
    signs: list[tuple[int, Op]] = field(default_factory=list)  # (place in the line, sign operation)
    operands: list[str] = field(default_factory=list)


def default_size(value: Value) -> int:
    """Bytes of one image's value: float32, or per pixel the channels' bits in whole 64-bit words."""
    if value.kind != "bits":
        return 4 * value.elements
    pixels = value.elements // value.shape[0]
    return 8 * pixels * ((value.shape[0] + 63) // 64)


def make_plan(program: Program, size_of: Callable[[Value], int] = default_size, align: int = 64) -> Plan:
    """The whole plan. `size_of` gives an engine's own bytes for a value (its layout, padding, word size)."""
    steps = make_steps(program)
    return plan_memory(program, steps, size_of, align)


def make_steps(program: Program) -> tuple[Step, ...]:
    """Fuse the operations that the output needs into steps."""
    ops = _needed(program)
    lines: list[_Line] = []
    home: dict[str, tuple[int, int]] = {INPUT: (-1, 0)}  # value -> (line, place in it; -1 for bits)
    for op in ops:
        joined = _join(program, op, lines, home)
        if joined is None:
            lines.append(_open(program, op, lines, home))
        elif op.op == "sign":
            place = home[op.inputs[0]][1]
            lines[joined].signs.append((place, op))
            home[op.output] = (joined, -1)
    readers: dict[str, set[int]] = {program.output: {len(lines)}}
    for line_index, line in enumerate(lines):
        for name in [line.source, *line.operands]:
            readers.setdefault(name, set()).add(line_index)
    return _finish(program, lines, readers)


def _needed(program: Program) -> list[Op]:
    """The operations the output depends on, in program order."""
    wanted = {program.output}
    kept = []
    for op in reversed(program.ops):
        if op.output in wanted:
            wanted.update(op.inputs)
            kept.append(op)
    return kept[::-1]


def _is_alias(program: Program, op: Op) -> bool:
    """A flatten of `(c, 1, 1)` or `(c,)` only renames its input."""
    shape = program.values[op.inputs[0]].shape
    return op.op == "flatten" and shape[0] == program.values[op.inputs[0]].elements


def _join(program: Program, op: Op, lines: list[_Line], home: dict[str, tuple[int, int]]) -> int | None:
    """The line an operation joins, with the pointwise move already added; None where it needs a new one."""
    if op.op == "sign":
        at = home[op.inputs[0]][0]
        return at if at >= 0 else None
    if op.op not in _POINTWISE and not _is_alias(program, op):
        return None
    if op.op in ("add", "mul") and op.inputs[0] == op.inputs[1]:
        return None
    candidates = list(op.inputs)
    if op.op == "mul" and program.values[op.inputs[1]].shape != program.values[op.inputs[0]].shape:
        candidates = candidates[:1]  # the register has all channels; the one-channel factor is the operand
    if program.values[op.inputs[0]].kind == "int":
        candidates = candidates[:1]
    name = max(candidates, key=lambda value: home[value][0])
    index = home[name][0]
    others = [value for value in op.inputs if value != name]
    if index < 0 or lines[index].names[-1] != name or any(home[value][0] >= index for value in others):
        return None
    line = lines[index]
    line.moves.append(_move(program, op, others))
    line.names.append(op.output)
    line.operands.extend(others)
    home[op.output] = (index, len(line.names) - 1)
    return index


def _open(program: Program, op: Op, lines: list[_Line], home: dict[str, tuple[int, int]]) -> _Line:
    """A new line that begins with this operation."""
    index, source = len(lines), op.inputs[0]
    if op.op in _POINTWISE or op.op == "sign" or _is_alias(program, op):
        line = _Line("pointwise", None, source, [source])
        if op.op == "sign":
            line.signs.append((0, op))
            home[op.output] = (index, -1)
            return line
        others = list(op.inputs[1:])
        line.moves.append(_move(program, op, others))
        line.names.append(op.output)
        line.operands.extend(others)
    else:
        line = _Line(op.op, op, source, [op.output])
    home[op.output] = (index, len(line.names) - 1)
    return line


def _spatial(program: Program, op: Op) -> Spatial | None:
    parts = {role: program.real(op, role) for role in ("row", "col", "map", "full")}
    return None if all(part is None for part in parts.values()) else Spatial(**parts)


def _move(program: Program, op: Op, others: list[str]) -> MicroOp | None:
    if op.op == "affine":
        return Affine(program.real(op, "mult"), program.real(op, "add"), _spatial(program, op))
    if op.op == "relu":
        return Relu()
    if op.op == "prelu":
        slope = program.real(op, "slope")
        assert slope is not None
        channels = program.values[op.output].shape[0]
        return Prelu(np.ascontiguousarray(np.broadcast_to(slope, (channels,))))
    if op.op == "hardtanh":
        return Hardtanh(float(op.attrs["min"]), float(op.attrs["max"]))
    if op.op == "add":
        return AddValue(others[0])
    if op.op == "mul":
        return MulValue(others[0], program.values[others[0]].shape != program.values[op.output].shape)
    return None  # an alias


def _store_bits(program: Program, op: Op) -> StoreBits:
    value = program.values[op.inputs[0]]
    channels = value.shape[0]
    threshold, flip = program.real(op, "threshold"), program.stored(op, "flip")
    spatial = _spatial(program, op)
    return StoreBits(
        op.output,
        np.zeros(channels, np.float32) if threshold is None else threshold,
        np.zeros(channels, np.uint8) if flip is None else flip,
        spatial,
        integer=value.kind == "int" and spatial is None,
    )


def _finish(program: Program, lines: list[_Line], readers: dict[str, set[int]]) -> tuple[Step, ...]:
    steps = []
    for index, line in enumerate(lines):
        epilogue: list[MicroOp] = []
        signs: dict[int, list[Op]] = {}
        for place, op in line.signs:
            signs.setdefault(place, []).append(op)
        for place, name in enumerate(line.names):
            if place:
                move = line.moves[place - 1]
                if move is not None:
                    epilogue.append(move)
            if name != line.source and name in readers:
                epilogue.append(StoreFloat(name))
            here = [op for op in signs.get(place, []) if op.output in readers]
            epilogue.extend(_store_bits(program, op) for op in here)
        stores = [micro for micro in epilogue if isinstance(micro, StoreFloat | StoreBits)]
        steps.append(
            Step(
                index=index,
                kind=line.kind,
                op=line.op,
                source=line.source,
                shape=program.values[line.names[0]].shape,
                weight=None if line.op is None else _weight(program, line.op),
                bias=None if line.op is None else program.real(line.op, "bias"),
                epilogue=tuple(epilogue),
                reads=tuple(dict.fromkeys([line.source, *line.operands])),
                writes=tuple(micro.value for micro in stores),
                feeds_pool=_feeds_pool(index, lines, stores, readers),
            )
        )
    return tuple(steps)


def _feeds_pool(
    index: int, lines: list[_Line], stores: list[StoreFloat | StoreBits], readers: dict[str, set[int]]
) -> bool:
    if len(stores) != 1 or not isinstance(stores[0], StoreFloat) or index + 1 >= len(lines):
        return False
    after = lines[index + 1]
    name = stores[0].value
    return after.kind == "max_pool2d" and after.source == name and readers[name] == {index + 1}


def _weight(program: Program, op: Op) -> npt.NDArray[Any] | None:
    stored = program.stored(op, "weight")
    return stored if stored is None or stored.dtype == np.uint8 else program.real(op, "weight")


def plan_memory(
    program: Program, steps: tuple[Step, ...], size_of: Callable[[Value], int] = default_size, align: int = 64
) -> Plan:
    """Give every stored value (and the input) a place in the arena; see the module's text."""
    born = {INPUT: -1}
    dies = {INPUT: -1, program.output: len(steps)}
    for step in steps:
        for name in step.writes:
            born[name] = step.index
            dies.setdefault(name, step.index)
        for name in step.reads:
            dies[name] = max(dies.get(name, -1), step.index)
    sizes = {name: size_of(program.values[name]) for name in born}
    group = {name: name for name in born}  # values that share one place, by its first value
    placed_steps = []
    for step in steps:
        shared = _in_place(program, step, dies, sizes)
        for name, operand in shared.items():
            group[name] = group[operand]
        placed_steps.append(Step(**{**step.__dict__, "in_place": shared}))
    lives: dict[str, tuple[int, int]] = {}
    for name, root in group.items():
        first, last = lives.get(root, (born[name], dies[name]))
        lives[root] = (min(first, born[name]), max(last, dies[name]))
    offsets, arena = _place({root: (sizes[root], *life) for root, life in lives.items()}, align)
    places = {name: offsets[root] for name, root in group.items()}
    return Plan(program, tuple(placed_steps), places, sizes, arena)


def _in_place(program: Program, step: Step, dies: dict[str, int], sizes: dict[str, int]) -> dict[str, str]:
    """Stored floats that may take an operand's place: same size, added for the last time, read only so."""
    shared: dict[str, str] = {}
    for place, micro in enumerate(step.epilogue):
        if not isinstance(micro, StoreFloat):
            continue
        later = {m.value for m in step.epilogue[place + 1 :] if isinstance(m, AddValue | MulValue)}
        for before in step.epilogue[:place]:
            if (
                isinstance(before, AddValue)
                and before.value not in (step.source, INPUT, program.output, *shared.values(), *later)
                and dies[before.value] == step.index
                and sizes[before.value] == sizes[micro.value]
            ):
                shared[micro.value] = before.value
                break
    return shared


def _place(blocks: dict[str, tuple[int, int, int]], align: int) -> tuple[dict[str, int], int]:
    """Offsets for blocks of (size, first step, last step): largest first, each at the lowest free offset."""
    offsets: dict[str, int] = {}
    arena = 0
    for name in sorted(blocks, key=lambda block: (-blocks[block][0], blocks[block][1], block)):
        size, first, last = blocks[name]
        taken = sorted(
            (offsets[other], offsets[other] + blocks[other][0])
            for other in offsets
            if first <= blocks[other][2] and blocks[other][1] <= last
        )
        offset = 0
        for begin, end in taken:
            if offset + size <= begin:
                break
            offset = max(offset, -(-end // align) * align)
        offsets[name] = offset
        arena = max(arena, offset + size)
    return offsets, -(-arena // align) * align
