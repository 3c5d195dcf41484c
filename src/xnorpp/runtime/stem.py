"""The first convolution on the bytes of an image: its whole-numbered filters, the same for every engine.

`csrc/core/program/stem.h` has the formula and how filters are rounded. A file of version 2 holds the rounded
filters where its writer wants them (`add_byte_filters`), and every engine, the reference too, follows it.

Which stems. Rounded filters are other filters: a value near zero gets another sign, and in a network of small
images such signs change the classes of a few images in a hundred. So they are for stems where they pay,
kernels of at least 7x7 with a stride of at least 2 both ways, the stems of networks for large images, whose
many products per pixel take a good part of a call; at most 4096 inputs of a filter, because engines take
them one after the other. In every other stem, and those of 3x3 cost next to nothing either way, each byte
becomes the float32 that it stands for and the answer is, bit for bit, that of the normalised image.

Files of version 1 hold no such filters. There the native engines round by the same rule, as they always did,
and the reference does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.program import Program
from xnorpp.runtime.native import core
from xnorpp.runtime.plan import Step, make_steps

Array = npt.NDArray[Any]

ROLES = ("byte_weight", "byte_mean", "byte_rest", "byte_scale")


@dataclass(frozen=True)
class ImageFilters:
    """q, m, rest and scale of the formula; `step` is the scale."""

    taps: npt.NDArray[np.int16]  # (o, c, kh, kw)
    mean: npt.NDArray[np.int32]  # (o, kh, kw)
    rest: npt.NDArray[np.int32]  # (o,)
    step: npt.NDArray[np.float32]  # (o,)


def byte_step(program: Program, steps: Sequence[Step], *, small: bool = False) -> Step | None:
    """The convolution that takes the bytes themselves, if the program has one: as its file states, in version
    1 a large stem (`small`: any stem that can). Elsewhere each byte becomes the float that it stands for."""
    index = program.native.byte_step("any" if small else "stated")
    return None if index < 0 else steps[index]


def filters_of(program: Program, step: Step) -> ImageFilters:
    """The filters of the step that `byte_step` found: the file's, or rounded."""
    return ImageFilters(*program.native.byte_filters(step.index))


def image_filters(weight: Array, mean: Array, std: Array, stride: int = 1) -> ImageFilters:
    """Rounds the filters `weight` (o, c, kh, kw) with the normalisation folded in."""
    plain = np.ascontiguousarray(weight, np.float32)
    means, stds = ([float(v) for v in row] for row in (mean, std))
    return ImageFilters(*core().round_filters(plain, means, stds, stride))


def add_byte_filters(program: Program) -> Program:
    """The program with whole-numbered filters for the bytes of an image, where they pay (see above)."""
    index = program.native.byte_step("large")
    if index < 0 or program.version < 2:
        return program
    step = make_steps(program)[index]
    assert step.op is not None
    if "byte_weight" in step.op.tensors:
        return program
    found = filters_of(program, step)
    arrays = (found.taps, found.mean.astype(np.int16), found.rest, found.step)
    names = {role: f"{step.op.tensors['weight']}.{role}" for role in ROLES}
    if any(name in program.tensors for name in names.values()):
        raise ValueError(f"the program has a tensor {min(names.values())!r} already")
    changed = replace(step.op, tensors={**step.op.tensors, **names})
    return replace(
        program,
        ops=tuple(changed if op is step.op else op for op in program.ops),
        tensors={**program.tensors, **dict(zip(names.values(), arrays, strict=True))},
    )
