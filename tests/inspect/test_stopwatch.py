"""Timing in turns, and which calls count as undisturbed."""

from __future__ import annotations

import itertools

import pytest

from xnorpp.inspect import stopwatch
from xnorpp.inspect.stopwatch import ENOUGH, NEAR, Probe, Spread, interleave


class Scripted(Probe):
    """A probe that finds what the test says."""

    def __init__(self, found: list[float]) -> None:
        super().__init__()
        self.found = itertools.cycle(found)

    def __call__(self) -> float:
        taken = next(self.found)
        self.best = min(self.best, taken)
        return taken


def test_a_probe_takes_time_and_remembers_its_fastest() -> None:
    probe = Probe()
    taken = [probe() for _ in range(5)]
    assert min(taken) == probe.best > 0


def test_quiet_calls_are_those_between_two_quiet_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: float(next(clock)))
    # a turn asks the probe three times: before, between and after its two calls
    spread = interleave(
        {"a": lambda: None}, rounds=ENOUGH, repeat=2, settle=0, probe=Scripted([1.0, 1.1, 2.0])
    )
    assert spread["a"].calls == 2 * ENOUGH
    assert spread["a"].quiet_calls == ENOUGH, "the second call of each turn met a slow probe"
    assert spread["a"].quiet == 1.0


def test_too_few_quiet_calls_make_no_median() -> None:
    assert Spread.of([1.0, 2.0, 3.0], [1.0] * (ENOUGH - 1)).quiet is None
    assert Spread.of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]).quiet == 3.0


def test_calls_are_not_counted_until_the_core_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now[0])

    def call(seconds: float) -> None:
        now[0] += seconds
        heard.append(seconds)

    heard: list[float] = []
    calls = {"fast": lambda: call(0.25), "slow": lambda: call(2.0)}
    spread = interleave(calls, rounds=1, repeat=1, settle=0, warm=1.0)
    assert heard == [0.25] * 4 + [0.25] + [2.0] + [2.0]
    assert spread["fast"].calls == spread["slow"].calls == 1


def test_without_a_probe_nothing_is_called_quiet() -> None:
    spread = interleave({"a": lambda: None}, rounds=2, repeat=ENOUGH, settle=0)
    assert (spread["a"].quiet, spread["a"].quiet_calls) == (None, 0)


def test_calls_are_sorted_by_the_distance_of_the_cores_around_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: float(next(clock)))
    # two measurements for each turn: near, far, moved in between, unknown
    found = iter([30.0, NEAR, 180.0, 175.0, 30.0, 180.0, -1.0, -1.0] * ENOUGH)
    calls = {"a": lambda: None, "b": lambda: None}
    spread = interleave(calls, rounds=4 * ENOUGH, repeat=2, settle=0, apart={"a": lambda: next(found)})
    assert next(found, None) is None, "all were asked for"
    assert spread["a"].calls == 8 * ENOUGH
    assert (spread["a"].near_calls, spread["a"].far_calls) == (2 * ENOUGH, 2 * ENOUGH)
    assert (spread["a"].near, spread["a"].far) == (1.0, 1.0)
    assert (spread["b"].near, spread["b"].near_calls, spread["b"].far) == (None, 0, None)
