"""Bounds of numbers that move."""

from __future__ import annotations

from xnorpp.packing.bounds.rounding import Bound, carried, exact

BOUNDS: dict[str, Bound] = {
    "signs": exact,
    **dict.fromkeys(("flatten", "pad2d", "permute", "reshape"), carried),
}
