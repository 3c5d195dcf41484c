"""What the plots of E1 and E2 show: differences of means with their 95 % intervals.

Numbers are rounded, because a plot is known by a digest of them and another version of scipy may differ in
the last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xnorpp.paper.accuracy.claim import COMPARISONS, by_length, claim_groups
from xnorpp.paper.accuracy.plots import OTHER, OURS
from xnorpp.paper.accuracy.tables import EPOCHS, Comparison, loss, sides, top1, top5
from xnorpp.paper.recorded import Row, Seeds, welch

DIGITS = 4
# title -> the comparisons whose lines it has, by name
LEARNED: dict[str, dict[str, Comparison]] = {
    f"learned minus XNOR-Net {which} K": {
        case: next(one for one in COMPARISONS if one[0] == f"{case} minus XNOR-Net {which} K")
        for case in ("Case 1", "Case 4")
    }
    for which in ("without", "with")
}


def interval(
    found: dict[str, list[Row]], comparison: Comparison, read: Callable[[Row], float]
) -> list[float] | None:
    """[difference, low, high], or None where a row is missing or has a single seed."""
    both = sides(found, comparison)
    if both is None or not both[2]:
        return None
    test = welch(Seeds.of(both[0], read), Seeds.of(both[1], read))
    return None if test is None else [round(one, DIGITS) for one in (test.difference, test.low, test.high)]


def claim_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One panel per measure, one line per comparison."""
    found = claim_groups(rows).get(EPOCHS, {})
    panels = []
    for label, read in (("top-1, points", top1), ("top-5, points", top5), ("test loss", loss)):
        pairs = [(one[0], interval(found, one, read)) for one in COMPARISONS]
        lines = [[name, *values] for name, values in pairs if values]
        panels.append({"label": label, "lines": lines})
    return [one for one in panels if one["lines"]]


def length_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One panel per kind of XNOR-Net, one line per case, of the lengths that are complete: [epochs,
    difference, low, high], ...
    """
    found = by_length(rows)
    panels = []
    for title, comparisons in LEARNED.items():
        lines = []
        for name, comparison in comparisons.items():
            pairs = [(epochs, interval(one, comparison, top1)) for epochs, one in found.items()]
            points = [[epochs, *values] for epochs, values in pairs if values]
            if len(points) > 1:
                lines.append([name, points])
        panels.append({"title": title, "lines": lines})
    return [one for one in panels if one["lines"]]


def draw_comparisons(axis: Any, given: dict[str, Any], everything: Sequence[dict[str, Any]]) -> None:
    """One horizontal interval per comparison."""
    lines = given["lines"]
    places = list(range(len(lines)))
    for place, (_, middle, low, high) in zip(places, lines, strict=True):
        colour = OTHER if low <= 0 <= high else OURS
        axis.plot([low, high], [place, place], "-", color=colour)
        axis.plot(middle, place, "o", color=colour)
    axis.axvline(0, color="k", linewidth=0.6)
    first = given is everything[0]
    axis.set_yticks(places, [line[0] for line in lines])
    axis.invert_yaxis()
    axis.locator_params(axis="x", nbins=6)
    better = "below" if given["label"] == "test loss" else "above"
    axis.set_xlabel(f"difference of {given['label']}; {better} 0 is better")
    axis.set_title("95 % intervals; red: does not include 0" if first else "")


def draw_lengths(axis: Any, given: dict[str, Any], everything: Sequence[dict[str, Any]]) -> None:
    """One line per case over the length of training; the panels share their scale."""
    points = [point for one in everything for _, found in one["lines"] for point in found]
    for number, (name, found) in enumerate(given["lines"]):
        x = [point[0] * (1 + 0.04 * number) for point in found]  # apart, so that the intervals are seen
        y = [point[1] for point in found]
        reach = [[point[1] - point[2] for point in found], [point[3] - point[1] for point in found]]
        colour, mark = ((OTHER, "s"), (OURS, "o"))[number % 2]
        axis.errorbar(x, y, yerr=reach, fmt=f"{mark}-", color=colour, capsize=3, label=name)
    lengths = sorted({point[0] for point in points})
    axis.set_xscale("log")
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.minorticks_off()
    axis.set_xlim(lengths[0] * 0.8, lengths[-1] * 1.3)
    low, high = min(0.0, *(point[2] for point in points)), max(point[3] for point in points)
    axis.set_ylim(low - 0.2, high + 0.2)
    axis.axhline(0, color="k", linewidth=0.6)
    axis.set_xlabel("epochs of training")
    axis.set_ylabel("top-1, points, and 95 % interval")
    axis.set_title(given["title"])
    axis.legend()
