"""How far the cores of a benchmark with several threads are apart. No time is asserted."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from xnorpp.bench import machine
from xnorpp.bench.report import complete, machine_text
from xnorpp.runtime.native import core


def described(cpus: Path, l3: dict[int, str]) -> Path:
    """A folder as Linux describes cores in, each with an L2 of its own and an L3 that others share."""
    for number, shared in l3.items():
        for index, (level, cores) in enumerate((("2", str(number)), ("3", shared))):
            place = cpus / f"cpu{number}" / "cache" / f"index{index}"
            place.mkdir(parents=True)
            (place / "level").write_text(f"{level}\n")
            (place / "shared_cpu_list").write_text(f"{cores}\n")
    return cpus


@pytest.mark.parametrize(
    ("l3", "nanoseconds", "expected"),
    [
        ({0: "0-1", 1: "0-1"}, 47.26, {"share_l3": True, "line_ns": 47.3}),
        ({0: "0-7", 1: "8-15"}, 210.0, {"share_l3": False, "line_ns": 210.0}),
        ({0: "0-1", 1: "0-1"}, -1.0, {"share_l3": True}),
        ({0: "0"}, 50.0, {"line_ns": 50.0}),
        ({0: "0-2", 1: "0-2", 2: "0-2"}, 50.0, {"share_l3": True}),
    ],
    ids=["shared", "apart", "not measured", "not described", "three cores"],
)
def test_what_is_known_of_the_cores(
    l3: dict[int, str],
    nanoseconds: float,
    expected: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = max(2, len(l3))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    stand_in = SimpleNamespace(core_distance=lambda first, second: nanoseconds)
    monkeypatch.setattr(machine, "core", lambda: stand_in)
    assert machine.describe_distance(described(tmp_path, l3)) == expected


def test_one_core_has_no_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert machine.describe_distance(described(tmp_path, {0: "0"})) == {}


def test_the_core_measures_two_cores_and_leaves_the_caller_where_it_was() -> None:
    measure = core().core_distance
    for first, second in ((0, 0), (-1, 0), (0, 1 << 20)):
        assert measure(first, second) < 0
    if not hasattr(os, "sched_getaffinity"):
        assert measure(0, 1) < 0
        return
    allowed = os.sched_getaffinity(0)
    absent = next(
        number for number in range(1 << 10) if not (Path("/sys/devices/system/cpu") / f"cpu{number}").exists()
    )
    assert measure(min(allowed), absent) < 0
    if len(allowed) > 1:
        assert measure(*sorted(allowed)[:2]) > 0
    assert os.sched_getaffinity(0) == allowed


def test_rows_with_several_threads_record_the_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"share_l3": False, "line_ns": 210.4}
    monkeypatch.setattr(machine, "describe_distance", lambda: known)
    single = complete([{"name": "a", "threads": 1}, {"name": "b"}])
    assert not any(known.keys() & row["hardware"].keys() for row in single)
    double = complete([{"name": "a", "threads": 1}, {"name": "b", "threads": 2}])
    assert all(known.items() <= row["hardware"].items() for row in double)
    hardware = double[0]["hardware"]
    assert "several L3 caches, 210 ns for a cache line from one to the other" in machine_text(hardware)
    assert "L3" not in machine_text(single[0]["hardware"]), "older rows"
    given = complete([{"name": "a", "threads": 2}], hardware={"cpu": "another"})
    assert given[0]["hardware"] == {"cpu": "another"}
