"""Draws the measured parts of README.md, docs/*.md and docs/plots from results/*.jsonl: no number is typed.
The tables of operations in docs/format.md are drawn from their rows.

    python benchmarks/draw_readme.py                 fill the blocks from the recorded results
    python benchmarks/draw_readme.py --run demo      run the demo first and record what it prints
    python benchmarks/draw_readme.py --check         status 1 if a document is out of date

A block is what stands between `<!-- drawn: NAME -->` and `<!-- end -->`; the names are in `BLOCKS`, those of
the paper's tables and figures in `xnorpp.paper.report`. The newest row of a kind counts, which is the last
one in its file.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xnorpp.bench.machine import describe_machine
from xnorpp.paper import foreign, operations, recorded
from xnorpp.paper import report as paper
from xnorpp.paper.layers.tables import machine as name_of
from xnorpp.shipped.accuracy import has_top5
from xnorpp.shipped.card import size_text
from xnorpp.training.records.record import append_rows, source_commit, today

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CAPTURED = RESULTS / "readme.jsonl"

NOTHING = "Nothing is recorded in `results/` yet."

Row = dict[str, Any]

COMMANDS: dict[str, tuple[str, ...]] = {
    "demo": ("-m", "xnorpp", "demo"),
}


def read_rows(folder: Path = RESULTS) -> list[Row]:
    """Every row of every file of results, files in alphabetical order, with the file's name as `kept_in`."""
    return recorded.read_rows(folder)


def capture(name: str) -> Row:
    """Run one of `COMMANDS`, append its output to `CAPTURED` and return the row."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *COMMANDS[name]], cwd=ROOT, capture_output=True, text=True)
    output = done.stdout.strip()
    if done.returncode:
        raise SystemExit(f"{' '.join(COMMANDS[name])} ended with status {done.returncode}:\n{output[-2000:]}")
    row = {
        "kind": "captured",
        "name": name,
        "output": output,
        "seconds": round(time.perf_counter() - start, 1),
        "seed": 0,
        "commit": source_commit(),
        "hardware": describe_machine(),
        "date": today(),
    }
    append_rows(CAPTURED, [row])
    return row


def demo(rows: Sequence[Row]) -> str:
    """The drawing of what `make demo` printed, and where it ran; nothing if no run is recorded."""
    found = [row for row in rows if row.get("kind") == "captured" and row["name"] == "demo"]
    if not found:
        return ""
    drawing = "![What make demo prints: accuracy, size and speed of a one-bit network](docs/plots/demo.svg)"
    where = f"Actual output of `make demo` on {name_of(found[-1]['hardware'])}, {found[-1]['date']}"
    return f"{drawing}\n\n{where}; all {len(found)} recorded runs are in `results/{CAPTURED.name}`."


def served(rows: Sequence[Row]) -> str:
    """The latest load test of `xnorpp serve`."""
    found = [row for row in rows if row.get("kind") == "serve load"]
    if not found:
        return NOTHING
    last = found[-1]
    bare, medians = statistics.median(last["bare"]), statistics.median(last["served"])
    lines = [
        "| on | model | clients | images/s served | bare engine, images/s | share | p50 | p99 | failures |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| {name_of(last['hardware'])}, {last['date']} | {last['model']} | {last['clients']} "
        f"| {medians:.0f} | {bare:.0f} | {last['share']:.2f} "
        f"| {last['p50_ms']:.0f} ms | {last['p99_ms']:.0f} ms "
        f"| {last['failures']} of {last['requests']:,} requests |",
    ]
    return "\n".join(lines)


def trained(rows: Sequence[Row]) -> str:
    """One line per recipe, number of epochs and seed."""
    newest = {
        (row["dataset"], row["recipe"], row["epochs"], row["seed"]): row
        for row in rows
        if row.get("kind") == "train"
    }
    if not newest:
        return NOTHING
    lines = [
        "| recipe | epochs | seed | top-1 % | top-5 % | minutes | on | recorded in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (_, recipe, epochs, seed), row in sorted(newest.items()):
        metrics = row["metrics"]
        lines.append(
            f"| {recipe} | {epochs} | {seed} | {metrics['top1']:.2f} | {metrics['top5']:.2f} | "
            f"{row['seconds'] / 60:.1f} | {name_of(row['hardware'])} | {row['kept_in']} |"
        )
    return "\n".join(lines)


def engines(rows: Sequence[Row]) -> str:
    """One table per machine of what `xnorpp bench --append` recorded."""
    machines: dict[str, dict[tuple[str, ...], Row]] = {}
    for row in rows:
        if row.get("kind") == "bench" and isinstance(row.get("value"), (int, float)):
            key = [
                str(row.get(name)) for name in ("model", "name", "threads", "batch", "precision", "engine")
            ]
            machines.setdefault(name_of(row["hardware"]), {})[tuple(key)] = row
    parts = []
    for machine, found in sorted(machines.items()):
        lines = [
            f"**{machine}**",
            "",
            "| what | engine | threads | batch | measured | against | date |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in found.values():
            engine = " ".join(str(row[name]) for name in ("engine", "precision") if row.get(name))
            cells = (
                f"{row.get('model')}: {str(row['name']).replace('_', ' ')}",
                engine,
                row.get("threads") or "",
                row.get("batch") or "",
                f"{row['value']:{',.0f' if row['value'] >= 1000 else '.3g'}} {row['unit']}",
                row.get("against") or row.get("against_threads") or "",
                row["date"],
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or NOTHING


def newest_on_gpus(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """The newest row of `benchmarks/cuda_inference.py` on each GPU, by name."""
    found = {name_of(row["hardware"]): row for row in rows if row.get("kind") == "cuda inference"}
    return sorted(found.items())


def engines_on_gpu(rows: Sequence[Row]) -> str:
    """One table per GPU of what `benchmarks/cuda_inference.py` recorded."""
    parts = []
    for machine, row in newest_on_gpus(rows):
        lines = [
            f"**{machine}**, {row['date']}",
            "",
            "| engine | mode | precision | batch | ms per call | images/s | peak MB | |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for one in sorted(row["rows"], key=lambda one: (one["batch"], one["milliseconds"])):
            peak = f"{one['peak_bytes'] / 1e6:.0f}" if one.get("peak_bytes") else ""
            lines.append(
                f"| {one['engine']} | {one['mode']} | {one['precision']} | {one['batch']} | "
                f"{one['milliseconds']:.3f} | {one['images_per_second']:,.0f} | {peak} | {one['note']} |"
            )
        parts.append("\n".join(lines))
        parts.append(gpu_figures(row))
    parts += [agreement_words(row) for row in rows if row.get("kind") == "cuda agreement"][-1:]
    return "\n\n".join(parts) or NOTHING


def gpu_figures(row: Row) -> str:
    """Ours against torch.compile in bfloat16, for the exact stream and the one of halves."""
    found = row["metrics"]
    lines = [
        "| against torch.compile, bfloat16 | float32 shortcuts (the default) | float16 shortcuts |",
        "|---|---|---|",
        *(
            f"| batch {batch}, times as fast | {found[f'speedup_batch_{batch}_bfloat16']:.2f} | "
            f"{found[f'speedup_batch_{batch}_bfloat16_float16_stream']:.2f} |"
            for batch in (256, 1)
        ),
        f"| peak memory of a call, batch 256 | {found['memory_ratio']:.2f} | "
        f"{found['memory_ratio_float16_stream']:.2f} |",
        f"| the CPU engine's class, of {row['correctness']['images']:,} images "
        f"| {100 * found['same_class_float32']:.2f} % | {100 * found['same_class_float16']:.2f} % |",
    ]
    rates = [
        f"{name} {found[f'teraops_{layer}']:,.0f}"
        for name, layer in (("256@14", "layer3.1.conv1"), ("512@7", "layer4.1.conv1"))
    ]
    words = f"3x3 convolution, bits in, bits out, batch 256, tera-operations per second: {', '.join(rates)}."
    return "\n".join([*lines, "", words])


def gpu_layers(rows: Sequence[Row]) -> str:
    """Where the time of a call goes, beside what arithmetic and memory traffic allow."""
    parts = []
    for machine, row in newest_on_gpus(rows):
        lines = [
            f"**{machine}**, batch 256, microseconds; in brackets what arithmetic and memory set as floor",
            "",
            "| layer | kernel | float32 shortcuts | float16 shortcuts |",
            "|---|---|---|---|",
        ]
        pairs = list(zip(row["layers"], row["layers_float16"], strict=True))
        for full, half in pairs:
            times = [
                f"{one['microseconds']:.1f} ({one['floor_arithmetic']:.1f}, {one['floor_memory']:.1f})"
                for one in (full, half)
            ]
            lines.append(f"| {full['name']} | {full['kernel']} | {' | '.join(times)} |")
        sums = [f"{sum(pair[i]['microseconds'] for pair in pairs):.0f}" for i in (0, 1)]
        lines.append(f"| sum | | {' | '.join(sums)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or NOTHING


def packed(rows: Sequence[Row]) -> str:
    """How often a packed network gives the trained one's class: all that were compared, newest of each."""
    found = [row for row in rows if row.get("kind") == "packed against trained"]
    keys = ("recipe", "name", "method", "scale", "dataset", "epochs", "seed", "images", "top1_trained")
    newest: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in found:
        fed = row.get("fed", "floats")  # the oldest rows do not have it
        newest.setdefault(tuple(str(row.get(key)) for key in keys), {})[fed] = row
    if not newest:
        return NOTHING
    lines = [
        "| network | method, scale | data | epochs | images | top-1 % torch | packed | same class % "
        "| from bytes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for fed in newest.values():
        row = fed.get("floats") or fed["bytes"]
        method = ", ".join(str(row[key]) for key in ("method", "scale") if row.get(key))
        alike = [_marked(fed[kind]["same_class"]) if kind in fed else "" for kind in ("floats", "bytes")]
        epochs = "" if row.get("epochs") is None else row["epochs"] or "below 1"
        older = "" if "batch_norm" in row else " (older)"
        lines.append(
            f"| {row.get('name') or row['recipe']}{older} | {method} | {row['dataset']} | {epochs} | "
            f"{row['images']:,} | {row['top1_trained']:.2f} | {row['top1_packed']:.2f} | "
            f"{' | '.join(alike)} |"
        )
    return "\n".join(lines)


def _marked(share: float) -> str:
    """Bold below the target of 99.9 %."""
    return f"{share:.2f}" if share >= 99.895 else f"**{share:.2f}**"


def gpu_training(rows: Sequence[Row]) -> str:
    """The training step of binary ResNet-18 against the fastest variant of its real-valued baseline, of the
    newest run."""
    steps = [row for row in rows if row.get("kind") == "cuda training" and row.get("what") == "step"]
    newest = {(row["size"], row["variant"]): row for row in steps if row["commit"] == steps[-1]["commit"]}
    if not newest:
        return NOTHING
    last = steps[-1]
    lines = [
        f"**{name_of(last['hardware'])}**, {last['date']}, batch {last['batch']}, bfloat16; in "
        "brackets the ratio to the fastest real-valued variant",
        "",
        "| pixels | variant | images/s | peak memory, MB |",
        "|---|---|---|---|",
    ]
    for size in sorted({size for size, _ in newest}, reverse=True):
        here = [row for (at, _), row in newest.items() if at == size]
        real = [row for row in here if row["variant"].startswith("real")]
        fastest = max(real, key=lambda row: float(row["images_per_second"]))
        for row in here:
            speed, memory = (row[key] / fastest[key] for key in ("images_per_second", "peak_bytes"))
            lines.append(
                f"| {size} | {row['variant']} | {row['images_per_second']:,.0f} ({speed:.2f}) | "
                f"{row['peak_bytes'] / 1e6:,.0f} ({memory:.2f}) |"
            )
    return "\n".join(lines)


def agreement_words(row: Row) -> str:
    """How often the GPU gives the CPU engine's class, by what carries the shortcuts."""
    found = row["correctness"]
    parts = [
        f"{100 * found[f'same_class_{kind}']:.2f} % with {words}"
        + (", every output equal bit for bit" if found[f"equal_bits_{kind}"] == 1 else "")
        for kind, words in (("float32", "float32 shortcuts"), ("float16", "float16 shortcuts"))
    ]
    return (
        f"Classes equal to the CPU engine's on {found['images']:,} CIFAR-10 images at 224 pixels, a "
        f"trained network, {name_of(row['hardware'])}, {row['date']}: {'; '.join(parts)}."
    )


def shipped_rows(rows: Sequence[Row]) -> list[Row]:
    """The newest row of each model that was shipped, by name."""
    newest = {row["name"]: row for row in rows if row.get("kind") == "shipped" and not row["refused"]}
    return [newest[name] for name in sorted(newest)]


def shipped(rows: Sequence[Row]) -> str:
    """One line per model that ships, how each was checked, and the attempts that were refused."""
    found = shipped_rows(rows)
    if not found:
        return NOTHING
    results = [
        "| model | top-1 % | real-valued baseline, top-1 % | top-5 % | size "
        "| one image from bytes, one thread | measured on |",
        "|---|---|---|---|---|---|---|",
    ]
    checks = [
        "| model | recipe, seed | test images | top-1 % packed | in torch | from bytes "
        "| torch's class, % of images |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        accuracy, latency = row["accuracy"], row["latency"]
        one = (
            f"`{row['name']}`",
            f"{accuracy['packed_top1']:.2f}",
            f"{row['baseline']['top1']:.2f}" if row["baseline"] else "",
            f"{accuracy['packed_top5']:.2f}" if has_top5(len(row["data"]["classes"])) else "",
            size_text(row["file"]["bytes"]),
            f"{latency['from_bytes_median']:.2f} ms (fastest {latency['from_bytes_fastest']:.2f})",
            f"{name_of(latency['hardware'])}, {latency['isa']}, {row['date']}",
        )
        other = (
            f"`{row['name']}`",
            f"{row['recipe']['name']}, {row['seed']}",
            f"{accuracy['images']:,}",
            f"{accuracy['packed_top1']:.2f}",
            f"{accuracy['torch_top1']:.2f}",
            f"{accuracy['from_bytes_top1']:.2f}",
            f"{accuracy['same_class']:.2f}",
        )
        results.append("| " + " | ".join(one) + " |")
        checks.append("| " + " | ".join(other) + " |")
    parts = ["\n".join(results), "How each file was checked against the trained network:", "\n".join(checks)]
    refused = [row for row in rows if row.get("kind") == "shipped" and row["refused"]]
    parts += [f"Refused, {row['date']}: {row['name']}, because {row['refused']}." for row in refused]
    return "\n\n".join(parts)


def shipped_short(rows: Sequence[Row]) -> str:
    """The README's section: what ships, and what to type. Nothing, if nothing ships."""
    found = shipped_rows(rows)
    if not found:
        return ""
    lines = [
        "## Use a trained model",
        "",
        "These come with the package, each with its [model card](docs/shipped.md). Accuracy is that of the",
        "packed file on all test images; the baseline is the same network trained without binarization (that",
        "of `tiny-imagenet-resnet18` has no pooling after its stem, so that it does four times the work).",
        "",
        "| model | test accuracy | baseline's accuracy | file size | one image from bytes, one thread |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        baseline = f"{row['baseline']['top1']:.2f} %" if row["baseline"] else "not measured"
        lines.append(
            f"| `{row['name']}` | {row['accuracy']['packed_top1']:.2f} % | {baseline} | "
            f"{size_text(row['file']['bytes'])} | {row['latency']['from_bytes_median']:.2f} ms |"
        )
    name = found[0]["name"]
    machines: dict[str, list[str]] = {}
    for row in found:
        machines.setdefault(name_of(row["latency"]["hardware"]), []).append(f"`{row['name']}`")
    where = next(iter(machines))
    if len(machines) > 1:
        where = "; ".join(f"{machine}: {', '.join(names)}" for machine, names in machines.items())
    lines += [
        "",
        f"Times are medians on {where}.",
        "",
        "```console",
        f"$ xnorpp models {name}                        # its card",
        f"$ xnorpp predict --model {name} photo.png     # any photo of yours",
        "```",
    ]
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[Sequence[Row]], str]] = {
    "demo": demo,
    "served": served,
    "trained": trained,
    "engines": engines,
    "engines_on_gpu": engines_on_gpu,
    "gpu_layers": gpu_layers,
    "gpu_training": gpu_training,
    "packed": packed,
    "shipped": shipped,
    "shipped_short": shipped_short,
    **operations.BLOCKS,
    **foreign.BLOCKS,
    **paper.BLOCKS,
}


def draw(text: str, rows: Sequence[Row]) -> str:
    """The text with every block filled."""
    check_blocks(text)
    return paper.fill(text, rows, BLOCKS)


def check_blocks(text: str) -> None:
    for found in paper.BLOCK.finditer(text):
        if found[2] not in (*BLOCKS, paper.FURTHER):
            raise SystemExit(f"there is no block {found[2]!r}; the blocks are {', '.join(BLOCKS)}")


def documents() -> list[Path]:
    return paper.documents(ROOT)


def draw_all(write: bool = True) -> list[str]:
    """Every document and plot; the names of what was out of date."""
    for path in documents():
        check_blocks(path.read_text(encoding="utf-8"))
    return paper.draw_documents(ROOT, read_rows(), write=write, blocks=BLOCKS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", choices=sorted(COMMANDS), action="append", default=[])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    for name in given.run:
        capture(name)
    stale = draw_all(write=not given.check)
    if stale:
        print(f"{'out of date' if given.check else 'drawn again'}: {', '.join(stale)}")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
