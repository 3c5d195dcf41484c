"""Which kernel runs which steps of a plan: the CUDA engine's own fusion, over what `plan.py` fused already.

Three kinds of unit, one launch each:

- `conv`: a binary convolution on the one-bit tensor cores (binary_conv.cu). It may take in a 1x1 binary
  convolution whose result it adds (`side`: the shortcut's dot product never reaches memory) and the 2x2
  mean of its result (`pool`: the next stage's shortcut starts from bits, not from floats).
- `stem`: the first real convolution on bytes with the 3x3 max pool behind it (stem.cu).
- `plain`: one step, any operation (plain.cu; real convolutions also real_conv.cu).

A chain of micro-operations becomes a line of macros (epilogue.cuh) with rows of a table a channel.
Whatever does not fit is left to `plain`, so a unit is a matter of speed, never of what can be run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.cuda.launch import extent
from xnorpp.runtime.cuda.layout import BitsLayout, bits_layout
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.plan import (
    F32,
    PLAIN_ONLY,
    AddValue,
    Affine,
    Hardtanh,
    MicroOp,
    MulValue,
    Prelu,
    Relu,
    Spatial,
    Step,
    StoreBits,
    StoreFloat,
)

MAX_STEPS = 72  # of 256 bits in the unrolled loop of binary_conv.cu
MAX_TABLES = 12


@dataclass(frozen=True)
class Chain:
    """What follows a dot product, for the kernel: macros, the rows they name, and the values they touch."""

    epilogue: str
    tables: tuple[F32, ...]
    stream_in: tuple[str, ...]
    stream_out: tuple[str, ...]
    bits: tuple[str, ...]
    spatial: Spatial | None = None
    pooled: str = ""
    pooled_bits: str | None = None
    side_spatial: Spatial | None = None


@dataclass(frozen=True)
class Unit:
    """One launch."""

    kind: Literal["conv", "stem", "plain"]
    step: Step
    chain: Chain | None = None
    pool: Step | None = None
    side: Step | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.step.op.name if self.step.op is not None else self.step.kind


@dataclass
class _Writer:
    """Collects a chain; `fits` turns false where the kernel has no room."""

    line: list[str] = field(default_factory=list)
    tables: list[F32] = field(default_factory=list)
    stream_in: list[str] = field(default_factory=list)
    stream_out: list[str] = field(default_factory=list)
    bits: list[str] = field(default_factory=list)
    fits: bool = True

    def table(self, values: F32) -> int:
        self.tables.append(np.ascontiguousarray(values, np.float32))
        return len(self.tables) - 1

    def write(self, micro: MicroOp) -> None:
        """One micro-operation; the spatial factor, where it has one, was applied before the line."""
        if isinstance(micro, Affine):
            self.affine(micro)
        elif isinstance(micro, Relu):
            self.line.append("RELU")
        elif isinstance(micro, Prelu):
            self.line.append(f"PRELU({self.table(micro.slope)})")
        elif isinstance(micro, Hardtanh):
            low, high = (int(np.float32(bound).view(np.uint32)) for bound in (micro.low, micro.high))
            self.line.append(f"HARDTANH({low}u, {high}u)")
        elif isinstance(micro, AddValue):
            self.line.append(f"ADD({len(self.stream_in)})")
            self.stream_in.append(micro.value)
        elif isinstance(micro, MulValue):
            name = "MUL_PIXEL" if micro.per_pixel else "MUL"
            self.line.append(f"{name}({len(self.stream_in)})")
            self.stream_in.append(micro.value)
        elif isinstance(micro, StoreFloat):
            self.line.append(f"STORE({len(self.stream_out)})")
            self.stream_out.append(micro.value)
        elif isinstance(micro, StoreBits):
            self.sign(micro, len(self.bits))
            self.bits.append(micro.value)

    def affine(self, micro: Affine, prefix: str = "") -> None:
        """A factor and a summand a channel; `prefix` names the value they are for (none: the main one)."""
        if micro.mult is not None and micro.add is not None:
            self.line.append(f"{prefix}AFFINE({self.table(micro.mult)}, {self.table(micro.add)})")
        elif micro.mult is not None:
            self.line.append(f"{prefix}SCALE({self.table(micro.mult)})")
        elif micro.add is not None:
            self.line.append(f"{prefix}SHIFT({self.table(micro.add)})")

    def sign(self, micro: StoreBits, place: int) -> None:
        flip = np.where(micro.flip != 0, np.float32(-1), np.float32(1)).astype(np.float32)
        if (flip > 0).all():
            self.line.append(f"SIGN({place}, {self.table(micro.threshold)})")
        else:
            with np.errstate(invalid="ignore"):
                row = self.table(flip * micro.threshold)
            self.line.append(f"SIGN_FLIP({place}, {row}, {self.table(-flip)})")

    def room(self, streams_in: int, streams_out: int, signs: int) -> bool:
        return (
            self.fits
            and len(self.stream_in) <= streams_in
            and len(self.stream_out) <= streams_out
            and len(self.bits) <= signs
            and len(self.tables) <= MAX_TABLES
        )


def _same(a: Spatial | None, b: Spatial | None) -> bool:
    return a is b if a is None or b is None else bool(np.array_equal(a.dense(), b.dense()))


def _first_spatial(epilogue: tuple[MicroOp, ...]) -> tuple[bool, Spatial | None]:
    """The factor that may be multiplied into the dot product before the line runs: (whether the line
    allows it, the factor). Everything that sees the bare dot product must want the same one."""
    wanted: list[Spatial | None] = []
    bare = True
    for micro in epilogue:
        if bare and isinstance(micro, StoreBits):
            wanted.append(micro.spatial)
        elif bare:
            wanted.append(micro.spatial if isinstance(micro, Affine) else None)
            bare = bare and isinstance(micro, StoreFloat)
        elif isinstance(micro, StoreBits | Affine) and micro.spatial is not None:
            return False, None
    first = wanted[0] if wanted else None
    return all(_same(first, other) for other in wanted), first


def conv_chain(step: Step, pool: Step | None, side: Step | None) -> Chain | None:
    """The chain of a binary convolution, or None where the kernel has no such line."""
    allowed, spatial = _first_spatial(step.epilogue)
    if not allowed or any(
        isinstance(m, PLAIN_ONLY) for s in (step, pool) if s is not None for m in s.epilogue
    ):
        return None
    writer = _Writer()
    side_spatial: Spatial | None = None
    for micro in step.epilogue:
        if side is not None and isinstance(micro, AddValue) and micro.value == _stored(side)[0]:
            affine = side.epilogue[0]
            if isinstance(affine, Affine):
                side_spatial = affine.spatial
                writer.affine(affine, "SIDE_")
            writer.line.append("SIDE_ADD")
        else:
            writer.write(micro)
    line, pooled_bits = " ".join(writer.line), None
    if pool is not None:
        writer.line = []
        signs = 0
        for micro in pool.epilogue:
            if isinstance(micro, StoreBits):
                if micro.spatial is not None:
                    return None
                writer.sign(micro, 2)
                pooled_bits = micro.value
                signs += 1
            elif isinstance(micro, AddValue | MulValue) or (isinstance(micro, Affine) and micro.spatial):
                return None
            else:
                writer.write(micro)
        if signs > 1:
            return None
    if not writer.room(2, 2, 2):
        return None
    return Chain(
        line,
        tuple(writer.tables),
        tuple(writer.stream_in),
        tuple(writer.stream_out),
        tuple(writer.bits),
        spatial,
        " ".join(writer.line) if pool is not None else "",
        pooled_bits,
        side_spatial,
    )


def _stored(step: Step) -> tuple[str, ...]:
    return tuple(micro.value for micro in step.epilogue if isinstance(micro, StoreFloat))


def _readers(program: Program, steps: tuple[Step, ...]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {name: {len(steps)} for name in program.outputs.values()}
    for name, index in ((name, step.index) for step in steps for name in step.reads):
        found.setdefault(name, set()).add(index)
    return found


def layouts(program: Program, steps: tuple[Step, ...]) -> dict[str, tuple[BitsLayout, bool]]:
    """The layout of every bit value and the bit of its halo. Values of one shape share one layout."""
    halo: dict[tuple[int, ...], int] = {}
    outside: dict[str, bool] = {}
    for step in steps:
        if step.kind != "binary_conv2d" or step.op is None:
            continue
        padding, shape = max(step.op.attrs["padding"]), program.values[step.source].shape
        halo[shape] = max(halo.get(shape, 0), padding)
        if padding:
            outside.setdefault(step.source, step.op.attrs["pad_value"] == 1)
    found = {}
    for name, value in program.values.items():
        if value.kind == "bits":
            layout = bits_layout(*extent(value.shape), halo.get(value.shape, 0))
            found[name] = (layout, outside.get(name, False))
    return found


def fast_conv(program: Program, step: Step, places: Mapping[str, tuple[BitsLayout, bool]]) -> bool:
    """Whether binary_conv.cu takes the product of this step (its chain is another question)."""
    if step.kind not in ("binary_conv2d", "binary_linear") or step.shape[0] % 32 or step.weight is None:
        return False
    channels = program.values[step.source].shape[0]
    parts = -(-channels // 128)
    if step.kind == "binary_linear":
        return -(-parts // 2) <= MAX_STEPS
    assert step.op is not None
    attrs = step.op.attrs
    kernel = step.weight.shape[1:3]
    across = -(-kernel[1] // 2) if channels <= 64 and attrs["dilation"][1] == 1 else kernel[1]
    padded = max(attrs["padding"]) > 0
    return bool(
        attrs["groups"] == 1
        and -(-kernel[0] * across * parts // 2) <= MAX_STEPS
        and (not padded or (attrs["pad_value"] == 1) == places[step.source][1])
    )


def _is_side(program: Program, step: Step, main: Step) -> bool:
    """A 1x1 binary convolution that does nothing but scale and store."""
    if step.kind != "binary_conv2d" or step.op is None or step.weight is None:
        return False
    attrs, weight = step.op.attrs, step.weight
    body = step.epilogue[:-1]
    return (
        weight.shape[1:3] == (1, 1)
        and attrs["groups"] == 1
        and max(attrs["padding"]) == 0
        and attrs["stride"][0] == attrs["stride"][1]
        and program.values[step.source].shape[0] <= 256
        and isinstance(step.epilogue[-1], StoreFloat)
        and len(body) <= 1
        and all(isinstance(m, Affine) and (m.spatial is None or m.spatial.full is None) for m in body)
        and step.shape == main.shape
        and step.shape[0] % 32 == 0
    )


def _is_half_mean(step: Step, main: Step, value: str) -> bool:
    """A 2x2 mean of the whole result, read at the end of the line."""
    if step.kind != "avg_pool2d" or step.op is None or step.source != value or step.reads != (value,):
        return False
    attrs = step.op.attrs
    after = False
    for micro in main.epilogue:
        if after and not isinstance(micro, StoreBits):
            return False
        after = after or (isinstance(micro, StoreFloat) and micro.value == value)
    even = main.shape[1] % 2 == 0 and main.shape[2] % 2 == 0
    return after and even and attrs["kernel"] == attrs["stride"] == [2, 2] and max(attrs["padding"]) == 0


def stem_chain(step: Step, pool: Step) -> tuple[Chain, npt.NDArray[np.bool_]] | None:
    """The chain of a first layer with its max pool, and which filters are to be taken with the other sign.

    Pooling the sums themselves is right where everything between them and the pool is increasing; a first
    factor may be negative, its sign goes into the filter: (-a)*(-b) is a*b in every bit. The first two rows,
    the sum's rest and the filters' step, are filled in with the filters."""
    channels = step.shape[0]
    micros = list(step.epilogue[:-1])
    writer = _Writer()
    turned = np.zeros(channels, bool)
    writer.table(np.zeros(channels, np.float32))
    writer.line.append(f"SCALE({writer.table(np.ones(channels, np.float32))})")
    if step.bias is not None:
        writer.line.append(f"SHIFT({writer.table(step.bias)})")
    elif micros and isinstance(micros[0], Affine) and micros[0].spatial is None:
        first = micros.pop(0)
        assert isinstance(first, Affine)
        if first.mult is not None:
            turned = np.asarray(first.mult) < 0
            first = Affine(mult=np.abs(np.asarray(first.mult, np.float32)), add=first.add)
        writer.write(first)
    for micro in micros:
        rising = isinstance(micro, Relu | Hardtanh) or (
            isinstance(micro, Prelu) and bool((micro.slope >= 0).all())
        )
        if isinstance(micro, Affine) and micro.spatial is None:
            rising = micro.mult is None or bool((micro.mult >= 0).all())
        if not rising:
            return None
        writer.write(micro)
    for micro in pool.epilogue:
        if isinstance(micro, StoreBits | Affine) and micro.spatial is not None:
            return None
        writer.write(micro)
    if not writer.room(1, 1, 2) or any(isinstance(m, MulValue) for m in pool.epilogue):
        return None
    chain = Chain(
        " ".join(writer.line),
        tuple(writer.tables),
        tuple(writer.stream_in),
        tuple(writer.stream_out),
        tuple(writer.bits),
    )
    return chain, turned


def _is_stem(program: Program, step: Step, pool: Step) -> bool:
    if not step.feeds_pool or step.kind != "conv2d" or step.source != INPUT or step.reads != (INPUT,):
        return False
    assert step.op is not None
    assert step.weight is not None
    assert pool.op is not None
    a, p = step.op.attrs, pool.op.attrs
    o, c, kh, kw = step.weight.shape
    return (
        (c, kh) == (3, kw)
        and kw in (3, 5, 7)
        and a["groups"] == 1
        and a["stride"] == [2, 2]
        and a["dilation"] == [1, 1]
        and a["padding"][0] == a["padding"][1] <= 3
        and o % 32 == 0
        and o <= 128
        and p["kernel"] == [3, 3]
        and p["stride"] == [2, 2]
        and p["padding"] == [1, 1]
        and pool.shape[2] <= 112
        and pool.shape[1:] == tuple((n - 1) // 2 + 1 for n in step.shape[1:])
    )


def make_units(
    program: Program,
    steps: tuple[Step, ...],
    places: Mapping[str, tuple[BitsLayout, bool]],
    *,
    tensor_cores: bool,
    taker: Step | None,
    fits: Callable[[Unit], bool] = lambda unit: True,
) -> tuple[Unit, ...]:
    """Units in the order they run. `taker` is the step that takes the bytes of the picture themselves, if one
    does; `fits` says whether a tiling of a conv unit exists on this GPU."""
    readers = _readers(program, steps)
    by_index = {step.index: step for step in steps}
    taken: set[int] = set()
    units: dict[int, Unit] = {}
    for step in reversed(steps):  # a unit takes in earlier shortcuts and later means; main steps decide
        if step.index in taken or not tensor_cores or not fast_conv(program, step, places):
            continue
        unit = _conv_unit(program, step, by_index, readers, taken, places, fits)
        if unit is not None:
            units[step.index] = unit
            taken.update(s.index for s in (unit.pool, unit.side) if s is not None)
            taken.add(step.index)
    for step in steps:
        if step.index in taken:
            continue
        pool = by_index.get(step.index + 1)
        if tensor_cores and taker is step and pool is not None and _is_stem(program, step, pool):
            found = stem_chain(step, pool)
            if found is not None:
                writes, reads = pool.writes, (INPUT, *(n for n in pool.reads if n not in step.writes))
                units[step.index] = Unit("stem", step, found[0], pool, None, reads, writes)
                taken.update((step.index, pool.index))
                continue
        units[step.index] = Unit("plain", step, None, None, None, step.reads, step.writes)
    return tuple(units[index] for index in sorted(units))


def half_values(program: Program, units: tuple[Unit, ...]) -> frozenset[str]:
    """Values between tensor-core units that may be kept as half: a kernel has one type for all its streams,
    so one that must stay float (the output, a factor a pixel, a plain layer's own) keeps the others float."""
    streams = [
        {name for name in (*unit.chain.stream_in, *unit.chain.stream_out) if name not in per_pixel}
        for unit in units
        if unit.chain is not None
        for per_pixel in [_per_pixel(unit.step)]
    ]
    apart = {INPUT, *program.outputs.values()}.union(*(_per_pixel(unit.step) for unit in units))
    made = {name for unit in units if unit.chain is not None for name in unit.chain.stream_out}
    found = made - apart
    while True:
        mixed = {name for group in streams if not group <= found for name in group & found}
        if not mixed:
            return frozenset(found)
        found -= mixed


def _per_pixel(step: Step) -> set[str]:
    return {m.value for m in step.epilogue if isinstance(m, MulValue) and m.per_pixel}


def _conv_unit(
    program: Program,
    step: Step,
    by_index: Mapping[int, Step],
    readers: Mapping[str, set[int]],
    taken: set[int],
    places: Mapping[str, tuple[BitsLayout, bool]],
    fits: Callable[[Unit], bool],
) -> Unit | None:
    """The step with everything it can take in; with less where that does not fit; None where nothing does."""
    stored = {name: index for index, other in by_index.items() for name in other.writes}
    sides, pools = [], []
    for micro in step.epilogue:
        if isinstance(micro, AddValue) and micro.value in stored and readers[micro.value] == {step.index}:
            other = by_index[stored[micro.value]]
            if other.index not in taken and _is_side(program, other, step):
                sides.append(other)
        if isinstance(micro, StoreFloat):
            for index in sorted(readers.get(micro.value, ())):
                reader = by_index.get(index)
                if reader is not None and index not in taken and _is_half_mean(reader, step, micro.value):
                    pools.append(reader)
    for pool in [*pools[:1], None]:
        for side in [*sides[:1], None]:
            dropped = {pool.source} if pool is not None and readers[pool.source] == {pool.index} else set()
            main = _without(step, dropped)
            chain = conv_chain(main, pool, side)
            if chain is None or not _one_layout(chain, places):
                continue
            replaced = {_stored(side)[0]} if side is not None else set()
            reads = [name for name in step.reads if name not in replaced] + ([side.source] if side else [])
            writes = [name for name in step.writes if name not in dropped] + ([*pool.writes] if pool else [])
            unit = Unit("conv", main, chain, pool, side, tuple(dict.fromkeys(reads)), tuple(writes))
            if fits(unit):
                return unit
    return None


def _without(step: Step, dropped: set[str]) -> Step:
    if not dropped:
        return step
    kept = tuple(m for m in step.epilogue if not (isinstance(m, StoreFloat) and m.value in dropped))
    writes = tuple(name for name in step.writes if name not in dropped)
    return Step(**{**step.__dict__, "epilogue": kept, "writes": writes})


def _one_layout(chain: Chain, places: Mapping[str, tuple[BitsLayout, bool]]) -> bool:
    return len({places[name][0] for name in chain.bits}) <= 1
