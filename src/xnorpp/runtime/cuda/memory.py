"""Where the values of a batch lie in GPU memory, and in which pieces a batch runs.

Floats of the first stages are large (0.8 MB an image in a ResNet-18 of 224 pixels), so units are cut into
*segments* where little crosses, and a segment runs over a few images at a time, as many as `resident` bytes
hold: what its units hand to each other then stays small enough for the second-level cache. Values that
cross a segment's end are kept for the whole batch; their life is stretched over the segments they are made
and read in, because those run in loops.

Values that never live at the same time share memory. Bits share only among values of one layout: kernels
write the inside of an image and never its halo, which is set once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xnorpp.runtime.cuda.fuse import Unit
from xnorpp.runtime.cuda.layout import BitsLayout
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.native import core
from xnorpp.runtime.plan import AddValue, StoreFloat

ALIGN = 256
SLACK = 1 << 18  # a tile may read past the end of the last image

BitsPlaces = Mapping[str, tuple[BitsLayout, bool]]


@dataclass(frozen=True)
class Segment:
    """Units `first` to `stop` (not included), `chunk` images at a time."""

    first: int
    stop: int
    chunk: int


@dataclass(frozen=True)
class Place:
    """A value's first byte and how many images of it are kept."""

    offset: int
    images: int


@dataclass(frozen=True)
class Layout:
    """The memory of one batch size. `ones`: places whose halo is made of ones, with their layout."""

    segments: tuple[Segment, ...]
    places: Mapping[str, Place]
    total: int
    ones: tuple[tuple[Place, BitsLayout], ...]


def image_bytes(program: Program, places: BitsPlaces, name: str, halves: frozenset[str] = frozenset()) -> int:
    """Bytes of one image of a value; `halves` are kept as half."""
    if name in places:
        return places[name][0].rows * places[name][0].row
    return (2 if name in halves else 4) * program.values[name].elements


def _lives(program: Program, units: Sequence[Unit]) -> dict[str, tuple[int, int]]:
    """First and last unit of every value that is kept here (not the caller's input and output)."""
    lives: dict[str, tuple[int, int]] = {}
    outputs = set(program.outputs.values())
    for index, unit in enumerate(units):
        for name in (*unit.writes, *unit.reads):
            if name != INPUT and name not in outputs:
                first, _ = lives.get(name, (index, index))
                lives[name] = (first, index)
    return lives


def cut(
    program: Program,
    units: Sequence[Unit],
    places: BitsPlaces,
    images: int,
    resident: int,
    halves: frozenset[str] = frozenset(),
) -> tuple[Segment, ...]:
    """Segments: a new one begins where less than a quarter of what the last one held crosses."""
    lives = _lives(program, units)
    blocks = _float_blocks(program, units, places, lives, dict.fromkeys(lives, images), halves)
    root = {name: first for first, names in blocks.items() for name in names}
    size = {name: image_bytes(program, places, name, halves) for name in lives}
    found: list[Segment] = []
    first, peak = 0, 0
    for index in range(len(units)):
        live = {root.get(name, name) for name, (born, dies) in lives.items() if born <= index <= dies}
        held = sum(size[name] for name in live)
        crossing = sum(size[name] for name, (born, dies) in lives.items() if born <= index < dies)
        peak = max(peak, held)
        last = index + 1 == len(units)
        if last or 4 * crossing <= peak:
            room = max(1, resident // max(peak, 1))
            chunk = images if room >= images else 1 << (room.bit_length() - 1)
            if found and found[-1].chunk == chunk:
                found[-1] = Segment(found[-1].first, index + 1, chunk)
            else:
                found.append(Segment(first, index + 1, chunk))
            first, peak = index + 1, 0
    return tuple(found)


def lay_out(
    program: Program,
    units: Sequence[Unit],
    places: BitsPlaces,
    images: int,
    resident: int,
    halves: frozenset[str] = frozenset(),
) -> Layout:
    """Segments and the place of every value."""
    segments = cut(program, units, places, images, resident, halves)
    home = {index: s for s in segments for index in range(s.first, s.stop)}
    lives: dict[str, tuple[int, int]] = {}
    count: dict[str, int] = {}
    for name, (born, dies) in _lives(program, units).items():
        inside = home[born] is home[dies]
        count[name] = min(home[born].chunk, images) if inside else images
        lives[name] = (born, dies) if inside else (home[born].first, home[dies].stop - 1)
    floats = _float_blocks(program, units, places, lives, count, halves)
    blocks = {
        root: (
            image_bytes(program, places, root, halves) * count[root],
            min(lives[name][0] for name in names),
            max(lives[name][1] for name in names),
        )
        for root, names in floats.items()
    }
    offsets, total = _stack(blocks)
    found = {name: Place(offsets[root], count[root]) for root, names in floats.items() for name in names}
    ones: list[tuple[Place, BitsLayout]] = []
    free: dict[tuple[BitsLayout, bool, int], list[tuple[int, int]]] = {}  # (free from unit, offset)
    for name in sorted((n for n in lives if n in places), key=lambda n: lives[n]):
        key = (*places[name], count[name])
        slots = free.setdefault(key, [])
        slot = next((i for i, (until, _) in enumerate(slots) if until < lives[name][0]), None)
        if slot is None:
            size = image_bytes(program, places, name) * count[name]
            slots.append((-1, total))
            slot = len(slots) - 1
            if places[name][1]:
                ones.append((Place(total, count[name]), places[name][0]))
            total += -(-size // ALIGN) * ALIGN
        slots[slot] = (lives[name][1], slots[slot][1])
        found[name] = Place(slots[slot][1], count[name])
    return Layout(segments, found, total + SLACK, tuple(ones))


def _float_blocks(
    program: Program,
    units: Sequence[Unit],
    places: BitsPlaces,
    lives: Mapping[str, tuple[int, int]],
    count: Mapping[str, int],
    halves: frozenset[str],
) -> dict[str, list[str]]:
    """Float values by the place they share: a stored sum takes over the operand it was added to."""
    root = {name: name for name in lives if name not in places}
    for index, unit in enumerate(units):
        if unit.kind == "stem":
            continue
        micros = unit.step.epilogue
        given: set[str] = set()
        for at, micro in enumerate(micros):
            if not isinstance(micro, StoreFloat) or micro.value not in root:
                continue
            later = {m.value for m in micros[at + 1 :] if isinstance(m, AddValue)}
            for before in micros[:at]:
                if not isinstance(before, AddValue) or before.value not in root:
                    continue
                operand = before.value
                if (
                    operand not in {unit.step.source, *unit.step.operands, *later, *given}
                    and lives[operand][1] == index
                    and lives[micro.value][0] == index
                    and count[operand] == count[micro.value]
                    and operand in unit.reads
                    and (operand in halves) == (micro.value in halves)
                ):
                    root[micro.value] = root[operand]
                    given.add(operand)
                    break
    blocks: dict[str, list[str]] = {}
    for name, first in root.items():
        blocks.setdefault(first, []).append(name)
    return blocks


def _stack(blocks: Mapping[str, tuple[int, int, int]]) -> tuple[dict[str, int], int]:
    """Offsets for blocks of (bytes, first unit, last unit), placed by the core as for every engine."""
    offsets, total = core().place([(*block, name) for name, block in blocks.items()], ALIGN)
    return dict(zip(blocks, offsets, strict=True)), total
