"""What a run writes down: metrics, the plot, the recorded result."""

from __future__ import annotations

import builtins
import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from xnorpp.training import record_result
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.records import record
from xnorpp.training.records.curves import draw_curves
from xnorpp.training.records.journal import Journal, read_metrics, time_left
from xnorpp.training.state.checkpoint import CheckpointWriteError


def _journal(out: Path, **more: Any) -> Journal:
    options = {"active": True, "total_images": 10, "done_images": 0, "from_step": 0, "tensorboard": False}
    return Journal(out, **{**options, "quiet": True, **more})


def test_rows_after_the_checkpoint_are_dropped_on_resuming(tmp_path: Path) -> None:
    with _journal(tmp_path) as journal:
        for step in (1, 2, 3):
            journal.row("train", step, loss=1.0 / step)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "train", "st')
    with _journal(tmp_path, from_step=2) as journal:
        journal.row("train", 3, loss=0.5)
    assert read_metrics(path) == [
        {"kind": "train", "step": 1, "loss": 1.0},
        {"kind": "train", "step": 2, "loss": 0.5},
        {"kind": "train", "step": 3, "loss": 0.5},
    ]


def test_other_processes_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _journal(tmp_path, active=False, quiet=False) as journal:
        journal.row("train", 1, loss=1.0)
        journal.say("hello")
        journal.advance(3, 1)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def _without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    original = builtins.__import__

    def refuse(module: str, *arguments: Any, **more: Any) -> Any:
        if module.startswith(name):
            raise ImportError(module)
        return original(module, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_tensorboard_and_matplotlib_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "tensorboard.compat.proto")
    with _journal(tmp_path, tensorboard=True) as journal:
        journal.row("train", 1, loss=1.0)
    assert not (tmp_path / "tensorboard").exists()
    monkeypatch.undo()
    _without(monkeypatch, "matplotlib")
    assert not draw_curves([], Recipe(), tmp_path / "x.png", 10)


@pytest.mark.usefixtures("drawn")
def test_the_plot_has_the_papers_number_where_there_is_one(tmp_path: Path) -> None:
    rows = [
        {"kind": "train", "step": 1, "loss": 2.0},
        {"kind": "eval", "step": 1, "loss": 2.0, "top1": 10.0, "top5": 50.0},
    ]
    recipe = Recipe.from_dict({"paper": {"top1": 57.1}})
    assert draw_curves(rows, recipe, tmp_path / "a.png", 10)
    assert draw_curves(rows, Recipe(), tmp_path / "b.png", 10)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(("classes", "shown"), [(5, False), (6, True)])
def test_the_plot_has_no_top5_of_five_classes(
    classes: int, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[str] = []

    def look(figure: Any, *_: Any, **__: Any) -> None:
        labels.extend(str(line.get_label()) for axes in figure.axes for line in axes.lines)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", look)
    rows = [{"kind": "eval", "step": 1, "loss": 2.0, "top1": 10.0, "top5": 50.0}]
    assert draw_curves(rows, Recipe(), tmp_path / "a.png", classes)
    assert "top-1" in labels
    assert ("top-5" in labels) == shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (63, "1:03"), (3723.4, "1:02:03"), (59.6, "1:00")]
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


def test_a_result_is_one_line_with_recipe_seed_commit_and_hardware(tmp_path: Path) -> None:
    summary = {
        "recipe": Recipe(name="x").to_dict(),
        "commit": record.source_commit(),
        "hardware": record.describe_hardware(),
        "model": {"name": "small"},
        "metrics": {"top1": 97.5},
        "seconds": 3.0,
    }
    for _ in range(2):
        record_result(tmp_path / "results" / "x.jsonl", summary, note="twice")
    rows = [json.loads(line) for line in (tmp_path / "results" / "x.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert rows[0]["recipe"] == "x"
    assert rows[0]["seed"] == 0
    assert rows[0]["commit"]
    assert rows[0]["hardware"]["cores"] >= 1
    assert rows[0]["metrics"] == {"top1": 97.5}
    assert rows[0]["note"] == "twice"


def test_without_git_the_version_stands_for_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    record.source_commit.cache_clear()
    monkeypatch.setattr(subprocess, "run", absent)
    assert record.source_commit().startswith("xnorpp-")
    monkeypatch.undo()
    record.source_commit.cache_clear()


def test_the_event_file_is_one_that_tensorboard_reads(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with _journal(tmp_path, tensorboard=True) as journal:
        for step in range(1, 6):
            journal.row("train", step, loss=1.0 / step, epoch=0)
    with _journal(tmp_path, tensorboard=True, from_step=3) as journal:
        journal.row("train", 4, loss=7.0)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    seen = [(event.step, round(event.value, 3)) for event in events.Scalars("train/loss")]
    assert seen == [(1, 1.0), (2, 0.5), (3, 0.333), (4, 7.0)]


def test_a_row_that_does_not_fit_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(handle: int, content: bytes) -> int:
        if len(content) > 5:
            return write(handle, bytes(content[:5]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with _journal(tmp_path) as journal:
        journal.row("train", 1, loss=1.0)
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(CheckpointWriteError, match=r"metrics.jsonl could not be written: No space left"):
            journal.row("train", 2, loss=0.5)
        monkeypatch.undo()
        journal.row("train", 3, loss=0.25)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 3]
