"""A place in one arena for everything that layers store.

Memory is what a microcontroller has least of, so this plan shares more than that of the library's engines: an
element that is read for the last time may be overwritten by the one made from it, in sums with a shortcut, in
pointwise layers and in pools whose windows do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xnorpp.export.c.layers import POOLS, Layer
from xnorpp.export.errors import ExportError
from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.plan import AddValue, Combine, MulValue, StoreFloat

ALIGN = 4


@dataclass(frozen=True)
class Memory:
    """The arena: where each stored value lies, and the scratch of every layer; all in bytes."""

    offsets: Mapping[str, int]
    scratch: tuple[int, ...]
    arena: int


@dataclass
class _Block:
    name: str
    size: int
    born: int
    dies: int
    offset: int = -1


def plan_memory(
    program: Program, layers: tuple[Layer, ...], size_of: Callable[[str, Value], int], scratch: list[int]
) -> Memory:
    """Places for all stored values and each layer's scratch, the heaviest first at the lowest free offset."""
    blocks = {name: _Block(name, size_of(name, program.values[name]), -1, -1) for name in _stored(layers)}
    for index, layer in enumerate(layers):
        for name in layer.writes:
            blocks[name].born = index
            blocks[name].dies = max(blocks[name].dies, index)
        for name in layer.reads:
            blocks[name].dies = max(blocks[name].dies, index)
    for name in program.outputs.values():
        blocks[name].dies = len(layers)
    heirs = _heirs(program, layers, blocks, size_of)
    rooms = [_Block(f" {index}", size, index, index) for index, size in enumerate(scratch)]
    every = [*blocks.values(), *rooms]
    weights = ({block.name: block.size for block in every}, _inherited(every, heirs))
    best = min(weights, key=lambda weight: _place(every, weight, heirs))
    arena = _place(every, best, heirs)
    if arena >= 1 << 31:
        raise ExportError(
            f"the program needs an arena of {arena} bytes, and generated C addresses less than 2^31 bytes"
        )
    offsets = {name: block.offset for name, block in blocks.items()}
    return Memory(offsets, tuple(room.offset for room in rooms), max(ALIGN, (arena + 3) // ALIGN * ALIGN))


def _stored(layers: tuple[Layer, ...]) -> list[str]:
    return list(dict.fromkeys([INPUT, *(name for layer in layers for name in (*layer.reads, *layer.writes))]))


def _heirs(
    program: Program,
    layers: tuple[Layer, ...],
    blocks: Mapping[str, _Block],
    size_of: Callable[[str, Value], int],
) -> set[tuple[str, str]]:
    """Pairs of a value and one that may be written where it lies, at its own offset or a lower one: elements
    are made in the order they lie in, and each is written after the last read of what it overwrites."""
    pairs = set()
    for index, layer in enumerate(layers):
        reads = [(-1, layer.source)] + [
            (place, move.micro.value)
            for place, move in enumerate(layer.moves)
            if isinstance(move.micro, (AddValue, MulValue, Combine))
        ]
        for place, name in reads:
            if blocks[name].dies != index or sum(other == name for _, other in reads) > 1:
                continue
            if place < 0 and not _in_order(layer):
                continue
            if place >= 0 and not _each(layer.moves[place].micro):
                continue
            per_element = size_of(name, program.values[name]) // program.values[name].elements
            for later, move in enumerate(layer.moves):
                if isinstance(move.micro, StoreFloat) and later > place:
                    made = program.values[move.micro.value]
                    same = size_of(move.micro.value, made) == per_element * made.elements
                    if same and (place < 0 or made.elements == program.values[name].elements):
                        pairs.add((name, move.micro.value))
    return pairs


def _each(micro: object) -> bool:
    """Whether a move reads one element of its operand for each of its own."""
    if isinstance(micro, Combine):
        return micro.spread == "each"
    return not (isinstance(micro, MulValue) and micro.per_pixel)


def _in_order(layer: Layer) -> bool:
    """Whether an element depends on elements of the source at its own place or later ones alone."""
    if layer.kind not in POOLS:
        return layer.kind == "pointwise"
    assert layer.op is not None
    attrs = layer.op.attrs
    apart = all(stride >= kernel for stride, kernel in zip(attrs["stride"], attrs["kernel"], strict=True))
    return apart and not any(attrs["padding"]) and tuple(attrs.get("dilation", (1, 1))) == (1, 1)


def _inherited(every: list[_Block], heirs: set[tuple[str, str]]) -> dict[str, int]:
    """Sizes, an heir having that of what it may lie in, so that it is placed directly after it."""
    sizes = {block.name: block.size for block in every}
    born = {block.name: block.born for block in every}
    for source, heir in sorted(heirs, key=lambda pair: born[pair[1]]):
        sizes[heir] = max(sizes[heir], sizes[source])
    return sizes


def _place(every: list[_Block], weight: Mapping[str, int], heirs: set[tuple[str, str]]) -> int:
    """Place all blocks, heavy ones first; the size of the arena."""
    placed: list[_Block] = []
    for block in sorted(every, key=lambda block: (-weight[block.name], block.born, block.name)):
        block.offset = _lowest(block, placed, heirs)
        placed.append(block)
    return max((block.offset + block.size for block in placed), default=0)


def _lowest(block: _Block, placed: list[_Block], heirs: set[tuple[str, str]]) -> int:
    others = [
        other for other in placed if block.born <= other.dies and other.born <= block.dies and other.size
    ]
    candidates = {0, *((other.offset + other.size + ALIGN - 1) // ALIGN * ALIGN for other in others)}
    candidates |= {other.offset for other in others}
    return min(at for at in candidates if all(_fits(block, at, other, heirs) for other in others))


def _fits(block: _Block, at: int, other: _Block, heirs: set[tuple[str, str]]) -> bool:
    if at + block.size <= other.offset or other.offset + other.size <= at:
        return True
    if (other.name, block.name) in heirs:
        return at <= other.offset
    return (block.name, other.name) in heirs and other.offset <= at
