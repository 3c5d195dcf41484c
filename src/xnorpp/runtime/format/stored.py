"""The tensors of a packed file, as views of its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class StoredTensors(Mapping[str, Array]):
    """The tensors of a file by name: views of its bytes, each made when it is first asked for.

    `hold(begin)` has the core bring the bytes of a tensor back where it has released them, and keep them.
    """

    def __init__(
        self,
        file: bytes | Array,
        places: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], int]],
        hold: Callable[[int], None] | None,
    ) -> None:
        self._file, self._places, self._hold = file, places, hold
        self._views: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        view = self._views.get(name)
        if view is None:
            dtype, shape, begin = self._places[name]
            if self._hold is not None:
                self._hold(begin)
            view = np.frombuffer(self._file, dtype, math.prod(shape), begin).reshape(shape)
            self._views[name] = view
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
