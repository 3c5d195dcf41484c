"""The README's section on speed: the newest race, ours first, the fastest other of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xnorpp.bench.compare import TITLES
from xnorpp.paper.plots import digest, drawn_from, speed_plot
from xnorpp.paper.speed import speed_block, speed_data


def race(engine: str, precision: str, value: float, **more: Any) -> dict[str, Any]:
    hardware = {"cpu": "a CPU", "masked": "AVX2"}
    return {
        "kind": "bench", "name": "latency_uint8", "engine": engine, "precision": precision, "threads": 1,
        "batch": 1, "value": value, "date": "2026-01-02", "hardware": hardware, "model": TITLES["paper"],
        **more,
    }  # fmt: skip


def call(engine: str, mode: str, precision: str, milliseconds: float, note: str = "") -> dict[str, Any]:
    return {"engine": engine, "mode": mode, "precision": precision, "milliseconds": milliseconds,
            "note": note, "batch": 256}  # fmt: skip


ROWS = [
    race("xnorpp", "one bit", 9.0),
    race("xnorpp", "one bit", 5.0),  # measured later: it counts
    race("xnorpp", "one bit", 3.0, threads=2),
    race("xnorpp", "one bit", 1.0, hardware={"cpu": "another kind of race"}),
    race("xnorpp", "one bit", 6.0, model=TITLES["default"]),  # another network
    race("slow int8", "int8", 20.0),
    race("quick int8", "int8", 15.0),
    race("torch.compile", "fp32", 40.0),
    race("gone", "fp32", 10.0, date="2026-01-01"),  # not in our race
    {
        "kind": "cuda inference",
        "hardware": {"gpu": "a GPU"},
        "rows": [
            call("xnorpp", "graph", "one bit, from bytes", 0.7, "default"),
            call("xnorpp", "graph", "one bit, from bytes", 0.5, "residual float16, resident 8 MiB"),
            call("xnorpp", "graph", "one bit, from bytes", 0.6, "residual float32, resident 9 MiB"),
            call("xnorpp", "graph", "one bit, from floats", 0.1),
            call("torch", "eager", "bfloat16", 4.0),
            call("torch", "default", "bfloat16", 3.0),
            call("torch", "reduce-overhead", "bfloat16", 2.0),
            {**call("torch", "default", "bfloat16", 0.1), "batch": 1},
        ],
    },
]


def test_the_latest_benchmark_counts_ours_first() -> None:
    cpu, gpu = speed_data(ROWS)
    assert cpu == [
        "a CPU, AVX2, 1 thread, 1 image",
        [["xnorpp", 5.0], ["quick int8", 15.0], ["slow int8", 20.0], ["torch.compile fp32", 40.0]],
    ]
    assert gpu == [
        "a GPU, batch 256",
        [
            ["xnorpp", 0.7],
            ["xnorpp, float16 shortcuts", 0.5],
            ["torch.compile bfloat16", 2.0],
            ["torch eager bfloat16", 4.0],
        ],
    ]
    assert speed_data([]) == []


def test_the_section_says_how_many_times() -> None:
    text = speed_block(ROWS)
    assert "| 5 ms | torch.compile fp32, 40 ms | 8.00 times as fast |" in text
    assert "| 5 ms | quick int8, 15 ms | 3.00 times as fast |" in text
    assert "| 0.7 ms | torch.compile bfloat16, 2 ms | 2.86 times as fast |" in text
    assert speed_block([]) == "How fast: not measured yet."


def test_the_plot_says_what_it_was_drawn_from(tmp_path: Path) -> None:
    path = tmp_path / "speed.svg"
    speed_plot(ROWS, path)
    assert drawn_from(path) == digest(speed_data(ROWS))
    assert "torch eager bfloat16" in path.read_text(encoding="utf-8")
