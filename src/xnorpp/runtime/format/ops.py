"""The operation set of packed programs, as the native core has it (`csrc/core/operations`).

One row for an operation: its inputs, attributes and tensors, a shape rule and a cost. `infer` checks one
operation against the values it reads; reading a file does the same for all of them before anything else looks
at it, so an engine may rely on all that is checked there. Shapes leave out the batch axis: `(c, h, w)` or
`(c,)`. What an operation computes is defined in `runtime/reference`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from xnorpp.lazy import names_from
from xnorpp.runtime.native import ProgramError, core

__all__ = ["ProgramError", "Rule", "Value", "infer", "operations", "pooled_size", "window_size"]

if not TYPE_CHECKING:  # a type checker is to refuse names that do not exist
    __getattr__ = names_from(__name__, {})  # names of 0.1.0

Kind = Literal["f32", "bits", "int"]
Array = npt.NDArray[Any]

CODES: dict[np.dtype[Any], str] = {  # safetensors' names of the types a tensor may be stored with
    np.dtype("<f4"): "F32", np.dtype("<i4"): "I32", np.dtype("<f2"): "F16", np.dtype("<i2"): "I16",
    np.dtype("u1"): "U8", np.dtype("i1"): "I8",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """What an operation gives: `f32`, `bits` (-1 or +1 each) or `int` (dot products), and its shape."""

    kind: Kind
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Rule:
    """One operation: the kinds each input may have, its attributes, its required and optional tensors."""

    inputs: tuple[tuple[Kind, ...], ...]
    attrs: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    since: int  # the operation set that has it first
    more_attrs: tuple[str, ...]  # that may be absent; given, they need set 2
    many: bool  # any number of inputs more, of the last one's kinds
    shapes: int  # how many of its last inputs give their shape alone: no engine reads their numbers

    def opset(self, attrs: Mapping[str, Any]) -> int:
        """The operation set that an operation with these attributes needs."""
        return max(self.since, 2 if any(name in attrs for name in self.more_attrs) else 1)


@cache
def operations() -> Mapping[str, Rule]:
    """Every operation by its name."""
    return {name: Rule(*row) for name, *row in core().operations()}


def stored_rows(
    tensors: Mapping[str, Array],
) -> list[tuple[str, str, tuple[int, ...], npt.NDArray[np.uint8]]]:
    """Tensors as the core takes them: name, type, shape and bytes (little-endian, contiguous)."""
    rows = []
    for name, tensor in tensors.items():
        plain = np.require(tensor, tensor.dtype.newbyteorder("<"), "C")
        code = CODES.get(plain.dtype, str(plain.dtype))
        rows.append((name, code, plain.shape, plain.reshape(-1).view(np.uint8)))
    return rows


def infer(
    op: str, where: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any], tensors: Mapping[str, Array]
) -> tuple[Value, int]:
    """Check one operation; returns the value it makes and its work (multiply-adds or elements touched)."""
    given = [(value.kind, list(value.shape)) for value in inputs]
    text = json.dumps(dict(attrs), default=list)
    kind, shape, work = core().infer(op, where, given, text, stored_rows(tensors))
    return Value(kind, shape), work


def window_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """`floor((size + 2*padding - dilation*(kernel-1) - 1) / stride) + 1`: windows that fit; may be < 1."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def pooled_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """As `window_size`; `ceil_mode` rounds up, but drops a last window that would start in the padding."""
    if not ceil_mode:
        return window_size(size, kernel, stride, padding, 1)
    count = -((size + 2 * padding - kernel) // -stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count
