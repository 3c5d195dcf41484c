"""The tables of baselines and levers, from made-up rows."""

from __future__ import annotations

from typing import Any

from xnorpp.paper.accuracy.levers import baselines_block, levers_block
from xnorpp.paper.accuracy.runs import BASELINES, LEVERS, Run, baselines, levers


def row(run: Run, top1: float, loss: float = 0.5) -> dict[str, Any]:
    return {
        "kind": "accuracy", "finished": True, "key": run.key, "experiment": run.experiment, "row": run.row,
        "network": run.network, "dataset": run.dataset, "seed": run.seed, "epochs": 50,
        "split": "held" if run.held else "test", "metrics": {"top1": top1, "top5": 99.0, "loss": loss},
    }  # fmt: skip


def test_baselines_are_one_row_each() -> None:
    assert "not measured yet" in baselines_block([])
    runs = list(baselines())
    assert [run.recipe for run in runs] == [f"baseline-{name}" for name in BASELINES]
    text = baselines_block([row(runs[0], 95.31), row(runs[2], 77.77)])
    assert "| CIFAR-10 | ResNet-18 | 50 | 95.31 |" in text
    assert "| CIFAR-100 | ResNet-18 | 50 | 77.77 |" in text
    assert text.count("not measured yet") == 2


def test_levers_are_compared_with_the_default_of_their_seed() -> None:
    runs = {(run.row, run.seed): run for run in levers()}
    assert "not measured yet" in levers_block([])
    rows = [
        row(runs["teacher", 0], 94.0),
        row(runs["default", 0], 85.0, 0.450),
        row(runs["ema", 0], 85.5, 0.440),
        row(runs["default", 1], 84.75, 0.455),
    ]
    text = levers_block(rows)
    assert "measured on 10,000 training images" in text
    assert "by chance: 1.0 points" in text
    assert "| ema | optimizer.ema_decay=0.999 | 85.50 | +0.50 | 0.440 | -0.010 |" in text
    assert "| default | another seed | 84.75 | -0.25 | 0.455 | +0.005 |" in text
    missing = text.rsplit("not measured yet: ", 1)[1]
    assert set(missing.rstrip(".").split(", ")) == set(LEVERS) - {"default", "ema"}


def test_every_lever_learns_from_a_teacher_that_never_saw_the_held_out_images() -> None:
    teacher, *trials = levers()
    assert teacher.row == "teacher"
    assert all(run.teacher == teacher.key for run in trials)
    assert {run.settings[0] for run in (teacher, *trials)} == {"data.holdout=0.2"}
