"""What a model may take from the machine: bytes of the file, bytes of memory, work of one image, threads.

The format bounds every number in a file, but generously: a few hundred bytes can describe values of
gigabytes. `load` therefore compares what a program needs with `Limits` before anything of that size is
allocated. The core counts needs as the engines lay things out (`csrc/core/program/program.cpp`), not as the
file states them: filters in blocks of 32, floats in pixels of 16 channels, one-bit products in words of 32,
and a tensor that several operations share once for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from xnorpp.runtime.format.program import MAX_FILE, Op, Program, ProgramError

__all__ = [
    "DEFAULT_LIMITS",
    "Limits",
    "check_limits",
    "check_memory",
    "check_threads",
    "image_work",
    "reference_bytes",
    "threads_worth",
    "work_per_image",
]


@dataclass(frozen=True)
class Limits:
    """What `load` accepts. A model beyond a limit is a `ProgramError` that names the limit.

    Args:
        file_bytes: size of the file, at most 2**32.
        memory_bytes: weights as the engine lays them out, constants, and the working memory of one call. A
            further call at the same time, or a further thread of a batch, takes its working memory once more.
        multiply_adds: work of one image; 32 one-bit products count as one.

    Example:
        >>> import xnorpp
        >>> from xnorpp.runtime import Limits
        >>> model = xnorpp.load("cifar10-resnet20", limits=Limits(memory_bytes=8 << 30))
    """

    file_bytes: int = MAX_FILE
    memory_bytes: int = 1 << 31
    multiply_adds: int = 1 << 38

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"`{field.name}` (={value!r}) must be a positive integer")
        if self.file_bytes > MAX_FILE:
            raise ValueError(f"`file_bytes` (={self.file_bytes}) must be at most {MAX_FILE}")

    @property
    def numbers(self) -> tuple[int, int, int]:
        """As the core takes them."""
        most = (1 << 63) - 1
        return self.file_bytes, min(self.memory_bytes, most), min(self.multiply_adds, most)


DEFAULT_LIMITS = Limits()


def check_limits(program: Program, limits: Limits) -> None:
    """Refuse a program that no engine can run within `limits`; an engine counts its own layout exactly."""
    program.native.check_limits(limits.numbers)


def check_memory(needed: int, limits: Limits) -> None:
    """Refuse a program that needs more bytes than the limit."""
    if needed > limits.memory_bytes:
        raise ProgramError(
            f"this program needs at least {needed} bytes of memory, and `memory_bytes` of `limits` allows "
            f"{limits.memory_bytes}; pass limits=Limits(memory_bytes=...) with a larger number to `load`"
        )


def image_work(program: Program) -> int:
    """Multiply-adds of one image, counted as the engines do them (see the top of the file)."""
    return int(program.native.image_work)


def reference_bytes(program: Program) -> int:
    """The most that one operation of the reference takes for one image: its values, and its windows."""
    return max(_reference_bytes(program, op) for op in program.ops)


def _reference_bytes(program: Program, op: Op) -> int:
    values = [program.values[name] for name in (*op.inputs, op.output)]
    source, out = values[0], values[-1]
    window = program.window(op) if "weight" in op.tensors else op.attrs.get("kernel", (1, 1))
    pixels = out.elements // out.shape[0]
    windows = source.shape[0] * int(math.prod(window)) * pixels if len(source.shape) == 3 else 0
    return 4 * (sum(value.elements for value in values) + windows)


# How many threads the work of one image is worth; the core counts. With AVX-512 a microsecond is some 22,000
# to 45,000 units over the listed networks: good enough to tell a network of 0.03 ms, where threads wait for
# each other longer than they work, from one of 0.3 ms, where they help.
MAX_THREADS = 1024  # that a caller may ask for; a million would take the machine down, not make it faster
# Below twice this, some 0.15 ms, two threads were at most 1.3 times as fast as one at best, and slower where
# another program wanted a core, or where they slept since the last call.
UNITS_A_THREAD = 1 << 21


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that no engine is made with, before any thread is made."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise ValueError(f"`threads` (={threads!r}) must be an integer from 1 to {MAX_THREADS}, or None")


def work_per_image(program: Program) -> float:
    """Units of one image: a real multiply-add, 64 binary ones, or a 24th of a number that a step makes."""
    return float(program.native.units)


def threads_worth(program: Program) -> float:
    """How many threads one image is worth, not rounded: 0.25 means that four images are worth one."""
    return float(program.native.threads_worth)
