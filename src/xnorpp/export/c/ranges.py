"""How large the values of a program become: what the scales of fixed-point numbers are chosen from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.reference import byte_values, run

Array = npt.NDArray[Any]

SAMPLES = 8


def example_inputs(program: Program, from_bytes: bool, count: int = SAMPLES) -> Array:
    """Inputs for a program without data of its own: noise of several grains, flat areas and edges."""
    rng = np.random.default_rng(0)
    channels, *rest = program.input_shape
    height, width = ([1, 1, *rest])[-2:]
    images = np.empty((count, channels, int(np.prod(rest[:-2], dtype=int)) * height, width), np.float32)
    for index in range(count):
        grain = min((1, 2, 4, 8)[index % 4], height, width)
        small = rng.uniform(0, 1, (channels, images.shape[2] // grain + 1, width // grain + 1))
        if index % 3 == 0:
            small = small.round()
        full = small.repeat(grain, axis=1).repeat(grain, axis=2)
        images[index] = full[:, : images.shape[2], :width] * rng.uniform(0.3, 1)
    images = images.reshape(count, channels, *rest)
    if from_bytes:
        return np.moveaxis((images * 255).astype(np.uint8), 1, -1)
    return np.asarray((images * 2 - 1) * 2, np.float32)


def value_ranges(program: Program, inputs: Array, from_bytes: bool) -> Mapping[str, float]:
    """The largest magnitude of every value over the inputs; at least a small number, and finite."""
    largest = {name: 1.0 if value.kind == "int" else 1e-6 for name, value in program.values.items()}
    for first in range(0, len(inputs), 4):
        with np.errstate(all="ignore"):
            _, values = run(program, inputs[first : first + 4], keep=program.values)
        for name, value in values.items():
            magnitudes = np.abs(value[np.isfinite(value)])
            largest[name] = max(largest[name], float(magnitudes.max(initial=0)))
    if from_bytes:
        largest[INPUT] = float(np.abs(byte_values(program)).max())
    return largest
