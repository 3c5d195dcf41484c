"""One start of a kernel: what is compiled, and what each argument is.

An argument is a number or a reference (`Constant`, `Local`, `Caller`); whoever runs a launch (cuda.py, or
the tests on a CPU) says at which address each lies.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.cuda.source import kernel_source
from xnorpp.runtime.plan import Spatial

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Constant:
    """An array of the model, by its key."""

    key: str


@dataclass(frozen=True)
class Local:
    """A byte of the working memory."""

    offset: int


@dataclass(frozen=True)
class Caller:
    """A byte of the caller's input or output."""

    output: bool
    offset: int


@dataclass(frozen=True)
class Kernel:
    """What is compiled: a file of kernels/ or a text, the numbers written above it, and how it is started."""

    file: str  # "": `text`
    macros: tuple[tuple[str, int | str], ...]
    entry: str
    threads: int
    shared: int
    text: str = ""

    def source(self) -> str:
        return kernel_source(self.file, dict(self.macros), self.text)


@dataclass(frozen=True)
class Launch:
    """One kernel start. A grid of `tiles * columns` blocks; with `stay`, as many rows of it as fit."""

    name: str
    kernel: Kernel
    structure: type[ctypes.Structure]
    arguments: Mapping[str, Any]
    tiles: int
    columns: int = 1
    stay: bool = False
    unit: int = 0
    images: int = 0

    def grid(self, resident: int) -> int:
        """Blocks to start, where `resident` of them fit on the GPU at once."""
        rows = min(self.tiles, max(1, resident // self.columns)) if self.stay else self.tiles
        return rows * self.columns

    def bind(self, address: Callable[[Constant | Local | Caller], int]) -> ctypes.Structure:
        """The arguments as the kernel takes them."""
        filled = self.structure()
        _fill(filled, self.arguments, address)
        return filled

    def touches_caller(self) -> bool:
        return _any_caller(self.arguments)


def _fill(structure: Any, fields: Mapping[str, Any], address: Callable[[Any], int]) -> None:
    for name, value in fields.items():
        if isinstance(value, Constant | Local | Caller):
            setattr(structure, name, address(value))
        elif isinstance(value, Mapping):
            _fill(getattr(structure, name), value, address)
        elif isinstance(value, tuple):
            array = getattr(structure, name)
            for index, item in enumerate(value):
                if isinstance(item, Mapping):
                    _fill(array[index], item, address)
                elif isinstance(item, int | float):
                    array[index] = item
                elif item is not None:
                    array[index] = address(item)
        elif value is not None:
            setattr(structure, name, value)


def _any_caller(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_any_caller(item) for item in value.values())
    if isinstance(value, tuple):
        return any(_any_caller(item) for item in value)
    return isinstance(value, Caller)


def extent(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A value of any rank as channels, rows and columns; the order of its elements stays."""
    return shape[0], math.prod(shape[1:-1]), shape[-1] if len(shape) > 1 else 1


def by_pixel(spatial: Spatial | None) -> Array:
    """A full factor (c, h, w) as [pixel][channel]."""
    assert spatial is not None
    dense = spatial.dense()
    return np.moveaxis(dense, 0, -1).reshape(-1, dense.shape[0])
