"""The tables of baselines and levers, from made-up rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from xnorpp.models import create_model
from xnorpp.paper.accuracy.levers import (
    baselines_block,
    large_levers_block,
    levers_block,
    student_levers_block,
    students_block,
)
from xnorpp.paper.accuracy.queue import ANSWERS, done_keys, recipe_of
from xnorpp.paper.accuracy.run import Run
from xnorpp.paper.accuracy.runs import BASELINES, STUDENTS, baselines, students
from xnorpp.paper.accuracy.tried import (
    LARGE_LEVERS,
    LEVERS,
    STUDENT_LEVERS,
    large_levers,
    levers,
    small_levers,
    student_levers,
)
from xnorpp.training.recipe.library import load_recipe

RESULTS = Path(__file__).resolve().parents[2] / "results"


def row(run: Run, top1: float, loss: float = 0.5) -> dict[str, Any]:
    return {
        "kind": "accuracy", "finished": True, "key": run.key, "experiment": run.experiment, "row": run.row,
        "network": run.network, "dataset": run.dataset, "seed": run.seed, "epochs": 50,
        "split": "held" if run.held else "test", "metrics": {"top1": top1, "top5": 99.0, "loss": loss},
    }  # fmt: skip


def test_baselines_are_one_row_each() -> None:
    assert "not measured yet" in baselines_block([])
    runs = list(baselines())
    runs, (*teachers, later, taught) = runs[: len(BASELINES)], runs[len(BASELINES) :]
    assert [run.dataset for run in teachers] == ["tiny_imagenet", "cifar100"]
    assert [run.recipe for run in runs] == [f"baseline-{name}" for name in BASELINES]
    unpooled, small = (baselines_block([row(teacher, 64.0)]) for teacher in teachers)
    assert unpooled.count("not measured yet") == small.count("not measured yet") == len(BASELINES)
    assert "| Tiny-ImageNet-200 | ResNet-18, without pooling | 50 | 64.00 |" in unpooled
    assert "64.00" not in small, "a teacher of the same network is no baseline"
    text = baselines_block([row(runs[0], 95.31), row(runs[2], 77.77)])
    assert "| CIFAR-10 | ResNet-18 | 50 | 95.31 |" in text
    assert "| CIFAR-100 | ResNet-18 | 50 | 77.77 |" in text
    assert text.count("not measured yet") == 2
    assert "ReActNet-A" not in text
    assert "| CIFAR-10 | ReActNet-A | 50 | 93.21 |" in baselines_block([row(later, 93.21)])
    assert taught.teacher == runs[0].key
    assert "| CIFAR-10 | ResNet-20, with its students' teacher | 50 | 92.5" in baselines_block(
        [row(taught, 92.5)]
    )


def test_rows_with_a_flaw_are_marked() -> None:
    first, second, *_ = baselines()
    text = baselines_block([{**row(first, 95.31), "flaw": "too low, because it rained"}, row(second, 92.0)])
    assert "| 95.31\\* |" in text
    assert "| 92.00 |" in text
    assert text.endswith("\n\n\\* Too low, because it rained.")
    _, *others = small_levers()
    text = levers_block([{**row(one, 80.0), "flaw": "odd"} for one in others[:2]])
    assert text.count("80.00\\*") == 2
    assert text.count("\\* Odd.") == 1


def test_levers_are_compared_with_the_default_of_their_seed() -> None:
    runs = {(run.row, run.seed): run for run in small_levers()}
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
    for runs, name in ((small_levers(), "teacher"), (large_levers(), "long-teacher")):
        teacher, *trials = runs
        assert teacher.row == name
        assert all(run.teacher == teacher.key for run in trials if run.row != "block-teacher")
        assert {run.settings[0] for run in (teacher, *trials)} == {"data.holdout=0.2"}
    assert len({run.key for run in levers()}) == len(list(levers()))


def test_levers_of_the_larger_network_have_a_table_of_their_own() -> None:
    small = {(run.row, run.seed): run for run in small_levers()}
    large = {(run.row, run.seed): run for run in large_levers()}
    rows = [row(large["default", 0], 90.0), row(large["adamw", 0], 90.5, 0.4), row(large["default", 1], 89.9)]
    for number, one in enumerate(rows):
        one["metrics"]["train_top1"] = 99.0 + number / 10
    text = large_levers_block([*rows, row(small["default", 0], 85.0)])
    assert text.startswith("ResNet-18, CIFAR-10, Case 4")
    assert "| 90.50 | +0.50 | 0.400 | -0.100 | 99.10 |" in text
    assert "| default | another seed | 89.90 | -0.10 | 0.500 | +0.000 | 99.20 |" in text
    assert set(text.rsplit("not measured yet: ", 1)[1].rstrip(".").split(", ")) == set(LARGE_LEVERS) - {
        "default", "adamw",
    }  # fmt: skip
    assert "not measured yet" in levers_block(rows), "rows of ResNet-18 are not those of ResNet-20"
    text = large_levers_block(rows[1:2])
    assert "| 90.50 |  | 0.400 |  | 99.10 |" in text, "without the default there is nothing to subtract"


def test_levers_around_the_students_recipe_have_a_table_of_their_own() -> None:
    runs = {(run.row, run.seed): run for run in student_levers()}
    rows = [
        row(runs["student", 0], 86.0),
        row(runs["student-temperature-2", 0], 86.6, 0.45),
        row(runs["student", 2], 86.1),
    ]
    text = student_levers_block(rows)
    assert "| student-temperature-2 | loss.temperature=2.0 | 86.60 | +0.60 | 0.450 | -0.050 |" in text
    assert "| student | another seed | 86.10 | +0.10 | 0.500 | +0.000 |" in text
    missing = text.rsplit("not measured yet: ", 1)[1]
    assert set(missing.rstrip(".").split(", ")) == set(STUDENT_LEVERS) - {"student", "student-temperature-2"}
    assert "not measured yet" in levers_block(rows)


@pytest.mark.parametrize("run", list(student_levers()), ids=lambda run: run.key.rpartition("student")[2])
def test_levers_around_the_students_recipe_share_their_teachers_answers(run: Run) -> None:
    recipe = recipe_of(run, Path("runs"), on_gpu=False)
    assert recipe.loss.answers == f"runs/{ANSWERS}"
    assert recipe.loss.teacher == f"runs/{next(large_levers()).key}/model.safetensors"
    assert recipe.data.batch_size * recipe.schedule.statistics_batches <= 40_000
    model = recipe.model
    create_model(model.name, method=model.method, scale=model.scale, input_size=32, **dict(model.options))


def test_the_recorded_default_and_its_teacher_count_for_the_second_round() -> None:
    """The recipe of the baselines has changed since, and the teacher of the levers must not."""
    known = done_keys(RESULTS, list(levers()))
    assert {"lever-cifar10-resnet18-teacher-0", "lever-cifar10-resnet20-sgd-recu-0"} <= known
    assert "lever-cifar10-resnet20-sgd-0" not in known


def test_students_learn_from_the_baselines_and_hold_images_out() -> None:
    runs = list(students())
    trained = {run.key for run in baselines()}
    assert all(run.teacher in trained and run.held for run in runs)
    assert Counter(dict(run.facts)["name"] for run in runs) == STUDENTS
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    for run in runs:
        recipe = load_recipe(run.recipe)
        images = 100_000 if run.dataset == "tiny_imagenet" else 50_000
        assert recipe.data.holdout * images >= 1000
        assert recipe.data.batch_size * recipe.schedule.statistics_batches <= images * 0.98


def test_students_are_shown_as_they_were_measured_packed() -> None:
    def measured(kind: str, name: str, seed: int, top1: float, digest: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "name": name,
            "seed": seed,
            "refused": None,
            "trained": {"commit": "1234"},
            "recipe": {"name": f"student-{name}", "epochs": 300},
            "accuracy": {"packed_top1": top1, "calibration_error": 0.0123},
            "baseline": {"top1": 91.56},
            "file": {"sha256": digest},
        }

    old = {
        **measured("shipped", "cifar10-resnet18", 0, 92.7, "x"),
        "recipe": {"name": "best-cifar10-resnet18", "epochs": 150},
    }
    text = students_block(
        [
            old,
            measured("shipped", "cifar10-resnet20", 0, 88.9, "a"),
            measured("measured", "cifar10-resnet20", 1, 88.1, "b"),
            measured("measured", "cifar10-resnet18", 0, 92.0, "c"),
            {**measured("measured", "cifar10-resnet18", 0, 93.0, "d"), "trained": {"commit": "5678"}},
        ]
    )
    assert "| CIFAR-10 | ResNet-20 | 0 | 300 | 88.90 | 91.56 | 88.1 (AdaBin) | 0.012 | ships |" in text
    assert "| CIFAR-10 | ResNet-20 | 1 | 300 | 88.10 | 91.56 | 88.1 (AdaBin) | 0.012 |  |" in text
    assert "| CIFAR-10 | ResNet-18 | 0 | 300 | 92.00 | 91.56 | 93.75 (BiPer) | 0.012 |  |" in text
    assert "| CIFAR-10 | ResNet-20 | mean of 2 |  | 88.50 |" in text
    assert "| CIFAR-10 | ResNet-18 | 0 | 300 | 93.00 |" in text
    assert "ResNet-18 | mean" not in text
    assert "92.70" not in text
    assert "not measured yet" in students_block([old])
