"""Timing several things side by side: in turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Worker threads of some engines spin for a while after a call; they must not steal the next one's core. With
# one thread each there is nobody to wait for, and a long pause only lets the processor go to sleep.
SETTLE, SETTLE_ALONE = 0.3, 0.01
# After a pause a core needs 5 to 10 ms until it is fast again. One call of a slow engine lasts longer than
# that; of a fast one, and of a network on several threads, it takes many.
WARM = 0.025

# A probe within this of the fastest one found the core undisturbed; on a shared core it takes 1.35 and more.
QUIET = 1.2
ENOUGH = 5  # quiet calls make a median
# Nanoseconds for a cache line from one core to the other: within one group of cores 20 to 60, between two
# groups 110 and more. A virtual machine may be moved from one to the other in the middle of a run.
NEAR = 100.0


class Probe:
    """A fixed bit of arithmetic, some 0.1 ms: its time shows whether the core is undisturbed.

    Where a neighbour uses the other half of a core, as on shared machines, arithmetic slows down by a half
    and more, dense kernels most. A time taken then shows little about the engine. So a call is
    called quiet where the probe before it and the one after it were both near the fastest probe of the run;
    the rule is the same for every engine.
    """

    def __init__(self) -> None:
        self._matrix = np.random.default_rng(0).standard_normal((64, 64), np.float32)
        self._out = np.empty_like(self._matrix)
        self.best = math.inf

    def __call__(self) -> float:
        """The faster of two tries: the first may find the caches cold."""
        taken = min(self._once(), self._once())
        self.best = min(self.best, taken)
        return taken

    def _once(self) -> float:
        start = time.perf_counter()
        for _ in range(16):
            np.matmul(self._matrix, self._matrix, out=self._out)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Spread:
    """The seconds of one call: fastest, quartiles, how many calls were timed, and what 90 and 99 of 100
    calls took at most.

    `quiet` is the median over the calls that a `Probe` found undisturbed, None where they were too few or
    nobody looked. `near` and `far` are the medians over the calls during which the two cores of the process
    were within `NEAR` of each other, and farther apart.
    """

    minimum: float
    lower: float
    median: float
    upper: float
    calls: int
    quiet: float | None = None
    quiet_calls: int = 0
    p90: float | None = None
    p99: float | None = None
    near: float | None = None
    near_calls: int = 0
    far: float | None = None
    far_calls: int = 0

    @classmethod
    def of(
        cls,
        seconds: list[float],
        quiet: Sequence[float] = (),
        near: Sequence[float] = (),
        far: Sequence[float] = (),
    ) -> Spread:
        ordered = sorted(seconds)
        return cls(
            ordered[0],
            quantile(ordered, 0.25),
            quantile(ordered, 0.5),
            quantile(ordered, 0.75),
            len(ordered),
            _median(quiet),
            len(quiet),
            quantile(ordered, 0.9),
            quantile(ordered, 0.99),
            _median(near),
            len(near),
            _median(far),
            len(far),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _median(seconds: Sequence[float]) -> float | None:
    """None of fewer calls than make a median."""
    return quantile(sorted(seconds), 0.5) if len(seconds) >= ENOUGH else None


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
    rounds: int | None = 10,
    repeat: int = 5,
    seconds: float | None = None,
    settle: float = SETTLE,
    warm: float = 0.0,
    before: Mapping[str, Callable[[], object]] | None = None,
    probe: Probe | None = None,
    apart: Mapping[str, Callable[[], float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Spread]:
    """Time each call in turns: A, B, C, A, B, C, ... for `rounds` rounds, or until `seconds` have passed.

    A turn is a pause, `before[name]` (settings that are global to a library), calls that are not counted (the
    first brings the caches back; others follow until `warm` seconds have passed) and `repeat` that are. A
    `probe` is asked around each of them, and `apart[name]`, nanoseconds from one core to the other (below 0:
    unknown), at both ends of the turn. `progress` hears the number of each finished round. With `seconds` the
    round in which they pass is the last one; `rounds=None` sets no other limit.
    """
    if repeat < 1 or (rounds is not None and rounds < 1):
        raise ValueError(f"`rounds` (={rounds}) and `repeat` (={repeat}) must be at least 1")
    if rounds is None and seconds is None:
        raise ValueError("one of `rounds` (=None) and `seconds` (=None) must be given")
    begin = time.monotonic()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    probes: dict[str, list[float]] = {name: [] for name in calls}
    near: dict[str, list[float]] = {name: [] for name in calls}
    far: dict[str, list[float]] = {name: [] for name in calls}
    for index in itertools.count() if rounds is None else range(rounds):
        for name, call in calls.items():
            time.sleep(settle)
            if before and name in before:
                before[name]()
            measure = apart.get(name) if apart else None
            begun = measure() if measure else -1.0
            warmed = time.monotonic() + warm
            call()
            while time.monotonic() < warmed:
                call()
            last = probe() if probe else 0.0
            for _ in range(repeat):
                start = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - start)
                following = probe() if probe else 0.0
                probes[name].append(max(last, following))
                last = following
            ended = measure() if measure else -1.0
            turn = taken[name][-repeat:]
            if 0 <= begun <= NEAR and 0 <= ended <= NEAR:
                near[name] += turn
            elif min(begun, ended) > NEAR:
                far[name] += turn
        if progress:
            progress(index + 1)
        if seconds is not None and time.monotonic() - begin >= seconds:
            break
    limit = QUIET * probe.best if probe else -1.0
    return {
        name: Spread.of(
            times,
            [t for t, found in zip(times, probes[name]) if found <= limit],
            near[name],
            far[name],
        )
        for name, times in taken.items()
    }
