"""How fast the packed network runs, compared with other engines: the section of the README and its plot.

The CPU's figures are medians over all recorded benchmarks of a block, not the latest or the best one.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from xnorpp.bench.compare import OURS, TITLES
from xnorpp.paper.layers.tables import NOT_MEASURED
from xnorpp.paper.recorded import Row, of_kind

BATCH = 256  # of the GPU's panel
HALVES = "xnorpp, float16 shortcuts"
BLOCKS = {"default": "default block", "paper": "the paper's block"}
SETS = ("AVX2", "AVX-512", "AVX-512 and AMX", 'AVX-512 and AMX, `isa="amx"`')
_HOW = (
    "newer instructions are hidden from all engines",
    "the matrix unit (AMX), where there is one, is hidden from all engines",
    "nothing is hidden; xnorpp does not use the matrix unit, which is its default",
    "nothing is hidden; xnorpp uses the matrix unit too",
)


def speed_data(rows: Sequence[Row]) -> Any:
    """[title, [[engine, milliseconds], ...]] of the CPU, for each set of instructions and both blocks, which
    stand side by side, and of the GPU; ours first, with the kernels that it chooses by default.
    """
    panels = [*(_on_cpu(rows, block, one) for one in SETS[:3] for block in BLOCKS), _on_gpu(rows)]
    return [panel for panel in panels if panel]


def instructions(rows: Sequence[Row]) -> list[str | None]:
    """Which of `SETS` the engines of each benchmark row could use: AVX2 where the rest was hidden from all
    engines; AVX-512 with the matrix unit (AMX), or without it because there is none or because it was hidden;
    the last where our kernels used the unit too.

    None is everything else, such as our kernels limited by a switch, which leaves other engines as they are.
    The kernels stand in our own row only, which is the first one of a benchmark.
    """
    found: list[str | None] = []
    kernels: dict[tuple[str, Any], str] = {}
    for row in rows:
        hardware, run = row["hardware"], (row["hardware"]["cpu"], row.get("model"))
        if row["engine"] == OURS and "kernels" in row:
            kernels[run] = row["kernels"]
        wide = any("avx512" in one for one in hardware.get("isa", ()))
        if wide:
            matrix = any(one.startswith("amx") for one in hardware["isa"])
            chosen = {"avx512": SETS[2 if matrix else 1], "amx": SETS[3]}
            found.append(chosen.get(kernels.get(run, "avx512")))
        else:
            found.append("AVX2" if "masked" in hardware else None)
    return found


def _single(rows: Sequence[Row], name: str, block: str, wanted: str) -> list[Row]:
    """Rows of one thread and one image, with one set of instructions."""
    benchmarks = of_kind(rows, "bench")
    return [
        row
        for row, used in zip(benchmarks, instructions(benchmarks), strict=True)
        if (row["name"], row.get("threads"), row.get("batch")) == (name, 1, 1)
        if used == wanted and row.get("model") == TITLES[block]
    ]


def _on_cpu(rows: Sequence[Row], block: str, wanted: str) -> Any:
    """The median of each engine over the recorded benchmarks of a block."""
    values: dict[str, list[float]] = {}
    for row in (chosen := _single(rows, "latency_uint8", block, wanted)):
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
    processors = sorted({_short(row["hardware"]["cpu"]) for row in chosen})
    title = (
        f"{BLOCKS[block]}, {wanted}\n{' and '.join(processors)}, 1 thread, 1 image\n"
        f"{f'medians of {count} benchmarks' if count > 1 else 'one benchmark'}"
    )
    return [title, [[OURS, medians[OURS]], *others]]


def _short(processor: str) -> str:
    """A processor's name without what only lawyers read."""
    return re.sub(r"\((?:R|TM|tm)\)| Processor\b", "", processor).strip()


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
    return [f"the paper's block, latest benchmark\n{runs[-1]['hardware']['gpu']}, batch {BATCH}", bars]


def cpu_ratios(rows: Sequence[Row]) -> list[list[str]]:
    """Block, instructions, number of benchmarks, our milliseconds, and the ratios by precision, with their
    range.
    """
    body = []
    for block, wanted in ((block, wanted) for block in BLOCKS for wanted in SETS):
        latencies = _single(rows, "latency_uint8", block, wanted)
        ours = [float(row["value"]) for row in latencies if row["engine"] == OURS]
        if not ours:
            continue
        cells = []
        for precision in ("fp32", "int8"):
            ratios = _ratios(rows, precision, block, wanted)
            text = f"{statistics.median(ratios):.2f} times" if ratios else NOT_MEASURED
            cells.append(text + (f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""))
        body.append([BLOCKS[block], wanted, str(len(ours)), f"{statistics.median(ours):.3g} ms", *cells])
    return body


def _machines(rows: Sequence[Row]) -> list[str]:
    """Where the rows of each set of instructions come from, one sentence each."""
    lines = []
    for wanted, how in zip(SETS, _HOW, strict=True):
        found = [row for block in BLOCKS for row in _single(rows, "latency_uint8", block, wanted)]
        names = sorted({_short(row["hardware"]["cpu"]) for row in found})
        if names:
            lines.append(f"- **{wanted}**: {' and '.join(names)}; {how}.")
    return lines


def _ratios(rows: Sequence[Row], precision: str, block: str, wanted: str) -> list[float]:
    """How many times as fast as the fastest engine of a precision each benchmark found ours."""
    return [float(row["value"]) for row in _single(rows, f"speedup_{precision}", block, wanted)]


def speed_block(rows: Sequence[Row]) -> str:
    """The section of the README: the plot, and the ratios."""
    panels = speed_data(rows)
    if not panels:
        return f"How fast: {NOT_MEASURED}."
    lines = [
        "## How fast",
        "",
        "A binary ResNet-18 for 224x224 images (Case 4), compared with its real-valued baseline, which is",
        "the same network without binarization, in torch, onnxruntime and OpenVINO. On the CPU all engines",
        "start from the same 8-bit image; on the GPU xnorpp does, and torch starts from floats. A ResNet-18",
        "can be built in two ways: the *default block* has one shortcut around each convolution and",
        "real-valued downsampling, *the paper's block* has one shortcut around two convolutions and binary",
        "downsampling.",
        "",
        "![Milliseconds per call of xnorpp and other engines](docs/plots/speed.svg)",
    ]
    cpu = cpu_ratios(rows)
    if cpu:
        lines += [
            "",
            "One image, one thread of a CPU; medians over all recorded benchmarks, with their range. The",
            "last two columns are how many times as fast xnorpp is.",
            "",
            "| network | instructions | benchmarks | xnorpp | against the fastest fp32 engine "
            "| against the fastest int8 engine |",
            "|---|---|---|---|---|---|",
            *("| " + " | ".join(cells) + " |" for cells in cpu),
            "",
            *_machines(rows),
        ]
    gpu = [(title, bars) for title, bars in panels if title.endswith(f"batch {BATCH}")]
    for title, bars in gpu:
        (_, ours), *others = [bar for bar in bars if bar[0] != HALVES]
        lines += ["", "| GPU | xnorpp | fastest other engine | xnorpp is |", "|---|---|---|---|"]
        for kind in ("bfloat16", "float16"):
            some = [bar for bar in others if bar[0].split()[-1] == kind]
            if some:
                name, value = min(some, key=lambda bar: float(bar[1]))
                block, _, machine = title.partition("\n")
                lines.append(
                    f"| {machine}, {block} | {ours:.3g} ms | {name}, {value:.3g} ms "
                    f"| {value / ours:.2f} times as fast |"
                )
    return "\n".join([*lines, "", "All results and how to reproduce them: [benchmarks](docs/benchmarks.md)."])


def _listed(counts: Sequence[int]) -> str:
    """5 and 3; one number where all are the same."""
    return " and ".join(map(str, dict.fromkeys(counts)))


def home_block(rows: Sequence[Row]) -> str:
    """The headline numbers of the documentation's first page."""
    lines = [f"**{number}** {words}" for number, words in _headlines(rows)]
    if not lines:
        return f"How fast: {NOT_MEASURED}."
    return "\n\n".join(['<div class="figures" markdown>', *lines, "</div>"])


def headline_block(rows: Sequence[Row]) -> str:
    """The same numbers as a list, for the README."""
    lines = [f"- **{number}** {words}." for number, words in _headlines(rows)]
    return "\n".join(lines) if lines else f"How fast: {NOT_MEASURED}."


def _headlines(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """A number and what it is, for typical cases, from the stored results."""
    figures: list[tuple[str, str]] = []
    for precision, words in (("fp32", "32-bit floating-point"), ("int8", "8-bit integer")):
        found = {one: ratios for one in SETS[:2] if (ratios := _ratios(rows, precision, "default", one))}
        if found:
            numbers = " and ".join(f"{statistics.median(ratios):.1f}" for ratios in found.values())
            counts = [len(ratios) for ratios in found.values()]
            over = "one benchmark each" if max(counts) == 1 else f"medians of {_listed(counts)} benchmarks"
            where = f"on a CPU with {' and with '.join(found)}"
            what = "ResNet-18 in its default form, one image, one thread"
            text = f"as fast as the fastest {words} engine {where}: {what}"
            figures.append((f"{numbers} times", f"{text} ({over})"))
    gpu = _on_gpu(rows)
    if gpu:
        (_, ours), *others = [bar for bar in gpu[1] if bar[0] != HALVES]
        fastest = min(float(value) for _, value in others)
        machine = gpu[0].partition("\n")[2].split(",")[0]
        figures.append(
            (
                f"{fastest / ours:.1f} times",
                f"as fast as torch.compile in 16-bit precision on an {machine}: ResNet-18 in the paper's "
                f"form, batch {BATCH}",
            )
        )
    cards = {row["name"]: row for row in of_kind(rows, "shipped") if not row.get("refused")}
    if cards:
        small = min(cards.values(), key=lambda card: int(card["file"]["bytes"]))
        right = f"classifies {small['accuracy']['packed_top1']:.1f} % of its test images correctly"
        size = f"{small['file']['bytes'] / 1000:.0f} kB"
        figures.append((size, f"is the entire file of `{small['name']}`, which {right}"))
    return figures
