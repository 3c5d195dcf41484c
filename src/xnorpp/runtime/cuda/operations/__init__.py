"""Producers of kernels/plain: one file for each family of operations, here and there."""

from __future__ import annotations

from collections.abc import Mapping

from xnorpp.runtime.cuda.operations import arithmetic, moves, product, reduction, shape
from xnorpp.runtime.cuda.operations.producer import Producer

PRODUCERS: Mapping[str, Producer] = {
    **arithmetic.PRODUCERS,
    **product.PRODUCERS,
    **reduction.PRODUCERS,
    **shape.PRODUCERS,
    **moves.PRODUCERS,
}

__all__ = ["PRODUCERS", "Producer"]
