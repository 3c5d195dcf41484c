"""What the plots of accuracy show: Tables 1 and 3, the models that ship, the ablation and the trials.

Each is a list of panels; a panel has a title, a label and bars: [name, values (one per seed), ours?, the
paper's figure or None].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xnorpp.paper import published
from xnorpp.paper.accuracy.choices import TRIAL_CHANGES, first_round, second_round, trials
from xnorpp.paper.accuracy.runs import ABLATION, ABLATION_CHOICES, SECOND_ROUND, TRIAL_CHOICE
from xnorpp.paper.accuracy.tables import (
    DATASETS,
    TABLE1,
    TABLE3,
    shipped_models,
    table1_groups,
    table3_groups,
    top1,
)
from xnorpp.paper.recorded import Row, Seeds

OURS, OTHER = "#c44", "#678"


def panel(title: str, label: str, bars: list[Any]) -> dict[str, Any]:
    return {"title": title, "label": label, "bars": bars}


def methods(
    found: dict[str, list[Row]], wanted: Sequence[str], printed: dict[str, tuple[float, float]]
) -> list[Any]:
    """One bar per method, with the paper's top-1 on ImageNet."""
    return [
        [
            published.METHODS[row].partition(":")[0],
            [top1(one) for one in found[row]],
            row.startswith("case"),
            printed[row][0] if row in printed else None,
        ]
        for row in wanted
        if row in found
    ]


def table1_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One panel per data set, its longest schedule; the paper's figures with Tiny-ImageNet."""
    panels = []
    for dataset, name in DATASETS.items():
        epochs, found = next(iter(table1_groups(rows, dataset).items()))
        bars = methods(found, TABLE1, published.RESNET18 if dataset == "tiny_imagenet" else {})
        panels.append(panel(f"{name}, {epochs} epochs", "top-1 %", bars))
    return [one for one in panels if one["bars"]]


def table3_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One panel per network, on Tiny-ImageNet."""
    panels = []
    for network, wanted in TABLE3.items():
        title, printed = published.NETWORKS[network]
        epochs, found = next(iter(table3_groups(rows, network).items()))
        panels.append(panel(f"{title}, {epochs} epochs", "top-1 %", methods(found, wanted, printed)))
    return [one for one in panels if one["bars"]]


def shipped_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each packed model above its real-valued baseline."""
    bars = []
    for name, known in shipped_models(rows).items():
        for what, value in (
            ("packed", (known or {}).get("packed")),
            ("real-valued", (known or {}).get("baseline")),
        ):
            if value is not None:
                bars.append([f"{name}, {what}", [value], what == "packed", None])
    return [panel("models that ship and their real-valued baselines", "top-1 %", bars)] if bars else []


def ablation_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What each level gains over the start; the adopted default in our colour."""
    panels = []
    start, levels = first_round(rows)
    if start is not None:
        bars = [
            [f"{factor}: {level}", [top1(row) - top1(start)], ABLATION_CHOICES[factor] == level, None]
            for (factor, level), row in levels.items()
            if row is not None and ABLATION[factor][level]
        ]
        panels.append(panel(f"from the paper's recipe ({top1(start):.1f} %)", "points gained, top-1", bars))
    base, again = second_round(rows)
    if base is not None:
        bars = [
            [level, [top1(row) - top1(base)], False, None]
            for level, row in again.items()
            if row is not None and SECOND_ROUND[level]
        ]
        panels.append(panel(f"from the adopted defaults ({top1(base):.1f} %)", "points gained, top-1", bars))
    return [one for one in panels if one["bars"]]


def trial_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What each change of ResNet-20's recipe gains."""
    default, found = trials(rows)
    bars = [
        [name, [top1(row) - top1(default)], name == TRIAL_CHOICE, None]
        for name, row in found.items()
        if default is not None and row is not None and TRIAL_CHANGES[name]
    ]
    return [panel("ResNet-20, CIFAR-10, held-out images", "points gained, top-1", bars)] if bars else []


PANELS: dict[str, Callable[[Sequence[Row]], list[dict[str, Any]]]] = {
    "table1": table1_panels,
    "table3": table3_panels,
    "shipped": shipped_panels,
    "ablation": ablation_panels,
    "trials": trial_panels,
}


def draw(axis: Any, given: dict[str, Any], everything: Sequence[dict[str, Any]]) -> None:
    """One bar per name with its deviation and its number; the paper's figures as diamonds. Gains have the
    same scale in `everything`, all panels of the plot.
    """
    bars = given["bars"]
    places = list(range(len(bars)))
    seeds = [Seeds(tuple(values)) for _, values, _, _ in bars]
    gains = given["label"] != "top-1 %"
    drawn = axis.barh(
        places,
        [one.mean for one in seeds],
        xerr=[one.deviation for one in seeds],
        color=[OURS if ours else OTHER for _, _, ours, _ in bars],
    )
    texts = [f"{one.mean:+.2f}" if gains else f"{one.mean:.2f}" for one in seeds]
    if gains:
        axis.bar_label(drawn, texts, padding=3)
        means = [Seeds(tuple(bar[1])).mean for one in everything for bar in one["bars"]]
        low, high = min(0.0, *means), max(0.0, *means)
        room = 0.3 * (high - low)
        axis.set_xlim(low - room, high + room)
        axis.axvline(0, color="k", linewidth=0.6)
    else:
        for place, text in zip(places, texts):
            axis.text(1, place, text, color="w", va="center")
    printed = [(paper, place) for place, (_, _, _, paper) in zip(places, bars) if paper is not None]
    if printed:
        axis.plot(*zip(*printed), "kD", markersize=4)
    axis.set_yticks(places, [name for name, _, _, _ in bars])
    axis.invert_yaxis()
    axis.set_xlabel(given["label"] + "; diamonds: the paper's, on ImageNet" * bool(printed))
    axis.set_title(given["title"])
