"""How fast the packed network runs, compared with other engines: the section of the README and its plot.

The CPU's figures are medians over all recorded benchmarks of a block, not the latest or the best one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from xnorpp.bench.compare import OURS, TITLES
from xnorpp.paper.layers.tables import NOT_MEASURED
from xnorpp.paper.recorded import Row, of_kind

BATCH = 256  # of the GPU's panel
HALVES = "xnorpp, float16 shortcuts"
BLOCKS = {"default": "default block", "paper": "the paper's block"}


def speed_data(rows: Sequence[Row]) -> Any:
    """[title, [[engine, milliseconds], ...]] of the CPU for both blocks, and of the GPU; ours first."""
    panels = [*(_on_cpu(rows, block) for block in BLOCKS), _on_gpu(rows)]
    return [panel for panel in panels if panel]


def _single(rows: Sequence[Row], name: str, block: str) -> list[Row]:
    """Rows of one thread and one image, on machines masked to AVX2."""
    return [
        row
        for row in of_kind(rows, "bench")
        if (row["name"], row.get("threads"), row.get("batch")) == (name, 1, 1)
        if "masked" in row["hardware"] and row.get("model") == TITLES[block]
    ]


def _on_cpu(rows: Sequence[Row], block: str) -> Any:
    """The median of each engine over the recorded benchmarks of a block."""
    values: dict[str, list[float]] = {}
    for row in (chosen := _single(rows, "latency_uint8", block)):
        name = OURS
        if row["engine"] != OURS:
            name = f"{row['engine'].removesuffix(str(row['precision'])).strip()} {row['precision']}"
        values.setdefault(name, []).append(float(row["value"]))
    if OURS not in values:
        return None
    count = len(values[OURS])
    medians = {name: statistics.median(some) for name, some in values.items()}
    others = [
        [name, medians[name]] for name in sorted(medians, key=lambda name: medians[name]) if name != OURS
    ]
    title = (
        f"{chosen[-1]['hardware']['cpu']}, AVX2, 1 thread, 1 image\n"
        f"{BLOCKS[block]}, {f'medians of {count} benchmarks' if count > 1 else 'one benchmark'}"
    )
    return [title, [[OURS, medians[OURS]], *others]]


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

    mine = [one for one in calls if one["engine"] == OURS]
    if not any(one["note"] == "default" for one in mine):
        return None  # measured before the exact shortcuts were the default
    others = [one for one in calls if one["engine"] == "torch"]
    bars = best(OURS, [one for one in mine if one["note"] == "default"])
    bars += best(HALVES, [one for one in mine if one["note"].startswith("residual float16")])
    for precision in sorted({one["precision"] for one in others}):
        some = [one for one in others if one["precision"] == precision]
        bars += best(f"torch.compile {precision}", [one for one in some if one["mode"] != "eager"])
        bars += best(f"torch eager {precision}", [one for one in some if one["mode"] == "eager"])
    bars = bars[:2] + sorted(bars[2:], key=lambda bar: float(bar[1]))
    return [f"{runs[-1]['hardware']['gpu']}, batch {BATCH}\nthe paper's block, latest benchmark", bars]


def cpu_ratios(rows: Sequence[Row]) -> list[list[str]]:
    """Block, number of benchmarks, our milliseconds, and the ratios by precision, with their range."""
    body = []
    for block, title in BLOCKS.items():
        ours = [float(row["value"]) for row in _single(rows, "latency_uint8", block) if row["engine"] == OURS]
        if not ours:
            continue
        cells = []
        for precision in ("fp32", "int8"):
            ratios = [float(row["value"]) for row in _single(rows, f"speedup_{precision}", block)]
            text = f"{statistics.median(ratios):.2f} times" if ratios else NOT_MEASURED
            cells.append(text + (f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""))
        body.append([title, str(len(ours)), f"{statistics.median(ours):.3g} ms", *cells])
    return body


def speed_block(rows: Sequence[Row]) -> str:
    """The section of the README: the plot, and the ratios."""
    panels = speed_data(rows)
    if not panels:
        return f"How fast: {NOT_MEASURED}."
    lines = [
        "## How fast",
        "",
        "ResNet-18, 224x224, Case 4; the other engines run the real-valued baseline, the same network",
        "without binarization. On the CPU all start from the same 8-bit image; on the GPU xnorpp does, and",
        "torch starts from floats.",
        "",
        "![speed](docs/plots/speed.svg)",
    ]
    cpu = cpu_ratios(rows)
    if cpu:
        lines += [
            "",
            "One image on one thread of a CPU, AVX2, medians over all recorded benchmarks (and their range):",
            "",
            "| network | benchmarks | xnorpp | against the fastest fp32 engine | fastest int8 engine |",
            "|---|---|---|---|---|",
            *("| " + " | ".join(cells) + " |" for cells in cpu),
        ]
    gpu = [(title, bars) for title, bars in panels if f"batch {BATCH}" in title]
    for title, bars in gpu:
        (_, ours), *others = [bar for bar in bars if bar[0] != HALVES]
        lines += ["", "| on | xnorpp | fastest other | that is |", "|---|---|---|---|"]
        for kind in ("bfloat16", "float16"):
            some = [bar for bar in others if bar[0].split()[-1] == kind]
            if some:
                name, value = min(some, key=lambda bar: float(bar[1]))
                place = title.replace("\n", ", ")
                lines.append(
                    f"| {place} | {ours:.3g} ms | {name}, {value:.3g} ms | {value / ours:.2f} times as fast |"
                )
    return "\n".join([*lines, "", "All results and how to reproduce them: [benchmarks](docs/benchmarks.md)."])


def home_block(rows: Sequence[Row]) -> str:
    """The headline numbers of the documentation's first page: typical cases, from the stored results."""
    figures: list[tuple[str, str]] = []
    benchmarks = [row for row in _single(rows, "latency_uint8", "default") if row["engine"] == OURS]
    over = f"median of {len(benchmarks)} benchmarks" if len(benchmarks) > 1 else "one benchmark"
    where = f"ResNet-18, one CPU thread, {BLOCKS['default']} ({over})"
    for precision, words in (("fp32", "32-bit floats"), ("int8", "8-bit integers")):
        ratios = [float(row["value"]) for row in _single(rows, f"speedup_{precision}", "default")]
        if ratios:
            text = f"as fast as the fastest engine with {words}, {where}"
            figures.append((f"{statistics.median(ratios):.1f} times", text))
    gpu = _on_gpu(rows)
    if gpu:
        (_, ours), *others = [bar for bar in gpu[1] if bar[0] != HALVES]
        fastest = min(float(value) for _, value in others)
        machine = gpu[0].split(",")[0]
        figures.append(
            (f"{fastest / ours:.1f} times", f"as fast as torch.compile in 16-bit floats on an {machine}")
        )
    cards = {row["name"]: row for row in of_kind(rows, "shipped") if not row.get("refused")}
    if cards:
        small = min(cards.values(), key=lambda card: int(card["file"]["bytes"]))
        right = f"{small['accuracy']['packed_top1']:.1f} % of the test images right"
        size = f"{small['file']['bytes'] / 1000:.0f} kB"
        figures.append((size, f"is the whole of `{small['name']}`, with {right}"))
    if not figures:
        return f"How fast: {NOT_MEASURED}."
    lines = [f"**{number}** {words}" for number, words in figures]
    return "\n\n".join(['<div class="figures" markdown>', *lines, "</div>"])
