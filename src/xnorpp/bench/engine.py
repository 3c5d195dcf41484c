"""One engine in a comparison: the same network, called with uint8 images and with normalised ones."""

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

    `before` is called before each turn: a library with one thread count for the whole process sets it
    there. `notes` are remarks about the engine for the report.
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
    """An engine that cannot run here; the message gives the reason in one line."""


def random_images(batch: int, shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random uint8 images (n, h, w, c): the time of these engines does not depend on the content."""
    c, h, w = shape
    return np.random.default_rng(seed).integers(0, 256, (batch, h, w, c), dtype=np.uint8)
