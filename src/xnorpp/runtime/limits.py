"""What a model may take from the machine: bytes of the file, bytes of memory, work of one image.

The format bounds every number in a file (`ops.py`, `program.py`), but generously: a few hundred bytes can
describe values of gigabytes. `load` therefore compares what a program needs with `Limits` before anything of
that size is allocated. Needs are counted as the engines lay things out, not as the file states them: filters
in blocks of 32, floats in pixels of 16 channels, one-bit products in words of 32, and a tensor that several
operations share once for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from xnorpp.runtime.format.bits import window_of
from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import MAX_FILE, Op, Program, ProgramError

__all__ = ["DEFAULT_LIMITS", "Limits", "check_limits", "check_memory", "image_work", "reference_bytes"]


@dataclass(frozen=True)
class Limits:
    """What `load` accepts. A model beyond a limit is a `ProgramError` that names the limit.

    Args:
        file_bytes: size of the file, at most 2**32.
        memory_bytes: weights as the engine lays them out, constants, and the working memory of one call. A
            further call at the same time, or a further thread of a batch, takes its working memory once more.
        multiply_adds: work of one image; 32 one-bit products count as one.

    Example:
        >>> load("large.xnor", limits=Limits(memory_bytes=8 << 30))    # doctest: +SKIP
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


DEFAULT_LIMITS = Limits()


def check_limits(program: Program, limits: Limits) -> None:
    """Refuse a program that no engine can run within `limits`; an engine counts its own layout exactly."""
    work = image_work(program)
    if work > limits.multiply_adds:
        raise _beyond("multiply_adds", limits.multiply_adds, f"{work} multiply-adds for one image")
    check_memory(sum(_constant_bytes(program, op) for op in program.ops), limits)


def check_memory(needed: int, limits: Limits) -> None:
    """Refuse a program that needs more bytes than the limit."""
    if needed > limits.memory_bytes:
        raise _beyond("memory_bytes", limits.memory_bytes, f"at least {needed} bytes of memory")


def reference_bytes(program: Program) -> int:
    """The most that one operation of the reference takes for one image: its values, and its windows."""
    return max(_reference_bytes(program, op) for op in program.ops)


def _beyond(name: str, limit: int, needs: str) -> ProgramError:
    return ProgramError(
        f"this program needs {needs}, and `{name}` of `limits` allows {limit}; "
        f"pass limits=Limits({name}=...) with a larger number to `load`"
    )


def image_work(program: Program) -> int:
    """Multiply-adds of one image, counted as the engines do them (see the top of the file)."""
    return sum(_work(program, op) for op in program.ops)


def _padded(count: int, block: int) -> int:
    return -(-count // block) * block


def _floats(value: Value) -> int:
    """Numbers of a value whose pixels have whole blocks of 16 channels."""
    return value.elements // value.shape[0] * _padded(value.shape[0], 16)


def _work(program: Program, op: Op) -> int:
    source, out = program.values[op.inputs[0]], program.values[op.output]
    weight = program.stored(op, "weight")
    if weight is None:
        window = int(math.prod(op.attrs.get("kernel", (1, 1))))
        return max(_floats(source), _floats(out) * window)
    groups = int(op.attrs.get("groups", 1))
    filters = groups * _padded(out.shape[0] // groups, 32)
    inputs = source.shape[0] // groups
    if op.op.startswith("binary_"):
        inputs = -(-inputs // 32)
    taps = math.prod(window_of(weight)) if weight.ndim == 4 else 1
    return out.elements // out.shape[0] * filters * taps * inputs


def _constant_bytes(program: Program, op: Op) -> int:
    """An operation's tensors as an engine computes with them, and `row` and `col` multiplied out."""
    tensors = {role: program.tensors[name] for role, name in op.tensors.items()}
    packed = 32 if op.op.startswith("bitweight_") else 1  # eight float32 for a byte
    total = sum(packed * t.nbytes if t.dtype == np.uint8 else 4 * t.size for t in tensors.values())
    if "row" in tensors and "col" in tensors:
        total += 4 * tensors["row"].size * tensors["col"].size
    return total


def _reference_bytes(program: Program, op: Op) -> int:
    values = [program.values[name] for name in (*op.inputs, op.output)]
    source, out = values[0], values[-1]
    weight = program.stored(op, "weight")
    window = op.attrs.get("kernel", (1, 1)) if weight is None or weight.ndim == 2 else window_of(weight)
    pixels = out.elements // out.shape[0]
    windows = source.shape[0] * int(math.prod(window)) * pixels if len(source.shape) == 3 else 0
    return 4 * (sum(value.elements for value in values) + windows)
