"""Timing several things side by side: in turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Worker threads of some engines spin for a while after a call; they must not steal the next one's core.
SETTLE = 0.3


@dataclass(frozen=True)
class Spread:
    """The seconds of one call: fastest, quartiles, and how many calls were timed."""

    minimum: float
    lower: float
    median: float
    upper: float
    calls: int

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        ordered = sorted(seconds)
        return cls(
            ordered[0],
            quantile(ordered, 0.25),
            quantile(ordered, 0.5),
            quantile(ordered, 0.75),
            len(ordered),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def quantile(ordered: list[float], fraction: float) -> float:
    """The value at `fraction` of a sorted list, linear between neighbours."""
    if not ordered:
        raise ValueError("`ordered` (=[]) must have a value")
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 10,
    repeat: int = 5,
    settle: float = SETTLE,
    before: Mapping[str, Callable[[], object]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Spread]:
    """Time each call in turns: A, B, C, A, B, C, ... for `rounds` rounds.

    A turn is a pause, `before[name]` (settings that are global to a library), one call that is not counted
    (it brings the caches back) and `repeat` that are. `progress` hears the number of each finished round.
    """
    if rounds < 1 or repeat < 1:
        raise ValueError(f"`rounds` (={rounds}) and `repeat` (={repeat}) must be at least 1")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds):
        for name, call in calls.items():
            time.sleep(settle)
            if before and name in before:
                before[name]()
            call()
            for _ in range(repeat):
                start = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - start)
        if progress:
            progress(index + 1)
    return {name: Spread.of(times) for name, times in seconds.items()}
