"""How each operation runs on the GPU: one file for each family of operations.

`PRODUCERS` are operations with a kernel of their own; its CUDA text stands in the same file (`KERNELS`).
`ENTRY` has the kernel in plain.cu of each producer of operation set 1, which are compiled together. `STAGES`
are operations that run in the epilogue of another one (`_stages` of cuda/plain.py has a case for each).
"""

from __future__ import annotations

from collections.abc import Mapping

from xnorpp.runtime.cuda.operations import (
    activation,
    arithmetic,
    convolution,
    moves,
    product,
    reduction,
    shape,
    sizes,
    window,
)
from xnorpp.runtime.cuda.operations.producer import Producer

_FAMILIES = (convolution, product, arithmetic, activation, reduction, window, shape, moves, sizes)

PRODUCERS: Mapping[str, Producer] = {k: v for family in _FAMILIES for k, v in family.PRODUCERS.items()}
ENTRY: Mapping[str, str] = {k: v for family in _FAMILIES for k, v in family.ENTRY.items()}
STAGES: frozenset[str] = frozenset(name for family in _FAMILIES for name in family.STAGES)

__all__ = ["ENTRY", "PRODUCERS", "STAGES", "Producer"]
