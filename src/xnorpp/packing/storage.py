"""How a program's real numbers are stored: float32, float16, or int8 with one factor per output channel.

`store_int8` works on a checked program, so it also makes a packed file smaller without the network that it
came from. What a file holds is exact: engines compute with `float32(q) * scale` and agree as they always do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.program import VERSION, Program
from xnorpp.runtime.stem import ROLES, add_byte_filters

REAL = ("float32", "float16", "int8")

F32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

# Rounding to float16 changes a normal number by at most one part in 2**11; more means that it left the range.
_HALF_ERROR = 2.0**-11
_STEPS = 127
# Weights below this count stay as they are: they take little room, and a first layer of few weights feeds all
# that follows.
_LARGE = 4096
# A factor below the largest weight's clips a few weights and rounds all others more finely.
_CLIPPED = np.linspace(0.6, 1.0, 21)


def check_real(real: str | None, half: bool) -> str:
    """The storage asked for, where `half` is the older way to ask for float16."""
    if real is None:
        return "float16" if half else "float32"
    if real not in REAL:
        raise ValueError(f"`real` (={real!r}) must be one of {', '.join(REAL)}")
    if half and real != "float16":
        raise ValueError(
            f"`half` (=True) means `real='float16'`, and `real` (={real!r}) was given; leave one out"
        )
    return real


def quantise(weight: F32) -> tuple[npt.NDArray[np.int8], Array]:
    """Whole numbers from -127 to 127 and one factor per index of the first axis, in float16 where it fits.

    The factor is the one of some candidates that leaves the smallest squared error of a filter.
    """
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    largest = np.abs(rows).max(axis=1)
    best, error = np.ones(len(rows)), np.full(len(rows), np.inf)
    dtype: Any = np.float16
    if np.any((largest > 0) & (largest * _CLIPPED[0] / _STEPS < np.finfo(np.float16).smallest_normal)):
        dtype = np.float32
    for share in _CLIPPED:
        with np.errstate(over="ignore"):
            factor = (largest * share / _STEPS).astype(dtype).astype(np.float64)
        factor = np.where(np.isfinite(factor) & (factor > 0), factor, 1.0)
        whole = np.clip(np.rint(rows / factor[:, None]), -_STEPS, _STEPS)
        off = ((whole * factor[:, None] - rows) ** 2).sum(axis=1)
        better = off < error
        best, error = np.where(better, factor, best), np.where(better, off, error)
    whole = np.clip(np.rint(rows / best[:, None]), -_STEPS, _STEPS)
    return whole.astype(np.int8).reshape(weight.shape), best.astype(dtype)


def store_int8(program: Program) -> Program:
    """The program with the weights of its large real layers in int8, one factor per output channel.

    In a binary network the smallest change before a sign turns other signs further on. So where no sign
    depends on a rounded layer, all other numbers stay as they are. Where one does, they are stored in
    float16, a much smaller change than that of the weights; numbers that float16 does not hold to its usual
    precision stay float32. The whole-numbered filters for the bytes of an image are rounded again, from the
    new weights, so that bytes and float32 give the same result up to their rounding.

    Example:
        >>> from xnorpp.models import create_model
        >>> from xnorpp.packing import pack_program, store_int8
        >>> program = pack_program(create_model("small", input_size=8, width=64), 8)
        >>> sum(tensor.nbytes for tensor in store_int8(program).tensors.values()) < sum(
        ...     tensor.nbytes for tensor in program.tensors.values()
        ... )
        True
    """
    large = {
        name
        for name, used in _roles(program).items()
        if used == {"weight"} and name not in program.scales and _is_large(program.tensors[name])
    }
    smaller = _decides_signs(program, large)
    tensors: dict[str, Array] = {}
    scales = dict(program.scales)
    for name in _roles(program):
        tensor = program.tensors[name]
        if name in scales:
            tensors[name], tensors[scales[name]] = tensor, program.tensors[scales[name]]
        elif tensor.dtype.kind != "f":
            tensors[name] = tensor
        elif name in large:
            scales[name] = f"{name}.scale"
            tensors[name], tensors[scales[name]] = quantise(tensor.astype(np.float32))
        else:
            tensors[name] = _smaller(tensor) if smaller else tensor
    ops = tuple(
        replace(op, tensors={role: name for role, name in op.tensors.items() if role not in ROLES})
        for op in program.ops
    )
    return add_byte_filters(replace(program, ops=ops, tensors=tensors, scales=scales, version=VERSION))


def _roles(program: Program) -> dict[str, set[str]]:
    """The roles of each tensor, without the whole-numbered filters for bytes."""
    roles: dict[str, set[str]] = {}
    for op in program.ops:
        for role, name in op.tensors.items():
            if role not in ROLES:
                roles.setdefault(name, set()).add(role)
    return roles


def _is_large(tensor: Array) -> bool:
    return tensor.dtype.kind == "f" and tensor.ndim > 1 and tensor.size >= _LARGE


def _decides_signs(program: Program, rounded: set[str]) -> bool:
    """Whether a sign depends on an operation that has one of these tensors."""
    touched: set[str] = set()
    for op in program.ops:
        if rounded & set(op.tensors.values()) or touched & set(op.inputs):
            touched.add(op.output)
            if op.op == "sign":
                return True
    return False


def _smaller(tensor: Array) -> Array:
    """The tensor in float16, unless that changes one of its numbers more than by rounding."""
    with np.errstate(over="ignore"):
        half = tensor.astype(np.float16)
    finite = np.isfinite(tensor)
    off = np.abs(half[finite].astype(np.float64) - tensor[finite])
    fits = bool(np.all(off <= _HALF_ERROR * np.abs(tensor[finite].astype(np.float64))))
    return half if fits else tensor
