"""int8 without calibration images: every large real layer, each filter rounded by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.program import VERSION, Program
from xnorpp.runtime.stem import ROLES, add_byte_filters

F32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

# Rounding to float16 changes a normal number by at most one part in 2**11; more means that it left the range.
_HALF_ERROR = 2.0**-11
STEPS = 127
# Weights below this count stay as they are: they take little room, and a first layer of few weights feeds all
# that follows.
_LARGE = 4096
# A factor below the largest weight's clips a few weights and rounds all others more finely.
_CLIPPED = np.linspace(0.6, 1.0, 21)


def quantise(weight: F32) -> tuple[npt.NDArray[np.int8], Array]:
    """Whole numbers from -127 to 127 and one factor per index of the first axis, in float16 where it fits.

    The factor is the one of some candidates that leaves the smallest squared error of a filter.
    """
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    largest = np.abs(rows).max(axis=1)
    best, error = np.ones(len(rows)), np.full(len(rows), np.inf)
    dtype: Any = np.float16
    if np.any((largest > 0) & (largest * _CLIPPED[0] / STEPS < np.finfo(np.float16).smallest_normal)):
        dtype = np.float32
    for share in _CLIPPED:
        with np.errstate(over="ignore"):
            factor = (largest * share / STEPS).astype(dtype).astype(np.float64)
        factor = np.where(np.isfinite(factor) & (factor > 0), factor, 1.0)
        whole = np.clip(np.rint(rows / factor[:, None]), -STEPS, STEPS)
        off = ((whole * factor[:, None] - rows) ** 2).sum(axis=1)
        better = off < error
        best, error = np.where(better, factor, best), np.where(better, off, error)
    whole = np.clip(np.rint(rows / best[:, None]), -STEPS, STEPS)
    return whole.astype(np.int8).reshape(weight.shape), best.astype(dtype)


def store_all(program: Program) -> Program:
    """The program with the weights of its large real layers in int8 (see `store_int8`)."""
    large = {
        name
        for name, used in roles_of(program).items()
        if used == {"weight"} and name not in program.scales and is_large(program.tensors[name])
    }
    smaller = decides_signs(program, large)
    tensors: dict[str, Array] = {}
    scales = dict(program.scales)
    for name in roles_of(program):
        tensor = program.tensors[name]
        if name in scales:
            tensors[name], tensors[scales[name]] = tensor, program.tensors[scales[name]]
        elif tensor.dtype.kind != "f":
            tensors[name] = tensor
        elif name in large:
            scales[name] = f"{name}.scale"
            tensors[name], tensors[scales[name]] = quantise(tensor.astype(np.float32))
        else:
            tensors[name] = halved(tensor) if smaller else tensor
    ops = tuple(
        replace(op, tensors={role: name for role, name in op.tensors.items() if role not in ROLES})
        for op in program.ops
    )
    return add_byte_filters(replace(program, ops=ops, tensors=tensors, scales=scales, version=VERSION))


def roles_of(program: Program) -> dict[str, set[str]]:
    """The roles of each tensor, without the whole-numbered filters for bytes."""
    roles: dict[str, set[str]] = {}
    for op in program.ops:
        for role, name in op.tensors.items():
            if role not in ROLES:
                roles.setdefault(name, set()).add(role)
    return roles


def is_large(tensor: Array) -> bool:
    return tensor.dtype.kind == "f" and tensor.ndim > 1 and tensor.size >= _LARGE


def decides_signs(program: Program, rounded: set[str]) -> bool:
    """Whether a sign depends on an operation that has one of these tensors."""
    touched: set[str] = set()
    for op in program.ops:
        if rounded & set(op.tensors.values()) or touched & set(op.inputs):
            touched.add(op.output)
            if op.op == "sign":
                return True
    return False


def halved(tensor: Array) -> Array:
    """The tensor in float16, unless that changes one of its numbers more than by rounding."""
    with np.errstate(over="ignore"):
        half = tensor.astype(np.float16)
    finite = np.isfinite(tensor)
    off = np.abs(half[finite].astype(np.float64) - tensor[finite])
    fits = bool(np.all(off <= _HALF_ERROR * np.abs(tensor[finite].astype(np.float64))))
    return half if fits else tensor
