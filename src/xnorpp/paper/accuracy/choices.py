"""What was chosen on the held-out tenth of the training set: the ablation and the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xnorpp.paper.accuracy.runs import ABLATION, ABLATION_CHOICES, HOLDOUT, SECOND_ROUND, TRIALS
from xnorpp.paper.accuracy.tables import DATASETS, top1, top5
from xnorpp.paper.layers.tables import NOT_MEASURED, markdown
from xnorpp.paper.recorded import Row, accuracy

TRIAL_CHANGES = {**TRIALS, "own-teacher": ("loss.teacher=its real-valued baseline",)}
IMAGES = {"tiny_imagenet": 100_000, "cifar10": 50_000}


def first_round(rows: Sequence[Row]) -> tuple[Row | None, dict[tuple[str, str], Row | None]]:
    """Where the ablation starts, and (factor, level) -> its newest row, the start's own levels included."""
    chosen = accuracy(rows, experiment="ablation", split=None)
    start = next((row for row in chosen if row.get("default")), None)
    found = {(str(row["factor"]), str(row["level"])): row for row in chosen}
    return start, {
        (factor, level): found.get((factor, level)) if changes else start
        for factor, levels in ABLATION.items()
        for level, changes in levels.items()
    }


def second_round(rows: Sequence[Row]) -> tuple[Row | None, dict[str, Row | None]]:
    """The same from the defaults since."""
    chosen = accuracy(rows, experiment="ablation", split=None)
    found = {str(row["level"]): row for row in chosen if row["factor"] == "second round"}
    return found.get("defaults"), {level: found.get(level) for level in SECOND_ROUND}


def chance(row: Row) -> float:
    """Twice the standard deviation, in points, of the difference of two accuracies near that of `row`,
    measured on as many images as were held out.
    """
    share, images = top1(row) / 100, HOLDOUT * IMAGES[row["dataset"]]
    return 200 * math.sqrt(2 * share * (1 - share) / images)


def ablation_block(rows: Sequence[Row]) -> str:
    """One factor at a time from the paper's recipe, on the held-out tenth of the training set, with the
    defaults that were adopted; then again from those defaults."""
    chosen = accuracy(rows, experiment="ablation", split=None)
    if not chosen:
        return f"The ablation: {NOT_MEASURED}."
    start, levels = first_round(rows)
    body = []
    for (factor, level), row in levels.items():
        taken = "yes" if ABLATION_CHOICES[factor] == level else ""
        body.append([factor, level, *_against(row, start, bool(ABLATION[factor][level])), taken])
    first = chosen[0]
    where = "the held-out tenth of the training set" if first["split"] == "held" else "the test set"
    text = (
        f"Case 4, {DATASETS.get(first['dataset'], first['dataset'])}, {first['epochs']} epochs, one seed, "
        f"measured on {where}. "
        + (f"Twice the standard deviation of a difference: {chance(start):.1f} points." if start else "")
        + "\n\n"
        + markdown(["factor", "level", "top-1 %", "top-5 %", "minus start", "adopted as default"], body)
    )
    base, again = second_round(rows)
    if base:
        lines = [[level, *_against(row, base, bool(SECOND_ROUND[level]))] for level, row in again.items()]
        text += "\n\nThe second round, from the adopted defaults:\n\n"
        text += markdown(["level", "top-1 %", "top-5 %", "minus start"], lines)
    return text


def _against(row: Row | None, start: Row | None, changed: bool) -> list[str]:
    """Top-1, top-5 and the difference from the start, as texts."""
    if row is None:
        return [NOT_MEASURED, "", ""]
    gap = "start" if not changed else f"{top1(row) - top1(start):+.2f}" if start else ""
    return [f"{top1(row):.2f}", f"{top5(row):.2f}", gap]


def trials(rows: Sequence[Row]) -> tuple[Row | None, dict[str, Row | None]]:
    """Where the trials start, and each one's newest row."""
    found = {str(row["row"]): row for row in accuracy(rows, experiment="trial", split=None)}
    return found.get("default"), {name: found.get(name) for name in TRIAL_CHANGES}


def trials_block(rows: Sequence[Row]) -> str:
    """What the recipe of ResNet-20 was chosen from, on held-out images; the loss shows small changes."""
    default, found = trials(rows)
    if default is None:
        return f"The trials: {NOT_MEASURED}."
    body, missing = [], []
    for name, row in found.items():
        if row is None:
            missing.append(name)
            continue
        changes = TRIAL_CHANGES[name]
        gap = f"{top1(row) - top1(default):+.2f}" if changes else "default"
        body.append([name, " ".join(changes), f"{top1(row):.2f}", f"{row['metrics']['loss']:.3f}", gap])
    where = DATASETS.get(default["dataset"], default["dataset"])
    text = (
        f"ResNet-20, {where}, {default['epochs']} epochs, one seed, measured on a held-out tenth of the "
        "training set that no teacher was trained on.\n\n"
        + markdown(["trial", "changed", "top-1 %", "loss", "minus default"], body)
    )
    if missing:
        text += f"\n\nOther settings of `xnorpp paper trials`, {NOT_MEASURED}: {', '.join(missing)}."
    return text
