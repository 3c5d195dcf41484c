"""How far an operation of a packed program may be from the trained one: a bound for each number it makes.

One file for each family of operations; `BOUNDS` of each has its functions by the operation's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from xnorpp.packing.bounds import activation, arithmetic, moves, product, reduction, shape, window
from xnorpp.packing.bounds.rounding import F64, Bound, U

BOUNDS: Mapping[str, Bound] = {
    **product.BOUNDS,
    **reduction.BOUNDS,
    **arithmetic.BOUNDS,
    **activation.BOUNDS,
    **window.BOUNDS,
    **shape.BOUNDS,
    **moves.BOUNDS,
}

__all__ = ["BOUNDS", "F64", "Bound", "U"]
