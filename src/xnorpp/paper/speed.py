"""How fast the packed network runs, compared with other engines: the section of the README and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xnorpp.bench.compare import TITLES
from xnorpp.paper.layers.tables import NOT_MEASURED
from xnorpp.paper.recorded import Row, of_kind

BATCH = 256  # of the GPU's panel
HALVES = "xnorpp, float16 shortcuts"


def speed_data(rows: Sequence[Row]) -> Any:
    """[title, [[engine, milliseconds], ...]] of the CPU (one thread, one image) and the GPU; ours first."""
    return [panel for panel in (_on_cpu(rows), _on_gpu(rows)) if panel]


def _on_cpu(rows: Sequence[Row]) -> Any:
    """The latest benchmark on a machine masked to AVX2."""
    found = {
        (row["engine"], row.get("precision")): row
        for row in of_kind(rows, "bench")
        if row["name"] == "latency_uint8" and (row["threads"], row["batch"]) == (1, 1)
        if "masked" in row["hardware"] and row.get("model") == TITLES["paper"]
    }
    ours = [row for row in found.values() if row["engine"] == "xnorpp"]
    if not ours:
        return None
    others = [row for row in found.values() if row["engine"] != "xnorpp" and row["date"] == ours[0]["date"]]
    others.sort(key=lambda row: float(row["value"]))
    names = [
        f"{row['engine'].removesuffix(str(row['precision'])).strip()} {row['precision']}" for row in others
    ]
    title = f"{ours[0]['hardware']['cpu']}, AVX2, 1 thread, 1 image"
    return [
        title,
        [["xnorpp", ours[0]["value"]], *([name, row["value"]] for name, row in zip(names, others))],
    ]


def _on_gpu(rows: Sequence[Row]) -> Any:
    """The latest benchmark on a GPU: our default, our float16 shortcuts, and torch's best of each kind."""
    runs = of_kind(rows, "cuda inference")
    if not runs:
        return None
    calls = [
        one for one in runs[-1]["rows"] if one["batch"] == BATCH and "from floats" not in one["precision"]
    ]

    def best(name: str, some: list[Row]) -> list[list[Any]]:
        return [[name, min(one["milliseconds"] for one in some)]] if some else []

    mine = [one for one in calls if one["engine"] == "xnorpp"]
    if not any(one["note"] == "default" for one in mine):
        return None  # measured before the exact shortcuts were the default
    others = [one for one in calls if one["engine"] == "torch"]
    bars = best("xnorpp", [one for one in mine if one["note"] == "default"])
    bars += best(HALVES, [one for one in mine if one["note"].startswith("residual float16")])
    for precision in sorted({one["precision"] for one in others}):
        some = [one for one in others if one["precision"] == precision]
        bars += best(f"torch.compile {precision}", [one for one in some if one["mode"] != "eager"])
        bars += best(f"torch eager {precision}", [one for one in some if one["mode"] == "eager"])
    bars = bars[:2] + sorted(bars[2:], key=lambda bar: float(bar[1]))
    return [f"{runs[-1]['hardware']['gpu']}, batch {BATCH}", bars]


def speed_block(rows: Sequence[Row]) -> str:
    """The section of the README: the plot, and the ratios."""
    panels = speed_data(rows)
    if not panels:
        return f"How fast: {NOT_MEASURED}."
    lines = [
        "## How fast",
        "",
        "ResNet-18, 224x224, Case 4, the paper's block; the others run the real-valued network. On the CPU",
        "all start from the same 8-bit image; on the GPU xnorpp does, and torch starts from floats.",
        "",
        "![speed](docs/plots/speed.svg)",
        "",
        "| on | xnorpp | fastest other | that is |",
        "|---|---|---|---|",
    ]
    for title, bars in panels:
        (_, ours), *others = [bar for bar in bars if bar[0] != HALVES]
        for kind in ("fp32", "int8", "bfloat16", "float16"):
            some = [bar for bar in others if bar[0].split()[-1] == kind]
            if some:
                name, value = min(some, key=lambda bar: float(bar[1]))
                lines.append(
                    f"| {title} | {ours:.3g} ms | {name}, {value:.3g} ms | {value / ours:.2f} times as fast |"
                )
    lines += [
        "",
        "Medians of the latest recorded benchmark. All results and how to reproduce them:",
        "[benchmarks](docs/benchmarks.md).",
    ]
    return "\n".join(lines)
