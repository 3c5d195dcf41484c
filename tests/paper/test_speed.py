"""The README's section on speed: medians of all recorded benchmarks, both blocks, ours first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xnorpp.bench.compare import TITLES
from xnorpp.paper.plots import digest, drawn_from, speed_plot
from xnorpp.paper.speed import headline_block, home_block, speed_block, speed_data


def bench(engine: str, precision: str, value: float, **more: Any) -> dict[str, Any]:
    hardware = {"cpu": "a CPU", "masked": "AVX2"}
    return {
        "kind": "bench", "name": "latency_uint8", "engine": engine, "precision": precision, "threads": 1,
        "batch": 1, "value": value, "date": "2026-01-02", "hardware": hardware, "model": TITLES["paper"],
        **more,
    }  # fmt: skip


def call(engine: str, mode: str, precision: str, milliseconds: float, note: str = "") -> dict[str, Any]:
    return {"engine": engine, "mode": mode, "precision": precision, "milliseconds": milliseconds,
            "note": note, "batch": 256}  # fmt: skip


def ratio(precision: str, value: float, **more: Any) -> dict[str, Any]:
    return bench("xnorpp", "one bit", value, name=f"speedup_{precision}", against="someone", **more)


WIDE = {"cpu": "AMD(R) EPYC Processor", "isa": ["avx2", "avx512f", "avx512_vpopcntdq"]}
ROWS = [
    bench("xnorpp", "one bit", 9.0),
    bench("xnorpp", "one bit", 5.0),
    bench("xnorpp", "one bit", 4.0),
    bench("xnorpp", "one bit", 3.0, threads=2),
    bench("xnorpp", "one bit", 1.0, hardware={"cpu": "not masked"}),
    bench("xnorpp", "one bit", 2.0, hardware=WIDE),
    ratio("int8", 4.0, hardware=WIDE),
    bench("xnorpp", "one bit", 4.0, hardware={**WIDE, "cpu": "Xeon", "masked": "AMX"}),
    bench("xnorpp", "one bit", 5.0, hardware={**WIDE, "cpu": "Xeon", "isa": [*WIDE["isa"], "amx_int8"]}),
    bench(
        "xnorpp",
        "one bit",
        4.5,
        hardware={**WIDE, "cpu": "Xeon", "isa": ["avx512f", "amx_int8"]},
        kernels="amx",
    ),
    ratio("int8", 1.5, hardware={**WIDE, "cpu": "Xeon", "isa": ["avx512f", "amx_int8"]}),
    bench("xnorpp", "one bit", 7.0, hardware={**WIDE, "cpu": "other"}, kernels="avx2"),
    ratio("int8", 7.0, hardware={**WIDE, "cpu": "other"}),
    bench("slow int8", "int8", 20.0),
    bench("quick int8", "int8", 15.0),
    bench("quick int8", "int8", 17.0),
    bench("torch.compile", "fp32", 40.0),
    ratio("fp32", 8.0),
    ratio("fp32", 10.0),
    ratio("fp32", 6.0),
    ratio("int8", 3.0),
    ratio("int8", 9.0, threads=2),
    bench("xnorpp", "one bit", 6.0, model=TITLES["default"]),
    ratio("fp32", 5.0, model=TITLES["default"]),
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


def test_all_benchmarks_count_ours_first() -> None:
    default, paper, wide, matrix, gpu = speed_data(ROWS)
    assert default == ["default block, AVX2\na CPU, 1 thread, 1 image\none benchmark", [["xnorpp", 6.0]]]
    assert wide == [
        "the paper's block, AVX-512\nAMD EPYC and Xeon, 1 thread, 1 image\nmedians of 2 benchmarks",
        [["xnorpp", 3.0]],
    ]
    assert matrix == [
        "the paper's block, AVX-512 and AMX\nXeon, 1 thread, 1 image\none benchmark",
        [["xnorpp", 5.0]],
    ]
    assert paper == [
        "the paper's block, AVX2\na CPU, 1 thread, 1 image\nmedians of 3 benchmarks",
        [["xnorpp", 5.0], ["quick int8", 16.0], ["slow int8", 20.0], ["torch.compile fp32", 40.0]],
    ]
    assert gpu == [
        "the paper's block, latest benchmark\na GPU, batch 256",
        [
            ["xnorpp", 0.7],
            ["xnorpp, float16 shortcuts", 0.5],
            ["torch.compile bfloat16", 2.0],
            ["torch eager bfloat16", 4.0],
        ],
    ]
    assert speed_data([]) == []


def test_the_section_has_medians_and_ranges_of_the_default_block_first() -> None:
    text = speed_block(ROWS)
    default = "| default block | AVX2 | 1 | 6 ms | 5.00 times | not measured yet |"
    paper = "| the paper's block | AVX2 | 3 | 5 ms | 8.00 times (6.00 to 10.00) | 3.00 times |"
    wide = "| the paper's block | AVX-512 | 2 | 3 ms | not measured yet | 4.00 times |"
    matrix = "| the paper's block | AVX-512 and AMX | 1 | 5 ms | not measured yet | not measured yet |"
    named = (
        '| the paper\'s block | AVX-512 and AMX, `isa="amx"` | 1 | 4.5 ms | not measured yet | 1.50 times |'
    )
    assert f"{default}\n{paper}\n{wide}\n{matrix}\n{named}" in text
    assert "| 0.7 ms | torch.compile bfloat16, 2 ms | 2.86 times as fast |" in text
    assert speed_block([]) == "How fast: not measured yet."


def test_the_plot_says_what_it_was_drawn_from(tmp_path: Path) -> None:
    path = tmp_path / "speed.svg"
    speed_plot(ROWS, path)
    assert drawn_from(path) == digest(speed_data(ROWS))
    assert "torch eager bfloat16" in path.read_text(encoding="utf-8")


def test_titles_do_not_run_into_each_other() -> None:
    """Two panels stand side by side: a line of a title has room for about 46 characters."""
    from xnorpp.paper.recorded import read_rows

    panels = speed_data(read_rows(Path(__file__).resolve().parents[2] / "results"))
    assert len(panels) > 2
    assert max(len(line) for title, _ in panels for line in title.split("\n")) <= 46


def test_the_readme_lists_what_the_first_page_shows() -> None:
    card = {
        "kind": "shipped",
        "name": "a-model",
        "file": {"bytes": 97_300},
        "accuracy": {"packed_top1": 88.67},
    }
    words = "is the entire file of `a-model`, which classifies 88.7 % of its test images correctly"
    assert headline_block([card]) == f"- **97 kB** {words}."
    assert f"**97 kB** {words}\n" in home_block([card])
    assert headline_block([]) == home_block([]) == "How fast: not measured yet."
