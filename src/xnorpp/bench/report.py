"""The report of a benchmark: a table for the terminal, JSON, rows for results/*.jsonl, and a plot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xnorpp.bench.compare import OURS, Comparison
from xnorpp.bench.layers import ChainResult
from xnorpp.bench.machine import describe_machine
from xnorpp.bench.startup import ColdStart, Startup
from xnorpp.bench.throughput import Throughput
from xnorpp.inspect.stopwatch import NEAR, Spread
from xnorpp.inspect.table import columns
from xnorpp.training.records.record import source_commit, today

Row = dict[str, Any]


def comparison_text(found: Comparison) -> str:
    """One row per engine, then the ratios."""
    rows = [
        [
            "engine",
            "precision",
            "threads",
            "uint8 ms",
            "p90",
            "p99",
            "(quartiles, min)",
            "float32 ms",
            "images/s",
            "xnorpp is",
        ]
    ]
    for row in sorted(found.results, key=lambda one: (one.threads, one.uint8.median)):
        ours = found.ours(row.threads).uint8.median
        rows.append(
            [
                row.engine,
                row.precision,
                str(row.threads),
                f"{1e3 * row.uint8.median:.2f}",
                *(f"{1e3 * value:.2f}" if value else "-" for value in (row.uint8.p90, row.uint8.p99)),
                _spread(row.uint8),
                f"{1e3 * row.float32.median:.2f}",
                f"{found.batch / row.uint8.median:.0f}",
                "-" if row.engine == OURS else f"{row.uint8.median / ours:.2f} times as fast",
            ]
        )
    lines = [
        f"{found.model}, batch {found.batch}, kernels {found.isa}, {found.file_bytes / 1e6:.2f} MB packed",
        *columns(rows, right=(2, 3, 4, 5, 6, 7, 8)),
    ]
    counts = sorted({row.threads for row in found.results})
    for threads in counts:
        for precision in ("fp32", "int8"):
            other = found.fastest(precision, threads)
            ratio = found.speedup(precision, threads)
            if other and ratio:
                ways = _other_ways(functools.partial(found.speedup, precision, threads))
                lines.append(
                    f"{threads} thread{'s' * (threads != 1)}: {ratio:.2f} times as fast as the fastest "
                    f"{precision} engine, {other.engine}"
                    f"{ways}"
                )
    if len(counts) > 1:
        names = dict.fromkeys(row.engine for row in found.results)
        scaled = [(name, found.scaling(name, counts[0], counts[-1])) for name in names]
        parts = [f"{name} {ratio:.2f}" for name, ratio in scaled if ratio]
        lines.append(f"{counts[-1]} threads against {counts[0]}: " + ", ".join(parts))
        scaling = functools.partial(found.scaling, OURS, counts[0], counts[-1])
        lines[-1] += _other_ways(scaling, "xnorpp ") + _by_distance(scaling, found.ours(counts[-1]).uint8)
    lines += sorted({note for row in found.results if row.engine != OURS for note in row.notes})
    return "\n".join([*lines, *found.left_out])


def layers_text(found: Sequence[ChainResult], real: bool = False) -> str:
    """One row per chain: multiply-adds per second of each engine, and their ratio."""
    rows = [
        [
            "chain" if real else "chain of 8",
            "xnorpp ms",
            "GMAC/s",
            "openvino ms",
            "GMAC/s",
            "xnorpp is",
            "openvino ran",
        ]
    ]
    for row in found:
        peer = row.seconds.get("openvino")
        rows.append(
            [
                row.chain,
                f"{1e3 * row.seconds['xnorpp'].median:.3f}",
                f"{row.rate('xnorpp') / 1e9:.0f}",
                f"{1e3 * peer.median:.3f}" if peer else "-",
                f"{row.rate('openvino') / 1e9:.0f}" if peer else "-",
                f"{row.speedup('median') or 0:.2f} times as fast{_other_ways(row.speedup)}" if peer else "-",
                ", ".join(dict.fromkeys(row.primitives)) or "-",
            ]
        )
    layer = "(convolution, bias, ReLU) in float32" if real else "(sign, binary 3x3 convolution, scale)"
    head = f"{layer}, kernels {found[0].isa}" if found else ""
    own = [
        f"{row.chain}: {row.speedup('median', other) or 0:.2f} times {other}"
        f" ({row.rate(other) / 1e9:.0f} GMAC/s)" + _other_ways(functools.partial(_swapped, row, other))
        for row in found
        for other in row.seconds
        if other.startswith(f"{OURS} ")
    ]
    return "\n".join([head, *columns(rows, right=(1, 2, 3, 4)), *own])


def _swapped(row: ChainResult, other: str, by: str) -> float | None:
    return row.speedup(by, other)


def _other_ways(ratio: Callable[[str], float | None], name: str = "") -> str:
    """The ratio over undisturbed calls and over the fastest ones, to follow the ratio of medians."""
    labels = {"quiet": "over undisturbed calls", "minimum": "over the fastest calls"}
    found = {by: ratio(by) for by in labels}
    return "".join(f"; {name}{value:.2f}x {labels[by]}" for by, value in found.items() if value)


def _by_distance(scaling: Callable[[str], float | None], spread: Spread) -> str:
    """The scaling while the two cores were near each other, and far apart."""
    calls = {"near": spread.near_calls, "far": spread.far_calls}
    labels = {"near": f"within {NEAR:.0f} ns of each other", "far": f"more than {NEAR:.0f} ns apart"}
    found = {by: scaling(by) for by in calls}
    parts = [
        f"{value:.2f}x in the {calls[by]} of {spread.calls} calls with the cores {labels[by]}"
        for by, value in found.items()
        if value
    ]
    return "".join(f"; xnorpp {part}" for part in parts)


def throughput_text(found: Sequence[Throughput]) -> str:
    """One row per setting, then the fastest."""
    rows = [["batch", "threads", "streams", "images/s", "p50 ms", "p90 ms", "p99 ms", "slowest", "calls"]]
    for one in found:
        times = (f"{1e3 * value:.2f}" for value in (one.p50, one.p90, one.p99, one.slowest))
        counts = (str(one.batch), str(one.threads), str(one.streams), f"{one.rate:,.1f}")
        rows.append([*counts, *times, f"{one.calls:,}"])
    best = max(found, key=lambda one: one.rate)
    return "\n".join(
        [
            f"{found[0].model}, kernels {found[0].isa}, from uint8; threads are those of one call, "
            "streams are callers at the same time",
            *columns(rows, right=tuple(range(9))),
            f"fastest: {best.rate:,.1f} images per second with batch {best.batch}, threads {best.threads}, "
            f"streams {best.streams}",
        ]
    )


def throughput_rows(found: Iterable[Throughput]) -> list[Row]:
    return [
        {
            "name": "throughput",
            "value": one.rate,
            "unit": "images/s",
            "engine": OURS,
            "kernels": one.isa,
            "model": one.model,
            "batch": one.batch,
            "threads": one.threads,
            "streams": one.streams,
            "calls": one.calls,
            "seconds": one.seconds,
            "latency_ms": {name: 1e3 * getattr(one, name) for name in ("p50", "p90", "p99", "slowest")},
        }
        for one in found
    ]


def startup_text(found: Startup) -> str:
    torch = "torch was imported" if found.torch_imported else "torch not imported"
    return (
        f"first result after {found.seconds:.3f} s (import {found.importing:.3f}, load {found.loading:.3f}, "
        f"run {found.answering:.3f}), {torch}; peak memory {found.bytes_above_bare / 1e6:.1f} MB "
        "above the bare interpreter, numpy included"
    )


def commands_text(found: Mapping[str, ColdStart]) -> str:
    """One row per command: seconds from a cold start, and how many times `import numpy` that is."""
    rows = [["cold start", "median s", "fastest s", "processor s", "times numpy"]]
    numpy = found["import numpy"].processor.median
    for name, one in found.items():
        times = (one.elapsed.median, one.elapsed.minimum, one.processor.median)
        rows.append([name, *(f"{value:.3f}" for value in times), f"{one.processor.median / numpy:.2f}"])
    return "\n".join(columns(rows, right=(1, 2, 3, 4)))


def commands_rows(found: Mapping[str, ColdStart], model: str) -> list[Row]:
    numpy = found["import numpy"].processor.median
    return [
        {
            "name": "cold_start",
            "value": one.elapsed.median,
            "unit": "s",
            "engine": OURS,
            "command": name,
            "fastest": one.elapsed.minimum,
            "processor_median": one.processor.median,
            "processor_fastest": one.processor.minimum,
            "times_numpy": one.processor.median / numpy,
            "calls": one.elapsed.calls,
            "model": model,
            "threads": None,
            "batch": 1,
        }
        for name, one in found.items()
    ]


def machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    masked = f"; {machine['masked']}" if "masked" in machine else ""
    known = []
    if "share_l3" in machine:
        known.append("one L3 cache" if machine["share_l3"] else "several L3 caches")
    if "line_ns" in machine:
        known.append(f"{machine['line_ns']:.0f} ns for a cache line from one to the other")
    apart = f" ({', '.join(known)})" if known else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores{apart}, {' '.join(machine['isa'])}{masked}\n{versions}"
    )


def _spread(spread: Spread) -> str:
    return f"({1e3 * spread.lower:.2f} to {1e3 * spread.upper:.2f}, {1e3 * spread.minimum:.2f})"


def comparison_rows(found: Comparison) -> list[Row]:
    """One row per engine and input, and one per ratio."""
    rows: list[Row] = []
    for result in found.results:
        for kind, spread in (("uint8", result.uint8), ("float32", result.float32)):
            rows.append(
                {
                    "name": f"latency_{kind}",
                    "value": 1e3 * spread.median,
                    "unit": "ms",
                    "engine": result.engine,
                    "precision": result.precision,
                    "threads": result.threads,
                    "spread_ms": {key: 1e3 * value for key, value in _milli(spread).items()},
                    "calls": spread.calls,
                    "quiet_calls": spread.quiet_calls,
                    **({"kernels": found.isa} if result.engine == OURS else {}),
                    **({"notes": list(result.notes)} if result.engine != OURS and result.notes else {}),
                }
            )
    counts = sorted({row.threads for row in found.results})
    for threads in counts:
        for precision in ("fp32", "int8"):
            other, ratio = found.fastest(precision, threads), found.speedup(precision, threads)
            if other and ratio:
                rows.append(
                    {
                        "name": f"speedup_{precision}",
                        "value": ratio,
                        "unit": "times",
                        "engine": OURS,
                        "against": other.engine,
                        "threads": threads,
                        "by_quiet_calls": found.speedup(precision, threads, "quiet"),
                        "by_fastest_calls": found.speedup(precision, threads, "minimum"),
                    }
                )
    for name in dict.fromkeys(row.engine for row in found.results):
        ratio = found.scaling(name, counts[0], counts[-1]) if len(counts) > 1 else None
        if ratio:
            scaling = {"name": "thread_scaling", "value": ratio, "unit": "times", "engine": name}
            ways = {
                "by_quiet_calls": found.scaling(name, counts[0], counts[-1], "quiet"),
                "by_fastest_calls": found.scaling(name, counts[0], counts[-1], "minimum"),
                "near": found.scaling(name, counts[0], counts[-1], "near"),
                "far": found.scaling(name, counts[0], counts[-1], "far"),
            }
            pair = next(row.uint8 for row in found.results if (row.engine, row.threads) == (name, counts[-1]))
            ways |= {"near_calls": pair.near_calls, "far_calls": pair.far_calls}
            rows.append({**scaling, "threads": counts[-1], "against_threads": counts[0], **ways})
    rows.append(
        {"name": "file_size", "value": found.file_bytes / 1e6, "unit": "MB", "engine": OURS, "threads": None}
    )
    return [{**row, "model": found.model, "batch": found.batch} for row in rows]


def layers_rows(found: Iterable[ChainResult], threads: int, real: bool = False) -> list[Row]:
    rows: list[Row] = []
    title, prefix = ("real layers", "real_") if real else ("chain of 8 at", "")
    for result in found:
        shared = {"model": f"{title} {result.chain}", "threads": threads, "batch": 1}
        for engine, spread in result.seconds.items():
            kernels = result.isa if engine == OURS else ", ".join(dict.fromkeys(result.primitives))
            kernels = engine.rpartition(" ")[2] if engine.startswith(f"{OURS} ") else kernels
            rows.append(
                {
                    "name": f"{prefix}chain_rate",
                    "value": result.rate(engine) / 1e9,
                    "unit": "GMAC/s",
                    "engine": engine,
                    "kernels": kernels,
                    "spread_ms": {key: 1e3 * value for key, value in _milli(spread).items()},
                    "calls": spread.calls,
                    "quiet_calls": spread.quiet_calls,
                    **shared,
                }
            )
        for other in (name for name in result.seconds if name != OURS):
            row = {
                "name": f"{prefix}chain_speedup",
                "value": result.speedup("median", other),
                "unit": "times",
                "engine": OURS,
                "by_quiet_calls": result.speedup("quiet", other),
                "by_fastest_calls": result.speedup("minimum", other),
            }
            rows.append({**row, "against": other, **shared})
    return rows


def startup_rows(found: Startup, model: str, threads: int) -> list[Row]:
    shared = {"engine": OURS, "model": model, "threads": threads, "batch": 1, "kernels": found.isa}
    return [
        {
            "name": "first_answer",
            "value": found.seconds,
            "unit": "s",
            "torch": found.torch_imported,
            **shared,
        },
        {"name": "peak_memory_above_bare", "value": found.bytes_above_bare / 1e6, "unit": "MB", **shared},
    ]


def _milli(spread: Spread) -> dict[str, float]:
    return {
        "minimum": spread.minimum,
        "lower_quartile": spread.lower,
        "median": spread.median,
        "upper_quartile": spread.upper,
        **({} if spread.p90 is None or spread.p99 is None else {"p90": spread.p90, "p99": spread.p99}),
        **({} if spread.quiet is None else {"median_of_quiet_calls": spread.quiet}),
    }


def complete(
    rows: Iterable[Row], seed: int | None = None, hardware: Mapping[str, Any] | None = None
) -> list[Row]:
    """Each row with what every measured number carries: kind, seed, commit, hardware and date."""
    date, rows = today(), list(rows)
    if hardware is None:
        hardware = describe_machine(max((row.get("threads") or 1 for row in rows), default=1))
    return [
        {"kind": "bench", **row, "seed": seed, "commit": source_commit(), "hardware": hardware, "date": date}
        for row in rows
    ]
