"""How much one picture costs, roughly, and how many threads that is worth.

A unit is what a real multiply-add takes: 64 binary ones are one, as in the paper's count, and a number that a
step makes costs 24, for it goes through scale, activation, shortcut and sign. Measured with AVX-512 a
microsecond is some 22,000 to 45,000 units over the listed networks. That is good enough to tell a network of
0.03 ms, where threads wait for each other longer than they work, from one of 0.3 ms, where they help.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xnorpp.runtime.format.ops import filter_products
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.plan import Step

__all__ = ["MAX_THREADS", "UNITS_A_THREAD", "check_threads", "picture_work", "threads_worth"]

MAX_THREADS = 1024  # that a caller may ask for; a million would take the machine down, not make it faster

BINARY_A_UNIT = 64
UNITS_A_NUMBER = 24
# Below twice this, some 0.15 ms, two threads were at most 1.3 times as fast as one at best, and slower where
# another program wanted a core, or where they slept since the last call.
UNITS_A_THREAD = 1 << 21


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that no engine is made with, before any thread is made."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise ValueError(f"`threads` (={threads!r}) must be an integer from 1 to {MAX_THREADS}, or None")


def picture_work(program: Program, steps: Sequence[Step]) -> float:
    """Units of one picture."""
    total = 0.0
    for step in steps:
        products = _products(program, step)
        total += products / BINARY_A_UNIT if step.kind.startswith("binary_") else products
        total += UNITS_A_NUMBER * math.prod(step.shape)
    return total


def threads_worth(program: Program, steps: Sequence[Step]) -> float:
    """How many threads one picture is worth, not rounded: 0.25 says that four pictures are worth one."""
    return picture_work(program, steps) / UNITS_A_THREAD


def _products(program: Program, step: Step) -> int:
    """Multiply-adds of a convolution or linear layer, 0 of anything else."""
    if step.weight is None or step.op is None:
        return 0
    outputs = math.prod(step.shape)
    return filter_products(program.values[step.source], outputs, step.weight, step.op.attrs)
