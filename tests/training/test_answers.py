"""A teacher's answers that are computed once: equal to asking it, shared, refused where they cannot be."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xnorpp.training import RecipeError, load_checkpoint, train
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.state import lock
from xnorpp.training.state.checkpoint import CheckpointWriteError
from xnorpp.training.teacher import answers

Quick = Callable[..., Recipe]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from xnorpp.training import load_recipe

    place = tmp_path_factory.mktemp("teacher") / "real"
    settings = ["model.options.width=4", "schedule.epochs=1", "run.tensorboard=false"]
    train(load_recipe("digits-small-real", settings), out=place, device="cpu", quiet=True)
    return place


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.parametrize("more", [(), ("run.accumulate=2",), ("run.amp=bf16",)], ids=" ".join)
def test_stored_answers_are_those_of_the_teacher(
    tmp_path: Path, quick: Quick, teacher: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = quick(f"loss.teacher={teacher}", "loss.distill_weight=0.9", "loss.temperature=4.0", *more)
    train(recipe, out=tmp_path / "asked", device="cpu", quiet=True)
    stored = recipe.replace(loss__answers=str(tmp_path / "answers"))
    capsys.readouterr()
    for name, words in (
        ("first", "Computing the teacher's answers to 9 views of each of 1,438"),
        ("second", None),
    ):
        summary = train(stored, out=tmp_path / name, device="cpu")
        said = capsys.readouterr().out
        assert (words in said) if words else ("teacher" not in said)
        assert summary["teacher"]["recipe"] == "digits-small-real"
    asked, first = losses(tmp_path / "asked"), losses(tmp_path / "first")
    assert len(first) == 22
    assert first == losses(tmp_path / "second")
    # The teacher saw larger batches, so its answers may be rounded otherwise, and signs near zero may turn.
    assert first[0] == pytest.approx(asked[0], rel=1e-3)
    assert first == pytest.approx(asked, rel=0.03)
    assert len(list((tmp_path / "answers").iterdir())) == 1, "one file, and no lock or temporary file is left"


def test_a_run_is_resumed_with_or_without_them(
    tmp_path: Path, quick: Quick, teacher: Path, same: Any
) -> None:
    recipe = quick(f"loss.teacher={teacher}", "run.save_steps=8", f"loss.answers={tmp_path / 'answers'}")
    train(recipe, out=tmp_path / "whole", device="cpu", quiet=True)
    for name, folder in (("parts", tmp_path / "answers"), ("moved", tmp_path / "elsewhere")):
        train(recipe, out=tmp_path / name, device="cpu", quiet=True)
        for path in sorted((tmp_path / name / "checkpoints").iterdir())[1:]:
            path.unlink()
        (tmp_path / name / "model.safetensors").unlink()
        again = recipe.replace(loss__answers=str(folder))
        train(again, out=tmp_path / name, device="cpu", quiet=True, resume=True)
        assert same(load_checkpoint(tmp_path / "whole").weights, load_checkpoint(tmp_path / name).weights)


def test_a_damaged_file_is_written_again(tmp_path: Path, quick: Quick, teacher: Path) -> None:
    recipe = quick(f"loss.teacher={teacher}", "schedule.max_steps=3", f"loss.answers={tmp_path}/answers")
    train(recipe, out=tmp_path / "first", device="cpu", quiet=True)
    (path,) = (tmp_path / "answers").iterdir()
    whole = path.read_bytes()
    for content in (whole[:-40], b"nothing of the kind", whole.replace(b"arithmetic", b"arithmetix")):
        path.write_bytes(content)
        train(recipe, out=tmp_path / str(len(content)), device="cpu", quiet=True)
        assert path.read_bytes() == whole
        assert losses(tmp_path / str(len(content))) == losses(tmp_path / "first")


def test_another_teacher_has_answers_of_its_own(tmp_path: Path, quick: Quick, teacher: Path) -> None:
    folder = f"loss.answers={tmp_path}/answers"
    train(
        quick(f"loss.teacher={teacher}", "schedule.max_steps=2", folder),
        out=tmp_path / "a",
        device="cpu",
        quiet=True,
    )
    other = tmp_path / "other"
    train(quick("schedule.max_steps=2", name="digits-small-real"), out=other, device="cpu", quiet=True)
    train(
        quick(f"loss.teacher={other}", "schedule.max_steps=2", folder),
        out=tmp_path / "b",
        device="cpu",
        quiet=True,
    )
    assert len(list((tmp_path / "answers").iterdir())) == 2


@pytest.mark.parametrize("augment", ["cutout=2", "mixup=0.3"])
def test_looks_that_cannot_be_counted_are_refused(
    tmp_path: Path, quick: Quick, teacher: Path, augment: str
) -> None:
    recipe = quick(f"loss.teacher={teacher}", f"data.augment.{augment}", f"loss.answers={tmp_path}/answers")
    with pytest.raises(
        RecipeError, match=r"`loss.answers` \(=.*\) must be empty here, because `data.augment` has"
    ):
        train(recipe, out=tmp_path / "run", device="cpu", quiet=True)


def test_what_does_not_fit_is_refused(
    tmp_path: Path, quick: Quick, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.sysconf
    monkeypatch.setattr(answers.os, "sysconf", lambda name: 10 if name == "SC_AVPHYS_PAGES" else real(name))
    recipe = quick(f"loss.teacher={teacher}", f"loss.answers={tmp_path}/answers")
    with pytest.raises(RecipeError, match="the answers to 9 views of 1,438 images and 10 classes take"):
        train(recipe, out=tmp_path / "run", device="cpu", quiet=True)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, quick: Quick, teacher: Path) -> None:
    (tmp_path / "file").write_text("here")
    recipe = quick(f"loss.teacher={teacher}", f"loss.answers={tmp_path}/file/answers")
    with pytest.raises(
        CheckpointWriteError, match=r"`loss.answers` \(=.*file/answers'\) cannot be written to"
    ):
        train(recipe, out=tmp_path / "run", device="cpu", quiet=True)


def test_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record lock does not exclude its own process, so another one holds the folder here."""
    monkeypatch.setattr(lock, "WAIT", 0.01)
    ready_out, ready_in = os.pipe()
    go_out, go_in = os.pipe()
    child = os.fork()
    if child == 0:
        with lock.in_turn(tmp_path, "loss.answers"):
            os.write(ready_in, b"1")
            os.read(go_out, 1)
            (tmp_path / "done").write_text("by the first")
        os._exit(0)
    os.read(ready_out, 1)
    waited: list[bool] = []
    timer = threading.Timer(0.1, lambda: os.write(go_in, b"1"))
    timer.start()
    with lock.in_turn(tmp_path, "loss.answers", lambda: waited.append((tmp_path / "done").exists())):
        assert (tmp_path / "done").read_text() == "by the first"
    timer.join()
    os.waitpid(child, 0)
    assert waited == [False], "told once, before the first was done"
    assert not (tmp_path / lock.NAME).exists()
