"""The batches that a program takes. Every engine checks its input here, without importing another engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.program import Program

Array = npt.NDArray[Any]


def check_input(program: Program, x: Array) -> Array:
    """A batch this program takes: uint8 `(n, h, w, c)` or float32 `(n, c, h, w)`; the rest is an error."""
    c, *rest = program.input_shape
    x = as_array(x)
    if x.dtype == np.uint8:
        wanted, axes = (*rest, c), "(n, h, w, c) uint8" if rest else "(n, c) uint8"
    elif x.dtype.kind == "f" or (x.dtype.kind in "iu" and program.meta.get("whole_numbers") is True):
        wanted, axes = (c, *rest), "(n, c, h, w) float32" if rest else "(n, c) float32"
        x = x.astype(np.float32, copy=False)
    else:
        raise ValueError(f"`x` has dtype {x.dtype}; uint8 images or normalised float32 are needed")
    if x.shape[1:] != wanted and not _fits(program, x):
        free = ", of which height and width may be others," if program.variable else ""
        raise ValueError(
            f"`x` has shape {x.shape}; {axes} with {wanted}{free} after the batch axis is needed"
        )
    return x


def as_array(x: Any, name: str = "`x`") -> Array:
    """What `numpy.asarray` makes of an input; a ValueError names what it cannot convert."""
    try:
        return np.asarray(x)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # lists of unequal lengths, tensors with a gradient
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ValueError(
            f"{name} is {type(x).__name__} and cannot be converted to an array ({reason}); give a numpy "
            "array, or a tensor of float32 or uint8 on the CPU that needs no gradient"
        ) from None


def join_inputs(program: Program, arrays: Sequence[Any]) -> tuple[Array, bool]:
    """The batch of a program whose model takes several inputs, and whether these were of one image alone.

    Each image has the numbers of all inputs one after the other; `meta["inputs"]` has their shapes.
    """
    recorded = program.meta.get("inputs")
    shapes = [tuple(shape) for shape in recorded] if isinstance(recorded, list) else []
    given = [as_array(array, f"input {number}") for number, array in enumerate(arrays)]
    if len(given) != len(shapes):
        raise ValueError(f"{len(given)} inputs are given; the model takes {max(len(shapes), 1)}")
    single = [array.shape for array in given] == shapes
    given = [array[None] for array in given] if single else given
    for number, (array, shape) in enumerate(zip(given, shapes)):
        if array.dtype.kind not in "fiub":
            raise ValueError(f"input {number} has dtype {array.dtype}; numbers are needed")
        if array.shape != (len(given[0]), *shape):
            wanted = ", ".join(map(str, ("n", *shape)))
            raise ValueError(f"input {number} has shape {array.shape}; ({wanted}) with the same n is needed")
    rows = [array.reshape(len(array), -1).astype(np.float32, copy=False) for array in given]
    return np.concatenate(rows, 1), single


def _fits(program: Program, x: Array) -> bool:
    """Whether a batch differs from the program's input in free axes alone."""
    if x.ndim != len(program.input_shape) + 1 or 0 in x.shape[1:]:
        return False
    sizes = enumerate(zip(shape_of_batch(x), program.input_shape, strict=True))
    return all(n == m or axis in program.free_axes for axis, (n, m) in sizes)


def shape_of_batch(x: Array) -> tuple[int, ...]:
    """The shape of one input of a batch that was checked: channels first, without the batch axis."""
    return (x.shape[-1], *x.shape[1:-1]) if x.dtype == np.uint8 else x.shape[1:]
