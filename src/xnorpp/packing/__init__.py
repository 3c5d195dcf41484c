"""From a trained torch model to a packed program: `pack(model, input_size)` and `pack_to_file`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from xnorpp.data import Preprocess
from xnorpp.packing.assemble import assemble
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import PackError
from xnorpp.packing.trace import trace, unwrap
from xnorpp.packing.verify import Verification, verify
from xnorpp.runtime.format.program import Program, write

__all__ = ["PackError", "Verification", "pack", "pack_to_file", "verify"]


def pack(
    model: nn.Module,
    input_size: int | Sequence[int],
    *,
    preprocess: Any = None,
    labels: Sequence[str] | None = None,
    half: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Program:
    """The packed program of a trained model, as it behaves in evaluation; the model is left unchanged.

    `input_size` is the picture's size: a number, (h, w) or (c, h, w); without c the first convolution has it.
    `preprocess` (a `Preprocess`, or a mapping with some of its fields) travels in the file; its `mean` and
    `std` normalise uint8 pictures, which are x / 255 without them. `half` stores the real-valued weights in
    16 bits. An operation that is not supported is a `PackError` with the module's path, the operation and
    the line.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` is {type(model).__name__}; an nn.Module is needed")
    model = unwrap(model)
    shape = _shape(model, input_size)
    settings = _settings(preprocess, shape)
    mean, std = (_channels(settings, key, shape[0]) for key in ("mean", "std"))
    output = fold(trace(model, shape))
    program, _ = assemble(
        output, shape, mean=mean, std=std, preprocess=settings, labels=labels, half=half, meta=meta
    )
    return program


def pack_to_file(
    model: nn.Module, input_size: int | Sequence[int], path: str | os.PathLike[str], **options: Any
) -> Program:
    """`pack` and write the file, whole or not at all."""
    program = pack(model, input_size, **options)
    write(program, path)
    return program


def _settings(preprocess: Any, shape: tuple[int, int, int]) -> dict[str, Any] | None:
    if preprocess is None:
        return None
    if hasattr(preprocess, "to_dict"):
        preprocess = preprocess.to_dict()
    if not isinstance(preprocess, Mapping):
        raise ValueError(
            f"`preprocess` is {type(preprocess).__name__}; a mapping or an object with to_dict is needed"
        )
    Preprocess.from_dict(preprocess, shape)  # checks the values
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


def _shape(model: nn.Module, input_size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = [input_size, input_size] if isinstance(input_size, int) else list(input_size)
    if len(sizes) not in (2, 3) or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(f"`input_size` (={input_size!r}) must be a positive number, (h, w) or (c, h, w)")
    if len(sizes) == 3:
        return int(sizes[0]), int(sizes[1]), int(sizes[2])
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    return int(channels), int(sizes[0]), int(sizes[1])
