"""From a trained torch model to a packed model: `pack`, `pack_program`, `pack_to_file`, `check_packable`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from xnorpp.data import Preprocess
from xnorpp.packing.assemble import assemble
from xnorpp.packing.check import Packability, check_packable
from xnorpp.packing.example import example_inputs, pair_of_images
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import Node, PackError
from xnorpp.packing.moves.sizes import free_graph, is_dense
from xnorpp.packing.obstacles import Obstacle
from xnorpp.packing.parts import Part, PartsReport, pack_submodules
from xnorpp.packing.record import trace, unwrap
from xnorpp.packing.runs.failing import failures_of
from xnorpp.packing.storage import TOLERANCE, check_calibration, check_real, store_int8
from xnorpp.packing.storage.recorded import check_labels, check_meta, check_module, check_truth
from xnorpp.packing.submodule import PackedModule
from xnorpp.packing.verify import Verification, verify
from xnorpp.runtime import PackedModel
from xnorpp.runtime.format.names import with_short_names
from xnorpp.runtime.format.program import Program, write

__all__ = [
    "Obstacle",
    "PackError",
    "Packability",
    "PackedModule",
    "Part",
    "PartsReport",
    "Verification",
    "check_packable",
    "pack",
    "pack_program",
    "pack_submodules",
    "pack_to_file",
    "store_int8",
    "verify",
]


def pack(
    model: nn.Module,
    input_size: int | Sequence[int] | None = None,
    *,
    example: Any = None,
    preprocess: Any = None,
    labels: Sequence[str] | None = None,
    half: bool = False,
    real: str | None = None,
    calibration: Any = None,
    tolerance: float = TOLERANCE,
    any_size: bool | None = None,
    meta: Mapping[str, Any] | None = None,
) -> PackedModel:
    """The packed model of a trained one, as it behaves in evaluation; `model` is left unchanged.

    Args:
        model: Any `nn.Module` made of supported operations.
        input_size: The size of one image: a side, (h, w) or (c, h, w); c defaults to that of the first
            convolution.
        example: Instead of `input_size`, a batch as the model takes it, or a size. Where the model takes
            bytes (uint8), a batch of bytes: they reach the model as they are.
        preprocess: How an image becomes an input, a `Preprocess` or a mapping with some of its fields; it
            travels in the file. Its `mean` and `std` normalise uint8 images, which are x / 255 without them.
        labels: The names of the outputs.
        half: Whether the real-valued weights are stored in 16 bits, as with `real="float16"`.
        real: How real numbers are stored: "float32" (the default), "float16", or "int8": the weights of real
            layers as int8 with one factor per output channel, everything else in 16 bits.
        calibration: For `real="int8"`: images as the model takes them, some hundred of the training set, or a
            pair of images and classes. They choose which layers are rounded, and how; `meta["int8"]` of the
            program reports what was chosen and what changed (see `store_int8`).
        tolerance: The share of answers on these images that may change.
        any_size: Whether height and width may differ from call to call. By default they may where an output
            has rows and columns (a mask) and nothing in the model is bound to a size, such as a scale per
            pixel; True allows it for every model, and raises where something is bound.
        meta: What else the file records, as JSON.

    Returns:
        The model that `xnorpp.load` would give of the file: callable on arrays, with its `program`.

    Raises:
        PackError: If an operation is not supported; the message names the first one, with the module's path,
            the line and the remedy. `check_packable` lists all of them.

    Example:
        >>> import numpy as np
        >>> import xnorpp
        >>> packed = xnorpp.pack(xnorpp.create_model("small", input_size=8), 8)
        >>> packed(np.zeros((2, 8, 8, 3), np.uint8)).shape
        (2, 10)
        >>> size = packed.save("small.xnor")
    """
    program = pack_program(
        model,
        input_size,
        example=example,
        preprocess=preprocess,
        labels=labels,
        half=half,
        real=real,
        calibration=calibration,
        tolerance=tolerance,
        any_size=any_size,
        meta=meta,
    )
    return PackedModel(program)


def pack_program(
    model: nn.Module,
    input_size: int | Sequence[int] | None = None,
    *,
    example: Any = None,
    preprocess: Any = None,
    labels: Sequence[str] | None = None,
    half: bool = False,
    real: str | None = None,
    calibration: Any = None,
    tolerance: float = TOLERANCE,
    any_size: bool | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Program:
    """The packed program of a trained model, what a file contains; the arguments are those of `pack`.

    Example:
        >>> from xnorpp.models import create_model
        >>> from xnorpp.packing import pack_program
        >>> program = pack_program(create_model("small", input_size=8), 8)
        >>> program.input_shape, program.ops[0].op
        ((3, 8, 8), 'conv2d')
    """
    check_module(model)
    check_truth("half", half)
    check_truth("any_size", any_size, unset=True)
    labels, meta = check_labels(labels), check_meta(meta)
    stored = check_real(real, half)
    check_calibration(stored, calibration)
    if (input_size is None) == (example is None):
        given = "both `input_size` and `example` are" if example is not None else "neither is"
        raise ValueError(f"one of `input_size` and `example` is needed; {given} given")
    model = unwrap(model)
    name = "input_size" if example is None else "example"
    whole = example_inputs(model, input_size if example is None else example, name)
    inputs = pair_of_images(whole)
    with failures_of(model, whole, inputs, name):
        traced = trace(model, *inputs)
    outputs, free = _graph(traced, model, inputs, any_size)
    if traced.alone:
        meta = {**(meta or {}), "scalars": list(traced.alone)}
    if traced.shapes:
        meta = {**(meta or {}), "inputs": [list(shape) for shape in traced.shapes]}
    if traced.whole:
        meta = {**(meta or {}), "whole_numbers": True}
    shape = traced.shape
    settings = _settings(preprocess, shape)
    mean, std = (_channels(settings, key, shape[0]) for key in ("mean", "std"))
    if traced.bytes:
        if mean or std:
            raise ValueError(
                "`preprocess` has `mean` or `std`, and the model takes bytes, which it scales itself; give a "
                "mapping without them, or an `example` of numbers"
            )
        std = (1 / 255,) * shape[0]  # bytes reach the model as they are, not as p / 255
    program, _ = assemble(
        outputs,
        shape,
        free_axes=free,
        mean=mean,
        std=std,
        preprocess=settings,
        labels=labels,
        real=stored if calibration is None else "float32",
        meta=meta,
    )
    if calibration is not None:
        return store_int8(program, calibration, tolerance=tolerance)
    return with_short_names(program) if stored == "int8" else program


def _graph(
    traced: Mapping[str, Node], model: nn.Module, inputs: Sequence[Tensor], any_size: bool | None
) -> tuple[dict[str, Node], tuple[int, ...]]:
    """The folded graph of a traced model, and the axes of its input that may have any size."""
    several = len(inputs) > 1
    if any_size and (several or inputs[0].dim() != 4):
        found = (
            f"the model takes {len(inputs)} inputs" if several else f"the input has {inputs[0].dim()} axes"
        )
        raise ValueError(f"`any_size` (=True) is for images (n, c, h, w); {found}")
    outputs = fold(traced)
    if any_size is False or several or inputs[0].dim() != 4 or not (any_size or is_dense(outputs)):
        return outputs, ()
    free, reason = free_graph(model, inputs)
    if free:
        return free, (1, 2)
    if any_size:
        small = min(inputs[0].shape[2:]) < 128  # at one window or one pixel, steps vanish that others need
        remedy = "leave it out, or give a larger example" if small else "leave it out"
        raise PackError(f"`any_size` (=True) is not possible: {reason}; {remedy}")
    return outputs, ()


def pack_to_file(
    model: nn.Module, input_size: int | Sequence[int] | None, path: str | os.PathLike[str], **options: Any
) -> Program:
    """`pack_program` and write the file, whole or not at all.

    Example:
        >>> import os
        >>> from xnorpp.models import create_model
        >>> from xnorpp.packing import pack_to_file
        >>> program = pack_to_file(create_model("small", input_size=8), 8, "small.xnor")
        >>> os.path.getsize("small.xnor") < 150_000
        True
    """
    program = pack_program(model, input_size, **options)
    write(program, path)
    return program


def _settings(preprocess: Any, shape: tuple[int, ...]) -> dict[str, Any] | None:
    if preprocess is None:
        return None
    if hasattr(preprocess, "to_dict"):
        preprocess = preprocess.to_dict()
    if not isinstance(preprocess, Mapping):
        raise ValueError(
            f"`preprocess` is {type(preprocess).__name__}; a mapping or an object with to_dict is needed"
        )
    if len(shape) != 3:
        raise ValueError(f"`preprocess` prepares images, and the model's input has the shape {shape}")
    channels, height, width = shape
    Preprocess.from_dict(preprocess, (channels, height, width))  # checks the values
    return dict(preprocess)


def _channels(settings: dict[str, Any] | None, key: str, count: int) -> tuple[float, ...]:
    if settings is None or settings.get(key) is None:
        return ()
    values = tuple(float(v) for v in settings[key])
    if len(values) != count:
        raise ValueError(
            f"`preprocess` has {len(values)} numbers as `{key}`; the model has {count} input channels"
        )
    return values
