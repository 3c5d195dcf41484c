"""Checkpoints with a valid checksum and wrong content: refused in one sentence, never half used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from xnorpp.training import CheckpointError, load_checkpoint, load_recipe, save_checkpoint, train
from xnorpp.training.state.checkpoint import Checkpoint, checkpoint_path, list_checkpoints

SETTINGS = ["schedule.epochs=2", "model.options.width=4", "data.batch_size=256", "run.tensorboard=false"]


def resume(out: Path, *more: str) -> dict[str, Any]:
    return train(
        load_recipe("digits-small-case4", [*SETTINGS, *more]), out=out, resume=True, quiet=True, device="cpu"
    )


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose newest checkpoint is of the end of the first of two epochs."""
    out = tmp_path_factory.mktemp("half") / "run"
    resume(out)
    list_checkpoints(out)[0].unlink()
    (out / "model.safetensors").unlink()
    return out


def craft(
    half_way: Path, tmp_path: Path, change: Callable[[Checkpoint], None], step: int | None = None
) -> Path:
    out = tmp_path / "run"
    shutil.copytree(half_way, out)
    (path,) = list_checkpoints(out)
    found = load_checkpoint(path)
    change(found)
    path.unlink()
    path = checkpoint_path(out, found.meta.get("step", 5) if step is None else step)
    save_checkpoint(path, found.weights, found.meta, found.optimizer)
    return out


def _no_first(found: Checkpoint) -> None:
    del found.optimizer[next(iter(found.optimizer))]


def _wrong_shape(found: Checkpoint) -> None:
    found.optimizer[next(name for name in found.optimizer if name.endswith("exp_avg"))] = torch.zeros(1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.meta.update(step=10**9), r"its step is 1000000000, and the run has 10 steps"),
        (lambda found: found.meta.pop("step"), r"its step is None, and the run has 10 steps"),
        (lambda found: found.meta.update(step=0), r"its step is 0, and the run has 10 steps"),
        (lambda found: found.meta.update(step=10, metrics={}), r"is the last one .* was not evaluated"),
        (lambda found: found.optimizer.clear(), r"it has no complete optimiser state of `"),
        (_no_first, r"it has no complete optimiser state of `"),
        (_wrong_shape, r"exp_avg` has the wrong shape or type"),
        (
            lambda found: found.optimizer.update({"ghost/step": torch.zeros(())}),
            r"optimiser state of `ghost`",
        ),
        (lambda found: found.meta.pop("recipe"), r"holds no recipe, so the run cannot be resumed"),
        (
            lambda found: found.meta.update(recipe={"schedule": 5}),
            r"The recipe in the checkpoint .* is not valid",
        ),
        (lambda found: found.meta.update(metrics=5), r"its `metrics` is not a table of numbers"),
        (lambda found: found.meta.update(best={"epoch": 1}), r"its `best` has no `top1`"),
        (lambda found: found.meta.update(seconds="x"), r"its `seconds` is not a time"),
        (lambda found: found.meta.pop("model"), r"does not describe its network"),
    ],
)
def test_crafted_content(
    half_way: Path, tmp_path: Path, change: Callable[[Checkpoint], None], message: str
) -> None:
    out = craft(half_way, tmp_path, change)
    before = sorted(out.rglob("*"))
    with pytest.raises(CheckpointError, match=message) as caught:
        resume(out)
    assert "\n" not in str(caught.value)
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize("step", [True, -1, 1.5, "3", None])
def test_a_step_that_is_none(half_way: Path, tmp_path: Path, step: Any) -> None:
    out = craft(half_way, tmp_path, lambda found: found.meta.update(step=step), step=5)
    with pytest.raises(CheckpointError, match="a whole number is needed"):
        load_checkpoint(list_checkpoints(out)[0])


def test_a_checkpoint_under_the_name_of_another_step(half_way: Path, tmp_path: Path) -> None:
    out = craft(half_way, tmp_path, lambda found: None, step=9)
    with pytest.raises(CheckpointError, match="holds step 5, and its name is another one's"):
        resume(out)


def test_the_untouched_run_goes_on(half_way: Path, tmp_path: Path) -> None:
    out = craft(half_way, tmp_path, lambda found: None)
    assert resume(out)["step"] == 10


def test_checkpoints_of_0_1_name_no_parameters_without_state(half_way: Path, tmp_path: Path) -> None:
    assert not any(
        name.endswith("/none") for name in load_checkpoint(list_checkpoints(half_way)[0]).optimizer
    )
    sgd = ("optimizer.name=sgd", "optimizer.momentum=0.0")
    resume(tmp_path / "sgd", *sgd)
    path = list_checkpoints(tmp_path / "sgd")[0]
    found = load_checkpoint(path)
    assert all(name.endswith("/none") for name in found.optimizer)
    save_checkpoint(path, found.weights, found.meta)  # without the marks, as 0.1 wrote it
    assert resume(tmp_path / "sgd", *sgd)["step"] == 10
