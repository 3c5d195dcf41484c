"""From a program to launches: the kernel of every unit, its constants, and what each argument points to.

Nothing here touches a GPU; cuda.py runs what is made here, and so do the tests, on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.cuda import layout as lay
from xnorpp.runtime.cuda import wgmma as wgmma_stem
from xnorpp.runtime.cuda.chains import stem_chain
from xnorpp.runtime.cuda.fuse import Unit, half_values, layouts, make_units
from xnorpp.runtime.cuda.launch import Caller, Constant, Kernel, Launch, Local, by_pixel, extent
from xnorpp.runtime.cuda.memory import Layout, Place, image_bytes, lay_out
from xnorpp.runtime.cuda.operations.moves import in_short_joins
from xnorpp.runtime.cuda.plain import plain_launch, plain_ways
from xnorpp.runtime.cuda.source import ConvArguments, StemArguments
from xnorpp.runtime.cuda.tiles import buildable_tiles
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.plan import Step, StoreFloat, make_steps
from xnorpp.runtime.stem import byte_step, filters_of

Array = npt.NDArray[Any]
_Option = TypeVar("_Option")
# Tilings of the first layer, best first: rows, pairs, blocks, column groups a block, filters in registers.
_STEM_MANY = (
    (28, 2, 2, 2, 1),
    (14, 2, 2, 2, 1),
    (28, 2, 1, 4, 1),
    (14, 4, 2, 0, 0),
    (56, 2, 2, 2, 1),
    (19, 4, 2, 0, 0),
    (1, 2, 1, 1, 0),
)
_STEM_FEW = ((1, 2, 1, 0, 0), (1, 2, 1, 2, 0), (1, 2, 1, 1, 0), (2, 2, 1, 1, 0))
COPY = "input as floats"  # the caller's image, where it is an operand and not only read


@dataclass(frozen=True)
class Gpu:
    """What the choice of kernels depends on."""

    capability: tuple[int, int] = (9, 0)
    processors: int = 132
    shared_limit: int = 232448
    tensor_cores: bool = True

    @property
    def bit_products(self) -> bool:
        """One-bit tensor cores with `and`: compute capability 8.0 and newer; `popc` below."""
        return self.tensor_cores and self.capability >= (8, 0)


@dataclass(frozen=True)
class Schedule:
    """Everything one batch size needs: launches in order, and the working memory."""

    images: int
    launches: tuple[Launch, ...]
    layout: Layout
    units: tuple[Unit, ...]
    halves: frozenset[str] = frozenset()


@dataclass
class Builder:
    """Makes schedules of one program for one GPU; constants are shared by all of them."""

    program: Program
    gpu: Gpu
    resident: int = 1 << 25
    half: bool = False  # whether floats between tensor-core layers are kept as half
    constants: dict[str, Array] = field(default_factory=dict)
    halves: frozenset[str] = frozenset()  # of the schedule in the making
    picks: dict[tuple[int, int], int] = field(default_factory=dict)  # (step, images): which of its options
    wgmma: bool = True  # whether the first layer may take stem_wgmma.cu

    def __post_init__(self) -> None:
        self.program = in_short_joins(self.program)
        self.steps = make_steps(self.program)
        # With a float32 stream the stem is the CPU's, bit for bit; with halves it is the faster one.
        self.taker = byte_step(self.program, self.steps, small=self.half)
        self.bits: Mapping[str, tuple[lay.BitsLayout, bool]] = layouts(self.program, self.steps)
        self._operand_input = (
            any(INPUT in step.reads and step.source != INPUT for step in self.steps)
            or any(
                micro.value == INPUT
                for step in self.steps
                for micro in step.epilogue
                if hasattr(micro, "value")
            )
            or any(INPUT in step.operands for step in self.steps)
        )

    def units(self, images: int, from_bytes: bool) -> tuple[Unit, ...]:
        units = make_units(
            self.program,
            self.steps,
            self.bits,
            tensor_cores=self.gpu.bit_products,
            taker=self.taker if from_bytes else None,
            fits=lambda unit: bool(self._tiles(unit, images)),
        )
        if self._operand_input:
            copy = Step(
                -1, "pointwise", None, INPUT, self.program.input_shape, None, None, (StoreFloat(COPY),),
                (INPUT,), (COPY,),
            )  # fmt: skip
            first = Unit("plain", copy, None, None, None, copy.reads, copy.writes)
            units = (first, *(_reading_copy(unit) for unit in units))
        return units

    def schedule(self, images: int, from_bytes: bool) -> Schedule:
        """The launches for a batch."""
        program = self.program
        if self._operand_input:
            values = {**program.values, COPY: program.values[INPUT]}
            program = _with_values(program, values)
        units = self.units(images, from_bytes)
        self.halves = half_values(program, units) if self.half else frozenset()
        layout = lay_out(program, units, self.bits, images, self.resident, self.halves)
        launches: list[Launch] = []
        for segment in layout.segments:
            for first in range(0, images, segment.chunk):
                count = min(segment.chunk, images - first)
                at = _Pointers(program, self.bits, layout.places, first, from_bytes, images, self.halves)
                for index in range(segment.first, segment.stop):
                    launches.append(self._launch(units[index], index, count, at, segment.chunk))
        return Schedule(images, tuple(launches), layout, units, self.halves)

    def keep(self, key: str, make: Callable[[], Array]) -> Constant:
        """The constant of a key, made at its first use."""
        if key not in self.constants:
            self.constants[key] = np.ascontiguousarray(make())
        return Constant(key)

    def _launch(self, unit: Unit, index: int, images: int, at: _Pointers, chunk: int) -> Launch:
        if unit.kind == "conv":
            return self._conv(unit, index, images, at, chunk)
        if unit.kind == "stem":
            return self._stem(unit, index, images, at)
        way = self._pick(unit, images, self._ways(unit, images))
        return plain_launch(self, unit, index, images, at, at.from_bytes, way)

    def shape(self, step: Step) -> lay.ConvShape:
        """A binary convolution, or a linear layer as one of 1x1."""
        c, h, w = extent(self.program.values[step.source].shape)
        assert step.weight is not None
        assert step.op is not None
        if step.kind.endswith("linear"):
            return lay.ConvShape(c, step.shape[0], (1, 1), (1, 1), (0, 0), (1, 1), h, w)
        a = step.op.attrs
        kernel = (int(step.weight.shape[1]), int(step.weight.shape[2]))
        stride, padding, dilation = (tuple(a[key]) for key in ("stride", "padding", "dilation"))
        return lay.ConvShape(c, step.shape[0], kernel, stride, padding, dilation, h, w, a["pad_value"])

    def positive(self, step: Step) -> npt.NDArray[np.bool_]:
        """One-bit weights as booleans (o, c/g, kh, kw)."""
        assert step.weight is not None
        assert step.op is not None
        groups = step.op.attrs.get("groups", 1)
        c = self.program.values[step.source].shape[0] // groups
        weight = step.weight if step.weight.ndim == 4 else step.weight[:, None, None]
        bits = np.unpackbits(weight, axis=-1, count=c, bitorder="little").astype(bool)
        return np.moveaxis(bits, 3, 1)

    def _stream(self, unit: Unit) -> str:
        """The type of a unit's float streams, in the kernel's words."""
        assert unit.chain is not None
        names = {*unit.chain.stream_in, *unit.chain.stream_out}
        return "u16" if names & self.halves else "float"

    def options(self, unit: Unit, images: int) -> list[Any]:
        """The tilings a unit could run with, best guess first; which one is `picks`' affair."""
        if unit.kind == "conv":
            return [tile for tile, _ in self._tiles(unit, images)]
        if unit.kind == "stem":
            return [numbers for numbers, _ in self._stems(unit, images)]
        return self._ways(unit, images)

    def _ways(self, unit: Unit, images: int) -> list[str]:
        return plain_ways(self, unit, images, self.gpu.processors, self.gpu.shared_limit)

    def _pick(self, unit: Unit, images: int, options: Sequence[_Option]) -> _Option:
        return options[min(self.picks.get((unit.step.index, images), 0), len(options) - 1)]

    def _tiles(self, unit: Unit, images: int) -> list[tuple[lay.Tile, dict[str, int | str]]]:
        chain, step = unit.chain, unit.step
        assert chain is not None
        shape = self.shape(step)
        full = chain.spatial is not None and chain.spatial.full is not None
        pool = unit.pool is not None
        fusion = lay.Fusion(
            chain.epilogue, len(chain.tables), len(chain.bits), pool, chain.pooled,
            chain.pooled_bits is not None, full, self._stream(unit),
        )  # fmt: skip
        side = self.bits[unit.side.source][0] if unit.side is not None else None
        stride = int(unit.side.op.attrs["stride"][0]) if unit.side is not None and unit.side.op else 1
        cases = 1
        if shape.pad_value == 0:
            for axis, (size, out) in enumerate(
                ((shape.height, shape.out_height), (shape.width, shape.out_width))
            ):
                case = lay.border_cases(
                    size,
                    out,
                    shape.kernel[axis],
                    shape.stride[axis],
                    shape.padding[axis],
                    shape.dilation[axis],
                )
                cases *= case[1].shape[0]
        return buildable_tiles(
            shape,
            self.bits[step.source][0],
            self.bits[chain.bits[0]][0] if chain.bits else None,
            fusion,
            cases,
            pooled=self.bits[chain.pooled_bits][0] if chain.pooled_bits else None,
            side=side,
            side_stride=stride,
            floats=bool(chain.stream_in or chain.stream_out or pool or unit.side),
            images=images,
            processors=self.gpu.processors,
            shared_limit=self.gpu.shared_limit,
        )

    def _conv(self, unit: Unit, index: int, images: int, at: _Pointers, chunk: int) -> Launch:
        chain, step = unit.chain, unit.step
        assert chain is not None
        tile, macros = self._pick(unit, images, self._tiles(unit, images) or self._tiles(unit, chunk))
        shape = self.shape(step)
        key, form = f"{step.index}", f"{step.index}.{'p' if unit.pool else ''}{'s' if unit.side else ''}"
        positive = self.positive(step)
        out = self.bits[chain.bits[0]][0] if chain.bits else None
        case, constant = lay.constants(shape, positive)
        factor = None if chain.spatial is None or chain.spatial.full is not None else chain.spatial.dense()
        side_factor = None if chain.side_spatial is None else chain.side_spatial.dense()
        arguments: dict[str, Any] = {
            "input": at(step.source),
            "weight": self.keep(f"{key}.weight", lambda: lay.pack_weights(positive, shape.dilation[1])),
            "constant": self.keep(f"{key}.constant", lambda: constant / lay.SCALE_UP),
            "pixel": self.keep(f"{form}.pixel", lambda: lay.pixel_table(case, factor, side_factor, out)),
            "stream_in": tuple(at(name) for name in chain.stream_in),
            "stream_out": tuple(at(name) for name in chain.stream_out),
            "bits_out": (
                *(at(name) for name in chain.bits),
                *[None] * (2 - len(chain.bits)),
                at(chain.pooled_bits) if chain.pooled_bits else None,
            ),
            "images": images,
            "tiles": -(-images * shape.out_height * shape.out_width // tile.block_m),
        }
        if chain.tables:
            arguments["channel"] = self.keep(f"{form}.channel", lambda: np.stack(chain.tables))
        if chain.spatial is not None and chain.spatial.full is not None:
            arguments["full"] = self.keep(f"{key}.full", lambda: by_pixel(chain.spatial) * lay.SCALE_UP)
        if unit.side is not None:
            side = unit.side
            signs = self.positive(side)
            arguments |= {
                "side": at(side.source),
                "side_weight": self.keep(f"{key}.side", lambda: lay.pack_side_weights(signs[:, :, 0, 0])),
                "side_constant": self.keep(
                    f"{key}.side_constant", lambda: lay.constants(self.shape(side), signs)[1] / lay.SCALE_UP
                ),
            }
        kernel = Kernel(
            "binary_conv.cu", tuple(macros.items()), "binary_conv", tile.threads, lay.shared_bytes(macros)
        )
        columns = shape.out_channels // tile.block_n
        tiles = int(arguments["tiles"])
        return Launch(
            unit.name, kernel, ConvArguments, arguments, tiles, columns, bool(tile.stay), index, images
        )

    def _stems(self, unit: Unit, images: int) -> list[tuple[Any, dict[str, int | str]]]:
        chain, step, pool = unit.chain, unit.step, unit.pool
        assert chain is not None
        assert pool is not None
        assert step.op is not None
        assert step.weight is not None
        _, h, w = self.program.input_shape
        out = self.bits[chain.bits[0]][0] if chain.bits else lay.BitsLayout(0, 0, 0, 0, 0, 0)
        large = images * -(-pool.shape[1] // 14) >= self.gpu.processors
        found: list[tuple[Any, dict[str, int | str]]] = []
        if (
            self.wgmma and large
            and self.gpu.capability == wgmma_stem.CAPABILITY and step.shape[0] == wgmma_stem.CHANNELS
        ):  # fmt: skip
            base = lay.stem_macros(
                h, w, step.weight.shape[2], step.op.attrs["padding"][0], step.shape[0], out,
                len(chain.tables), chain.epilogue, len(chain.bits), self._stream(unit), 1, 4, 1,
            )  # fmt: skip
            for tiling in wgmma_stem.TILINGS:
                macros = wgmma_stem.tiling_macros(base, tiling)
                if wgmma_stem.shared_bytes(macros) <= self.gpu.shared_limit:
                    found.append((("wgmma", *tiling), macros))
        for numbers in _STEM_MANY if large else _STEM_FEW:
            rows, pairs, blocks, across, hold = numbers
            if step.shape[0] % (16 * pairs):
                continue
            macros = lay.stem_macros(
                h, w, step.weight.shape[2], step.op.attrs["padding"][0], step.shape[0], out,
                len(chain.tables),
                chain.epilogue, len(chain.bits), self._stream(unit), rows, pairs, blocks, across, hold,
            )  # fmt: skip
            threads = lay.stem_threads(macros)
            if threads > (128 if hold else 512):
                macros["BLOCKS"] = 1
            fits = lay.stem_shared_bytes(macros) <= self.gpu.shared_limit
            if fits and threads <= (256 if hold else 1024):
                found.append((numbers, macros))
        return found

    def _stem(self, unit: Unit, index: int, images: int, at: _Pointers) -> Launch:
        chain, step, pool = unit.chain, unit.step, unit.pool
        assert chain is not None
        assert pool is not None
        assert step.op is not None
        assert step.weight is not None
        folded = stem_chain(step, pool)
        assert folded is not None
        rounded = filters_of(self.program, step)
        filters = lay.stem_filters(rounded, folded[1])
        numbers, macros = self._pick(unit, images, self._stems(unit, images))
        threads = lay.stem_threads(macros)
        if numbers[0] == "wgmma":
            weight = self.keep(f"{step.index}.stem_wgmma", lambda: wgmma_stem.pack_filters(filters.whole))
            file, shared = "stem_wgmma", wgmma_stem.shared_bytes(macros)
        else:
            weight = self.keep(f"{step.index}.stem", lambda: filters.packed)
            file, shared = "stem", lay.stem_shared_bytes(macros)
        arguments = {
            "input": at(INPUT),
            "weight": weight,
            "channel": self.keep(
                f"{step.index}.stem_channel",
                lambda: np.stack([filters.rest, rounded.step, *chain.tables[2:]]),
            ),
            "stream_in": tuple(at(name) for name in chain.stream_in),
            "stream_out": tuple(at(name) for name in chain.stream_out),
            "bits_out": tuple(at(name) for name in chain.bits),
            "images": images,
        }
        kernel = Kernel(f"{file}.cu", tuple(macros.items()), file, threads, shared)
        return Launch(
            unit.name,
            kernel,
            StemArguments,
            arguments,
            lay.stem_blocks(macros, images),
            unit=index,
            images=images,
        )


@dataclass(frozen=True)
class _Pointers:
    """Where a value's image `first` lies."""

    program: Program
    bits: Mapping[str, tuple[lay.BitsLayout, bool]]
    places: Mapping[str, Place]
    first: int
    from_bytes: bool
    images: int
    halves: frozenset[str] = frozenset()

    def __call__(self, name: str) -> Local | Caller:
        if name == INPUT:
            size = self.program.values[INPUT].elements * (1 if self.from_bytes else 4)
            return Caller(False, self.first * size)
        size = image_bytes(self.program, self.bits, name, self.halves)
        base = output_places(self.program).get(name)
        if base is not None:
            return Caller(True, base * self.images + self.first * size)
        place = self.places[name]
        # A value that is stored for one chunk only starts again with each.
        return Local(place.offset + (self.first * size if place.images == self.images else 0))


def output_places(program: Program) -> dict[str, int]:
    """Bytes of one image before each output in the caller's memory, where the outputs of a batch follow each
    other."""
    places, total = {}, 0
    for value in dict.fromkeys(program.outputs.values()):
        places[value] = total
        total += 4 * program.values[value].elements
    return places


def _reading_copy(unit: Unit) -> Unit:
    """Operands that are the caller's image read the copy instead."""
    changed = []
    for micro in unit.step.epilogue:
        if getattr(micro, "value", None) == INPUT:
            micro = type(micro)(**{**micro.__dict__, "value": COPY})
        changed.append(micro)
    operands = tuple(COPY if name == INPUT else name for name in unit.step.operands)
    step = Step(**{**unit.step.__dict__, "epilogue": tuple(changed), "operands": operands})
    chain = unit.chain
    if chain is not None:
        swapped = tuple(COPY if name == INPUT else name for name in chain.stream_in)
        chain = type(chain)(**{**chain.__dict__, "stream_in": swapped})
    reads = tuple(COPY if name == INPUT and step.source != INPUT else name for name in unit.reads)
    if step.source == INPUT and (tuple(changed), operands) != (unit.step.epilogue, unit.step.operands):
        reads = (*reads, COPY)
    return Unit(unit.kind, step, chain, unit.pool, unit.side, reads, unit.writes)


def _with_values(program: Program, values: Mapping[str, Any]) -> Program:
    """The same program that also knows the shape of values an engine adds."""
    from copy import copy

    changed = copy(program)
    object.__setattr__(changed, "values", values)
    return changed
