"""One engine in a comparison: the same network, called from a uint8 picture and from a normalised one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Precision = Literal["one bit", "fp32", "int8"]

MEAN = (0.485, 0.456, 0.406)  # ImageNet's, as torchvision and the paper's authors use them
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Engine:
    """`from_uint8` takes (n, h, w, c) and normalises, `from_float` takes normalised (n, c, h, w).

    `before` is called in front of each turn: a library with one thread count for the whole process sets it
    there. `notes` are words about the engine for the report.
    """

    name: str
    precision: Precision
    threads: int
    from_uint8: Callable[[Array], Array]
    from_float: Callable[[Array], Array]
    before: Callable[[], object] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def key(self) -> str:
        return f"{self.name}, {self.threads} thread{'s'[: self.threads > 1]}"


class Unavailable(Exception):
    """An engine that cannot take part here; the message is one line that says why."""


def pictures(batch: int, shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random uint8 pictures (n, h, w, c): the time of none of these engines depends on what they show."""
    c, h, w = shape
    return np.random.default_rng(seed).integers(0, 256, (batch, h, w, c), dtype=np.uint8)


def normalise(images: npt.NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> Array:
    """uint8 (n, h, w, c) -> `(x/255 - mean)/std`, float32 (n, c, h, w)."""
    centre, width = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    scaled = (images.astype(np.float32) / np.float32(255) - centre) / width
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), dtype=np.float32)
