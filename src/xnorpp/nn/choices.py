"""One wording for every argument that is a choice among names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_first(value: object, allowed: Iterable[object]) -> list[object]:
    """The allowed values, the ones spelt most like `value` in front."""
    text = str(value)
    return sorted(allowed, key=lambda name: -difflib.SequenceMatcher(None, text, str(name)).ratio())


def check_choice(argument: str, value: object, allowed: Iterable[object]) -> None:
    """Raises a ValueError that names the argument, its value and what is allowed, nearest first."""
    allowed = tuple(allowed)
    if value not in allowed:
        listed = ", ".join(repr(name) for name in nearest_first(value, allowed))
        raise ValueError(f"`{argument}` (={value!r}) must be one of {listed}")
