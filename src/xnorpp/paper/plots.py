"""The plots of recorded numbers, as SVG; those of accuracy are in `accuracy/plots.py`.

The metadata of each has a digest of the numbers it shows, so that an outdated plot is found without drawing
it again (another version of matplotlib would draw other bytes).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xnorpp.paper import published
from xnorpp.paper.accuracy import intervals
from xnorpp.paper.accuracy import plots as accuracy_plots
from xnorpp.paper.accuracy.plots import OTHER, OURS
from xnorpp.paper.layers.figure1 import theory
from xnorpp.paper.layers.tables import SETUPS, figure1_rows, table2_rows
from xnorpp.paper.recorded import Row
from xnorpp.paper.speed import speed_data
from xnorpp.paper.terminal import demo_data, write_terminal

PALE = "#bcc"
WIDTH, TEXT = 8.0, 9.5  # inches, points
DRAWN_FROM = re.compile(r"drawn from ([0-9a-f]{16})")


def digest(data: object) -> str:
    """A short name of some numbers."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def drawn_from(path: Path) -> str | None:
    """The digest that a plot was drawn from."""
    found = DRAWN_FROM.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else None


def table2_data(rows: Sequence[Row]) -> Any:
    """[set-up, [[method, fitted mean, deviation, held-out mean, deviation], ...]], ...; empty if none."""
    found: dict[str, list[Any]] = {setup: [] for setup in SETUPS}
    for row in table2_rows(rows):
        spreads = (row["distance"], row["held_out"])
        found[row["setup"]].append([row["method"], *(one[key] for one in spreads for key in ("mean", "std"))])
    return [[setup, methods] for setup, methods in found.items() if methods]


def table2_plot(rows: Sequence[Row], path: Path) -> None:
    """One panel per set-up, fitted and held-out input; the paper's as diamonds, its XNOR-Net at both rows."""
    data = table2_data(rows)
    figure, axes = _panels(len(data), 3.8)
    for axis, (setup, methods) in zip(axes, data):
        places = range(len(methods))
        for shift, column, colour, label in (
            (-0.2, 1, OURS, "fitted input"),
            (0.2, 3, PALE, "held-out input"),
        ):
            means, deviations = ([one[column + i] for one in methods] for i in (0, 1))
            spots = [place + shift for place in places]
            axis.barh(spots, means, 0.38, xerr=deviations, color=colour, label=label)
        printed = [
            (published.TABLE2["xnor" if one[0] == "xnor-alpha" else one[0]][0], place)
            for place, one in zip(places, methods)
            if one[0] != "case2"
        ]
        axis.plot([x for x, _ in printed], [y for _, y in printed], "kD", markersize=4, label="paper")
        names = [published.METHODS[one[0]].partition(":")[0].partition(",")[0] for one in methods]
        axis.set_yticks(list(places), names)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.set_xlim(0.003, 100)
        axis.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])  # not powers: too small
        axis.set_xlabel("mean |R - Gamma B|")
        axis.set_title(setup)
    axes[-1].legend()
    _save(figure, path, data)


def figure1_data(rows: Sequence[Row]) -> Any:
    """[channels, kernel, against, by medians, by fastest calls], ..."""
    keys = ("channels", "kernel", "against", "speedup", "speedup_fastest")
    return [[row[key] for key in keys] for row in figure1_rows(rows, "speed")]


def figure1_plot(rows: Sequence[Row], path: Path) -> None:
    """Against channels at 3x3 and against kernel sizes: the formulas as lines, what is measured as points."""
    data = figure1_data(rows)
    figure, axes = _panels(2, 5.2)
    fixed = max((one[0] for one in data if one[1] != 3), default=256)
    by_channels = [(one[0], *one[2:]) for one in data if one[1] == 3]
    by_kernel = [(one[1], *one[2:]) for one in data if one[0] == fixed]
    for axis, points, ends in ((axes[0], by_channels, {32, 512}), (axes[1], by_kernel, {1, 7})):
        places = sorted({point[0] for point in points} | ends)
        both = [theory(place, 3) if axis is axes[0] else theory(fixed, place) for place in places]
        axis.plot(places, [one[1] for one in both], "-", color=OURS, label="theory, XNOR-Net++")
        axis.plot(places, [one[0] for one in both], "--", color=OTHER, label="theory, XNOR-Net")
        for against, mark, colour in (("torch", "o", OURS), ("xnorpp", "s", OTHER)):
            chosen = sorted(point for point in points if point[1] == against)
            name = "torch's" if against == "torch" else "our own"
            label = f"measured against {name} float32, medians"
            x = [point[0] for point in chosen]
            axis.plot(x, [point[2] for point in chosen], mark + "-", color=colour, label=label)
            axis.plot(
                x, [point[3] for point in chosen], mark, markerfacecolor="none", color=colour,
                label="the same, fastest calls",
            )  # fmt: skip
        axis.set_yscale("log", base=2)
        axis.set_ylabel("times as fast")
        axis.set_ylim(0.5, 80)
        axis.set_yticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
        if axis is axes[0]:
            axis.set_xscale("log", base=2)
        axis.set_xticks(places, [str(place) if axis is axes[0] else f"{place}x{place}" for place in places])
    axes[0].set_xlabel("channels, 3x3 kernel")
    axes[1].set_xlabel(f"kernel, {fixed} channels")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2)
    _save(figure, path, data, below=0.18)


def speed_plot(rows: Sequence[Row], path: Path) -> None:
    """One bar per engine, milliseconds per call; one panel per block and machine."""
    data = speed_data(rows)
    figure, axes = _panels(len(data), 3.1)
    for axis, (title, bars) in zip(axes, data):
        names, values = [name for name, _ in bars], [value for _, value in bars]
        places = list(range(len(bars)))
        drawn = axis.barh(
            places, values, color=[OURS if name.startswith("xnorpp") else OTHER for name in names]
        )
        axis.bar_label(drawn, [f"{value:.3g}" for value in values], padding=3)
        axis.set_xlim(0, 1.2 * max(values))
        axis.set_yticks(places, names)
        axis.invert_yaxis()
        axis.set_xlabel("ms per call, less is better")
        axis.set_title(title)
    _save(figure, path, data)


def accuracy_plot(name: str) -> Callable[[Sequence[Row], Path], None]:
    """The plot of one of the tables of accuracy: panels of bars."""

    def plot(rows: Sequence[Row], path: Path) -> None:
        data = accuracy_plots.PANELS[name](rows)
        most = max((len(panel["bars"]) for panel in data), default=1)
        columns = 2 if len(data) > 1 and max(len(bar[0]) for one in data for bar in one["bars"]) < 32 else 1
        _draw_panels(data, accuracy_plots.draw, path, height=max(2.0, 1.1 + 0.3 * most), columns=columns)

    return plot


def claim_plot(rows: Sequence[Row], path: Path) -> None:
    """E1: every comparison with its interval, one panel per measure."""
    _draw_panels(intervals.claim_panels(rows), intervals.draw_comparisons, path, height=2.4, columns=1)


def short_plot(rows: Sequence[Row], path: Path) -> None:
    """E2 and E1: what learned scales gain, against the length of training."""
    _draw_panels(intervals.length_panels(rows), intervals.draw_lengths, path, height=3.4)


def demo_plot(rows: Sequence[Row], path: Path) -> None:
    """What `make demo` printed, as a terminal."""
    data = demo_data(rows)
    write_terminal(path, *data, description=f"drawn from {digest(data)}")


# The numbers of a plot, empty where there are none, and what draws it.
Plot = tuple[Callable[[Sequence[Row]], Any], Callable[[Sequence[Row], Path], None]]
PLOTS: dict[str, Plot] = {
    **{name: (panels, accuracy_plot(name)) for name, panels in accuracy_plots.PANELS.items()},
    "claim": (intervals.claim_panels, claim_plot),
    "short": (intervals.length_panels, short_plot),
    "table2": (table2_data, table2_plot),
    "figure1": (figure1_data, figure1_plot),
    "speed": (speed_data, speed_plot),
    "demo": (demo_data, demo_plot),
}


def _draw_panels(
    data: list[dict[str, Any]],
    draw: Callable[[Any, dict[str, Any], list[dict[str, Any]]], None],
    path: Path,
    *,
    height: float,
    columns: int = 2,
) -> None:
    figure, axes = _panels(len(data), height, columns)
    for axis, panel in zip(axes, data):
        draw(axis, panel, data)
    _save(figure, path, data)


def _panels(count: int, height: float, columns: int = 2) -> tuple[Any, Any]:
    """A figure with `count` axes of this height, in inches, at most `columns` in a row.

    Every plot is `WIDTH` inches wide, so that its smallest text, `TEXT` points, has 11 pixels and more on a
    page of 760 pixels.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "xnorpp",
            "svg.fonttype": "none",
            "font.size": TEXT,
            "axes.titlesize": TEXT + 1,
            "legend.fontsize": TEXT,
            "axes.titlelocation": "right",  # a long one reaches over the names at the left
            "xaxis.labellocation": "right",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib import pyplot

    columns = min(max(count, 1), columns)
    lines = -(-max(count, 1) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(WIDTH, height * lines), squeeze=False)
    for axis in axes.flat[max(count, 1) :]:
        axis.set_axis_off()
    return figure, axes.flat[: max(count, 1)]


def _save(figure: Any, path: Path, data: object, below: float = 0.0) -> None:
    """`below` is the share of the height that is left free at the bottom, for a legend."""
    from matplotlib import pyplot

    figure.tight_layout(rect=(0, below, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Description": f"drawn from {digest(data)}"})
    pyplot.close(figure)
