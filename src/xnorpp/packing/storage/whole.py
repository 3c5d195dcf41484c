"""int8 without calibration images: every large real layer, each filter rounded by itself.

What is rounded. One turned sign turns others, and a few layers on as many differ as after a hundred turned
signs. So finer rounding of a layer helps only where nothing before it is rounded coarsely, and the bytes that
may be spent go to the front: before the first layer in int8 that decides signs, the weights of large layers
have 16 bits and all other real numbers stay as they are.

How a filter is rounded. Real layers before signs are mostly those of shortcuts, and what they take is also
compared with a threshold by the binary layer next to them. A trained threshold is near the mean of what it is
compared with, so the file holds the mean input of these layers. Most of the error that rounding makes is the
error at this mean, and rounding a few weights the other way removes it.
"""

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
# Roles of numbers that are added or compared, and the part of the largest below which their size does not
# matter.
_ADDED = {"bias", "add", "threshold"}
_SMALL = 2.0**-7
STEPS = 127
# Weights below this count stay as they are: they take little room, and a first layer of few weights feeds all
# that follows.
_LARGE = 4096
# A factor below the largest weight's clips a few weights and rounds all others more finely.
_CLIPPED = np.linspace(0.6, 1.0, 21)
FINE_STEPS = 32767
# What 16 bits for the weights of the first layers may add, as a share of all bytes.
_FINE_SHARE = 1 / 128
# The variance of an input, as a share of the mean square of the inputs' means: between 0.15 and 0.55 in the
# networks that ship.
_SPREAD = 0.5


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


def quantise_fine(weight: F32) -> tuple[npt.NDArray[np.int16], F32]:
    """Whole numbers from -32767 to 32767 and one factor per index of the first axis."""
    top = np.abs(weight.reshape(len(weight), -1)).max(axis=1)
    factor = np.where(top > 0, top, 1).astype(np.float32) / np.float32(FINE_STEPS)
    factor = np.where(factor > 0, factor, np.float32(1))
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    whole = np.clip(np.rint(rows / factor.astype(np.float64)[:, None]), -FINE_STEPS, FINE_STEPS)
    return whole.astype(np.int16).reshape(weight.shape), factor


def centre(whole: Array, factor: Array, weight: F32, mean: Array) -> Array:
    """The whole numbers with a few of each filter rounded the other way, for a small error at the mean input.

    Numbers change by one, the best first, as long as the expected square of a filter's error becomes smaller:
    the square of its error at the mean, and what inputs that vary by `_SPREAD` around it add.

    Args:
        whole: The rounded weights, int8 or int16.
        factor: One factor per filter.
        weight: The weights themselves.
        mean: The mean of each input, as large as a filter or as all of them (one row per filter).
    """
    found = whole.reshape(len(whole), -1).astype(np.float64)
    off = found - weight.reshape(found.shape).astype(np.float64) / factor.astype(np.float64)[:, None]
    means = np.broadcast_to(mean.reshape(-1, found.shape[1]).astype(np.float64), found.shape)
    spread = _SPREAD * float(np.mean(means**2))
    most = STEPS if whole.dtype == np.int8 else FINE_STEPS
    rows = np.arange(len(found))
    for _ in range(found.shape[1]):
        own, wrong = means[rows], off[rows]
        slope = (wrong * own).sum(axis=1)[:, None] * own + spread * wrong
        gain, index, step = np.zeros(len(rows)), np.zeros(len(rows), np.int64), np.zeros(len(rows))
        for sign in (-1.0, 1.0):
            change = 2 * sign * slope + own**2 + spread
            change[np.abs(found[rows] + sign) > most] = np.inf
            best = change.argmin(axis=1)
            least = change[np.arange(len(rows)), best]
            better = least < gain
            gain, index = np.where(better, least, gain), np.where(better, best, index)
            step = np.where(better, sign, step)
        moved = step != 0
        rows, index, step = rows[moved], index[moved], step[moved]
        if not len(rows):
            break
        found[rows, index] += step
        off[rows, index] += step
    return found.astype(whole.dtype).reshape(whole.shape)


def mean_input(program: Program, name: str) -> Array | None:
    """The mean input of the layer with this weight, one row per filter, by the threshold of a sign beside it.

    None where no sign takes the same value, before an average pool or after it.
    """
    users = [op for op in program.ops if name in op.tensors.values()]
    if len(users) != 1 or users[0].op not in ("conv2d", "linear"):
        return None
    op, weight = users[0], program.tensors[name]
    made_by = {other.output: other for other in program.ops}
    value = op.inputs[0]
    while value in made_by and made_by[value].op == "avg_pool2d":
        value = made_by[value].inputs[0]
    groups = op.attrs.get("groups", 1)
    for other in program.ops:
        if other.op == "sign" and other.inputs[0] == value and set(other.tensors) <= {"threshold", "flip"}:
            threshold = program.real(other, "threshold")
            if threshold is not None and threshold.shape == (weight.shape[1] * groups,):
                rows = np.repeat(threshold.reshape(groups, -1), len(weight) // groups, axis=0)
                return np.repeat(rows, int(np.prod(weight.shape[2:])), axis=1)
    return None


def store_all(program: Program) -> Program:
    """The program with the weights of its large real layers in int8 (see `store_int8`)."""
    program = add_byte_filters(replace(program, version=VERSION))  # by the weights before they are rounded
    roles = roles_of(program)
    large = {
        name
        for name, used in roles.items()
        if used == {"weight"} and name not in program.scales and is_large(program.tensors[name])
    }
    fine, halves = _front(program, large)
    tensors, scales = dict(program.tensors), dict(program.scales)
    for name in roles:
        tensor = program.tensors[name]
        if name in large:
            scales[name] = f"{name}.scale"
            weight, mean = tensor.astype(np.float32), mean_input(program, name)
            whole, factor = (quantise_fine if name in fine else quantise)(weight)
            tensors[name] = whole if mean is None else centre(whole, factor, weight, mean)
            tensors[scales[name]] = factor
        elif name in halves:
            tensors[name] = halved(tensor, roles[name])
    return replace(program, tensors=tensors, scales=scales)


def _front(program: Program, large: set[str]) -> tuple[set[str], set[str]]:
    """Which large weights get 16 bits, and which other real numbers float16: those after the first int8.

    A layer with filters of its own for the bytes of an image counts as exact: its weights in int8 are for
    float32 input alone.
    """
    sizes = {name: program.tensors[name].size for name in large}
    left = _FINE_SHARE * sum(sizes.get(name, tensor.nbytes) for name, tensor in program.tensors.items())
    fine: set[str] = set()
    coarse: set[str] = set()
    for op in program.ops:
        for name in large & set(op.tensors.values()) - fine:
            if ROLES[0] in op.tensors or not decides_signs(program, {name}):
                continue
            if coarse or sizes[name] > left:
                coarse.add(name)
            else:
                fine.add(name)
                left -= sizes[name]
    after = reached(program, coarse)
    exact = {name for op in program.ops if op.output not in after for name in op.tensors.values()}
    halves = {
        name
        for name in roles_of(program)
        if name not in exact | large | set(program.scales) and program.tensors[name].dtype.kind == "f"
    }
    return fine, halves


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


def reached(program: Program, names: set[str]) -> set[str]:
    """The values that depend on one of these tensors."""
    found: set[str] = set()
    for op in program.ops:
        if names & set(op.tensors.values()) or found & set(op.inputs):
            found.add(op.output)
    return found


def decides_signs(program: Program, rounded: set[str]) -> bool:
    """Whether a sign depends on an operation that has one of these tensors."""
    found = reached(program, rounded)
    return any(op.op == "sign" and op.output in found for op in program.ops)


def halved(tensor: Array, roles: set[str]) -> Array:
    """The tensor in float16, unless that changes one of its numbers more than by rounding.

    Of numbers that are added or compared, those much smaller than the largest one may be rounded as if they
    were larger: a bias of 0.00001 beside one of 1 is no reason to store all of them in float32.
    """
    with np.errstate(over="ignore"):
        half = tensor.astype(np.float16)
    finite = np.isfinite(tensor)
    off = np.abs(half[finite].astype(np.float64) - tensor[finite])
    size = np.abs(tensor[finite].astype(np.float64))
    if roles <= _ADDED:
        size = np.maximum(size, _SMALL * size.max(initial=0.0))
    fits = bool(np.all(off <= _HALF_ERROR * size))
    return half if fits else tensor
