"""The plot at the end of a run: loss and accuracy over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xnorpp.runtime.files import replacing
from xnorpp.shipped.accuracy import has_top5
from xnorpp.training.recipe.config import Recipe


def draw_curves(rows: Sequence[dict[str, Any]], recipe: Recipe, path: Path, classes: int) -> bool:
    """Draw metrics.jsonl's rows to a PNG; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    trained = [row for row in rows if row["kind"] == "train"]
    tested = [row for row in rows if row["kind"] == "eval"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    loss.plot([row["step"] for row in trained], [row["loss"] for row in trained], label="training")
    loss.plot([row["step"] for row in tested], [row["loss"] for row in tested], label="test")
    loss.set(xlabel="step", ylabel="loss", title=recipe.name)
    loss.legend()
    for key, label in (("top1", "top-1"), *[("top5", "top-5")] * has_top5(classes)):
        accuracy.plot([row["step"] for row in tested], [row[key] for row in tested], marker=".", label=label)
    if recipe.paper.top1:
        accuracy.axhline(recipe.paper.top1, linestyle=":", color="grey", label="paper, top-1")
    accuracy.set(xlabel="step", ylabel="accuracy, %")
    accuracy.legend()
    for axes in (loss, accuracy):
        axes.grid(alpha=0.3)
    with replacing(path, flush=False) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    return True
