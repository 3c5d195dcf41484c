"""Arguments that are a choice among names: the check, its message, and suggestions for a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import TypeVar

Name = TypeVar("Name")


def nearest_first(value: object, allowed: Iterable[Name]) -> list[Name]:
    """Sort allowed values by similarity of spelling, most similar first; ties are in alphabetical order.

    Args:
        value: What was given.
        allowed: What would have been valid.

    Returns:
        All of `allowed`, sorted.

    Example:
        >>> nearest_first("trian", ["eval", "train"])
        ['train', 'eval']
    """
    text = str(value)

    def key(name: Name) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, text, str(name)).ratio(), str(name)

    return sorted(allowed, key=key)


def check_flag(argument: str, value: object) -> None:
    """Check that an argument is true or false: any other word would count as true.

    Raises:
        ValueError: It is neither.
    """
    if value not in (False, True):
        raise ValueError(f"`{argument}` (={value!r}) must be true or false")


def check_whole(argument: str, value: object, least: int = 1) -> None:
    """Check that an argument is a whole number of at least `least`.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"`{argument}` (={value!r}) must be a whole number of at least {least}")
    if int(value) < least:
        raise ValueError(f"`{argument}` (={value}) must be at least {least}")


def check_choice(argument: str, value: object, allowed: Iterable[object]) -> None:
    """Check that an argument has one of the allowed values.

    Args:
        argument: The name of the argument, for the message.
        value: What was given.
        allowed: What is valid.

    Raises:
        ValueError: `value` is not allowed. The message lists the valid values, most similar first.
    """
    allowed = tuple(allowed)
    if value not in allowed:
        listed = ", ".join(repr(name) for name in nearest_first(value, allowed))
        raise ValueError(f"`{argument}` (={value!r}) must be one of {listed}")
