"""What a run prints and leaves beside its result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from xnorpp.cli.main import main
from xnorpp.training import load_checkpoint, train
from xnorpp.training.recipe.config import RecipeError
from xnorpp.training.records import journal

RECIPE = {
    "schedule.epochs": 3, "data.batch_size": 16, "run.tensorboard": False, "run.threads": 1,
    "schedule.statistics_batches": 0, "run.log_steps": 1,
}  # fmt: skip


def data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (64, 4, 4, 1), dtype=np.uint8), np.arange(64) % 4
    return {"train_data": (images, labels), "test_data": (images[:20], labels[:20])}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def test_the_opening_line_and_the_best_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "EVERY", 0.0)
    summary = train(RECIPE, model=network(), **data(), out=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    opening = next(line for line in lines if "parameters" in line)
    assert "on cpu: 64 training and 20 test images, 68 parameters of which 0 are one-bit weights" in opening
    assert "3 epochs of 4 steps" in opening
    assert any("16 of 192 images (8.3 %)" in line for line in lines)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if row["kind"] == "eval"] == [1, 2, 3]
    best = load_checkpoint(tmp_path / "best.safetensors").meta
    top = max((row for row in rows if row["kind"] == "eval"), key=lambda row: row["top1"])
    assert (best["best"]["epoch"], best["best"]["top1"]) == (top["epoch"], top["top1"])
    assert summary["best"] == best["best"]


def test_progress_off_a_terminal_names_the_epoch_that_is_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss is recorded once in 3 steps here and an epoch has 4, so the epoch cannot come from the last
    record of a loss.
    """
    monkeypatch.setattr(journal, "EVERY", 0.0)
    train({**RECIPE, "run.log_steps": 3}, model=network(), **data(), out=tmp_path)
    found = re.findall(
        r"^([\d,]+) of 192 images \(.*\), epoch (\d+)(, loss [\d.]+)?$", capsys.readouterr().out, re.MULTILINE
    )
    steps = [(int(images) // 16, int(epoch), loss) for images, epoch, loss in found]
    assert {step for step, _, _ in steps} == set(range(1, 13))
    assert [epoch for step, epoch, _ in steps] == [-(-step // 4) for step, _, _ in steps]
    assert not steps[0][2]
    assert all(loss for step, _, loss in steps if step > 3)


def test_evaluation_shows_progress_and_one_is_not_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "EVERY", 0.0)
    settings = {**RECIPE, "schedule.epochs": 1, "data.batch_size": 64, "run.eval_train": True}
    train(settings, model=network(), **data(), out=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("evaluating: 20 of 20 images") == 2  # the test set and as many training images
    assert next(line for line in lines if "parameters" in line).endswith(", 1 epoch of 1 step")


def test_a_longer_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    train(RECIPE, model=network(), **data(), out=tmp_path, quiet=True)
    longer = {**RECIPE, "schedule.epochs": 5}
    with pytest.raises(RecipeError, match=r"cannot be made longer.* --init-from .*model\.safetensors"):
        train(longer, model=network(), **data(), out=tmp_path, resume=True, quiet=True)


def test_short_options_and_the_hint_after_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def stopped(recipe: object, **_: object) -> None:
        seen.append(recipe)
        raise KeyboardInterrupt

    monkeypatch.setattr("xnorpp.training.train", stopped)
    options = ["--epochs", "2", "--lr", "0.5", "--batch-size", "8", "--seed", "7"]
    out = str(tmp_path / "a run")
    assert main(["train", "digits-small-case4", *options, "--out", out]) == 130
    recipe = seen[0]
    found = (recipe.schedule.epochs, recipe.optimizer.lr, recipe.data.batch_size, recipe.run.seed)  # type: ignore[attr-defined]
    assert found == (2, 0.5, 8, 7)
    hint = (
        f"xnorpp train digits-small-case4 --epochs 2 --lr 0.5 --batch-size 8 --seed 7 --out '{out}' --resume"
    )
    printed = capsys.readouterr().err
    assert hint in printed
    assert printed.count("stopped") == 1
