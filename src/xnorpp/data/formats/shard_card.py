"""The small texts of a shard data set, read with limits: dataset.json, and the label files in the shards.

Whoever made the files decides what they contain, so a number is checked before memory is set aside for it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xnorpp.data.dataset import DatasetError
from xnorpp.runtime.format.preprocess import MAX_SIDE

CARD = "dataset.json"
MAX_CLASSES = 1_000_000
MAX_CARD_BYTES = 64 << 20
MAX_LABEL_BYTES = 1 << 20  # of a .cls or .json file beside an image


@dataclass(frozen=True)
class Card:
    """What dataset.json states: `classes` are names, `fields` replace those of `DatasetInfo`."""

    classes: tuple[str, ...]
    fields: dict[str, Any]


def read_card(folder: Path) -> Card:
    """Read `folder`/dataset.json.

    Args:
        folder: The folder of the shards.

    Returns:
        The card; an empty one if the folder has none.

    Raises:
        DatasetError: The file is not JSON, is too large, or one of its fields cannot be used.
    """
    path = folder / CARD
    if not path.is_file():
        return Card((), {})
    with path.open("rb") as file:
        content = file.read(MAX_CARD_BYTES + 1)
    if len(content) > MAX_CARD_BYTES:
        raise DatasetError(f"{path} is larger than {MAX_CARD_BYTES >> 20} MiB")
    values = _parse(content, path)
    if not isinstance(values, dict):
        raise DatasetError(f"{path} must hold a JSON object")
    names = values.get("classes", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DatasetError(f'{path}: "classes" (={_clip(names)}) must be a list of names')
    if len(names) > MAX_CLASSES:
        raise DatasetError(f'{path}: "classes" has {len(names)} names; at most {MAX_CLASSES} are supported')
    fields: dict[str, Any] = {
        key: _whole(path, key, values[key], 4 if key == "channels" else MAX_SIDE)
        for key in ("image_size", "resize", "channels")
        if values.get(key) is not None
    }
    for key in ("mean", "std"):
        if key in values:
            fields[key] = _numbers(path, key, values[key], fields.get("channels", _length(values[key])))
    return Card(tuple(names), fields)


def read_label(content: bytes, extension: str) -> int | None:
    """The label of a `.cls` or `.json` file; None where it has none, or is larger than `MAX_LABEL_BYTES`.

    Raises:
        ValueError: The label is larger than the number of classes that is supported.
    """
    if len(content) > MAX_LABEL_BYTES:
        return None
    try:
        found = content
        if extension == "json":
            values = json.loads(content)
            found = values["label"] if "label" in values else values["cls"]
        if isinstance(found, float) and not found.is_integer():
            return None
        label = int(found)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if abs(label) >= MAX_CLASSES:
        raise ValueError(f"has the label {_clip(label)}; labels up to {MAX_CLASSES - 1} are supported")
    return label


def check_count(classes: int) -> int:
    """The number of classes, which decides how many names are made."""
    if not 1 <= classes <= MAX_CLASSES:
        raise DatasetError(f"`classes` (={_clip(classes)}) must be from 1 to {MAX_CLASSES}")
    return classes


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _parse(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise DatasetError(f"{path} is JSON that is nested too deeply") from None
    except ValueError as error:
        raise DatasetError(f"{path} is not JSON ({error})") from error


def _whole(path: Path, key: str, value: Any, largest: int) -> int:
    if type(value) is not int or not 1 <= value <= largest:
        raise DatasetError(f'{path}: "{key}" (={_clip(value)}) must be a whole number from 1 to {largest}')
    return value


def _numbers(path: Path, key: str, value: Any, count: int | None) -> tuple[float, ...]:
    least = "positive" if key == "std" else "finite"
    if (
        not isinstance(value, list)
        or len(value) != count
        or not all(type(one) in (int, float) and abs(one) < 1e30 for one in value)
        or not all(math.isfinite(one) and (key == "mean" or one > 1e-30) for one in value)
    ):
        wanted = f"{count} {least} numbers" if count else f"a list of {least} numbers, one per channel"
        raise DatasetError(f'{path}: "{key}" (={_clip(value)}) must be {wanted}')
    return tuple(float(one) for one in value)


def _clip(value: Any) -> str:
    """A value as an error message shows it."""
    if isinstance(value, int) and abs(value) >= 10**30:  # Python refuses to print the longest ones
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
