"""The plot of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xnorpp.bench.compare import OURS

Row = dict[str, Any]


def plot(rows: Sequence[Row], path: str | Path) -> None:
    """Plot the latency of each engine (with quartiles), or the rate of each chain, as PNG or SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    latencies = [row for row in rows if row["name"] == "latency_uint8"]
    rates = [row for row in rows if row["name"] == "chain_rate"]
    panels = [panel for panel in (latencies, rates) if panel]
    if not panels:
        raise ValueError("`rows` must have a latency or a chain to plot")
    figure, axes = pyplot.subplots(1, len(panels), figsize=(7 * len(panels), 4.5), squeeze=False)
    for axis, panel in zip(axes[0], panels):
        if panel is latencies:
            _plot_latencies(axis, panel)
        else:
            _plot_rates(axis, panel)
    hardware = rows[0].get("hardware", {})
    figure.suptitle(
        hardware.get("cpu", "") + (", as an AVX2 machine" if "masked" in hardware else ""), fontsize=9
    )
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _plot_latencies(axis: Any, rows: Sequence[Row]) -> None:
    ordered = sorted(rows, key=lambda row: (row["threads"], row["value"]), reverse=True)
    names = [f"{row['engine']} ({row['threads']})" for row in ordered]
    values = [row["value"] for row in ordered]
    whiskers = [
        [row["value"] - row["spread_ms"]["lower_quartile"] for row in ordered],
        [row["spread_ms"]["upper_quartile"] - row["value"] for row in ordered],
    ]
    colours = ["#c44" if row["engine"] == OURS else "#89a" for row in ordered]
    axis.barh(names, values, xerr=whiskers, color=colours)
    for index, row in enumerate(ordered):  # after the whisker, which would cross it
        axis.text(row["spread_ms"]["upper_quartile"], index, f"  {row['value']:.1f}", va="center", fontsize=8)
    axis.set_xlim(0, 1.12 * max(row["spread_ms"]["upper_quartile"] for row in ordered))
    axis.set_xlabel(
        f"ms per batch of {ordered[0]['batch']} (uint8 input), median and quartiles (threads in brackets)"
    )
    axis.set_title(str(ordered[0]["model"]), fontsize=10)


def _plot_rates(axis: Any, rows: Sequence[Row]) -> None:
    chains = list(dict.fromkeys(row["model"].rpartition(" ")[2] for row in rows))
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        values = [row["value"] for row in rows if row["engine"] == engine]
        spots = [index + place * width for index in range(len(values))]
        axis.bar(spots, values, width, label=engine, color="#c44" if engine == OURS else "#89a")
    axis.set_xticks([index + width * (len(engines) - 1) / 2 for index in range(len(chains))], chains)
    axis.set_ylabel("10^9 binary multiply-adds per second")
    axis.set_title(
        f"chains of eight layers, {rows[0]['threads']} thread{'s' * (rows[0]['threads'] != 1)}", fontsize=10
    )
    axis.legend()
