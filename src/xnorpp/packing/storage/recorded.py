"""What a file records beside the network: the names of its outputs, and whatever the caller wants to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

Array = npt.NDArray[Any]


def check_module(model: Any) -> None:
    """Refuse what is no model."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` is {type(model).__name__}; an nn.Module is needed")


def check_labels(labels: Any) -> list[str] | None:
    """The names of the outputs as text."""
    if labels is None:
        return None
    several = isinstance(labels, Sequence | np.ndarray) and not isinstance(labels, str | bytes)
    if not several:
        kind = type(labels).__name__
        raise ValueError(f"`labels` is {kind}; a list with one name per output is needed")
    for place, label in enumerate(labels):
        if not isinstance(label, str | int | np.integer):
            raise ValueError(f"`labels` (item {place}: {label!r}) must be names, text or whole numbers")
    return [str(label) for label in labels]


def check_meta(meta: Any) -> dict[str, Any] | None:
    """What else the file records."""
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        raise ValueError(f"`meta` is {type(meta).__name__}; a mapping is needed, which is recorded as JSON")
    for key in meta:
        if not isinstance(key, str):
            raise ValueError(f"`meta` has the key {key!r}; its keys must be text")
    return dict(meta)


def check_truth(name: str, value: Any, *, unset: bool = False) -> None:
    """Refuse what is neither True nor False, nor None where nothing need be said."""
    if not isinstance(value, bool | np.bool_) and not (unset and value is None):
        raise ValueError(f"`{name}` (={value!r}) must be True or False" + (", or None" if unset else ""))


def check_classes(classes: Array, count: int) -> None:
    """Refuse classes of calibration images that the network does not have."""
    if classes.dtype.kind not in "iu":
        raise ValueError(f"`calibration` has classes of type {classes.dtype}; whole numbers are needed")
    wrong = classes[(classes < 0) | (classes >= count)]
    if len(wrong):
        raise ValueError(f"`calibration` has the class {wrong[0]}; the network's are 0 to {count - 1}")


def check_finite(images: Array) -> None:
    """Refuse calibration images that rounding cannot follow."""
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise ValueError("`calibration` has NaN or infinite numbers; leave such images out")
