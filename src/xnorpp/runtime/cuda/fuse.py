"""Which kernel runs which steps of a plan: the CUDA engine's own fusion, over what `plan.py` fused already.

Three kinds of unit, one launch each:

- `conv`: a binary convolution on the one-bit tensor cores (binary_conv.cu). It may take in a 1x1 binary
  convolution whose result it adds (`side`: the shortcut's dot product never reaches memory) and the 2x2
  mean of its result (`pool`: the next stage's shortcut starts from bits, not from floats).
- `stem`: the first real convolution on bytes with the 3x3 max pool behind it (stem.cu).
- `plain`: one step, any operation (plain.cu; real convolutions also real_conv.cu).

A chain of micro-operations becomes a line of macros (epilogue.cuh) with one row of a table per channel.
Whatever does not fit is left to `plain`, so a unit is a matter of speed, never of what can be run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from xnorpp.runtime.cuda.chains import Chain, conv_chain, stem_chain, stored_values
from xnorpp.runtime.cuda.launch import extent
from xnorpp.runtime.cuda.layout import BitsLayout, bits_layout
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.plan import (
    AddValue,
    Affine,
    MulValue,
    Step,
    StoreBits,
    StoreFloat,
)

MAX_STEPS = 72  # of 256 bits in the unrolled loop of binary_conv.cu


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
    """Units in the order they run. `taker` is the step that takes the bytes of the image themselves, if one
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
    so one that must stay float (the output, a factor per pixel, a plain layer's own) keeps the others
    float."""
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
            replaced = {stored_values(side)[0]} if side is not None else set()
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
