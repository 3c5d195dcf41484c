"""How much one image costs, roughly, and how many threads that is worth; the core counts
(`csrc/core/plan.h`).

Measured with AVX-512 a microsecond is some 22,000 to 45,000 units over the listed networks. That is good
enough to tell a network of 0.03 ms, where threads wait for each other longer than they work, from one of 0.3
ms, where they help.
"""

from __future__ import annotations

from xnorpp.runtime.format.program import Program

__all__ = ["MAX_THREADS", "UNITS_A_THREAD", "check_threads", "picture_work", "threads_worth"]

MAX_THREADS = 1024  # that a caller may ask for; a million would take the machine down, not make it faster
# Below twice this, some 0.15 ms, two threads were at most 1.3 times as fast as one at best, and slower where
# another program wanted a core, or where they slept since the last call.
UNITS_A_THREAD = 1 << 21


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that no engine is made with, before any thread is made."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise ValueError(f"`threads` (={threads!r}) must be an integer from 1 to {MAX_THREADS}, or None")


def picture_work(program: Program) -> float:
    """Units of one image: a real multiply-add, 64 binary ones, or a 24th of a number that a step makes."""
    return float(program.native.units)


def threads_worth(program: Program) -> float:
    """How many threads one image is worth, not rounded: 0.25 means that four images are worth one."""
    return float(program.native.threads_worth)
