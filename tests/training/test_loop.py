"""The training loop: it learns, it resumes, and each option does what it says."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from xnorpp.data import load_dataset, write_shards
from xnorpp.models.small import Small
from xnorpp.nn import binary_layers
from xnorpp.training import (
    CheckpointError,
    NonFiniteLoss,
    RecipeError,
    evaluate,
    identity,
    load_checkpoint,
    load_model,
    loop,
    outcome,
    train,
)
from xnorpp.training.distributed import World
from xnorpp.training.identity import code_hash, settings_hash
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.setup import open_data
from xnorpp.training.teacher import lesson

Quick = Callable[..., Recipe]
Same = Callable[[Any, Any], bool]


def run(recipe: Recipe, out: Path, **more: Any) -> dict[str, Any]:
    return train(recipe, out=out, device="cpu", quiet=True, **more)


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.usefixtures("drawn")
def test_a_run_learns_and_leaves_everything_behind(
    tmp_path: Path, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = quick("schedule.epochs=3", "run.tensorboard=true", "model.options.width=8")
    summary = train(recipe, out=tmp_path, device="cpu")
    said = capsys.readouterr().out
    assert "epoch   1/3" in said
    assert "img/s" in said
    assert "left" in said
    assert "digits-small-case4: top-1" in said
    assert summary["metrics"]["top1"] > 30
    assert summary["metrics"]["top5"] >= summary["metrics"]["top1"]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 34))
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [11, 22, 33]
    assert sum(losses(tmp_path)[-5:]) < 0.85 * sum(losses(tmp_path)[:5])
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_the_final_checkpoint_knows_all_that_packing_and_predicting_need(
    tmp_path: Path, quick: Quick
) -> None:
    summary = run(quick("schedule.max_steps=2"), tmp_path)
    model, meta = load_model(tmp_path)
    assert meta["model"] == model.config
    assert meta["dataset"] == "digits"
    assert meta["classes"] == list("0123456789")
    assert meta["preprocess"]["crop"] == 8
    assert meta["recipe"] == quick("schedule.max_steps=2").to_dict()
    assert meta["seed"] == 0
    assert meta["step"] == 2
    assert meta["commit"]
    assert meta["hardware"]["cpu"]
    assert meta["metrics"] == summary["metrics"]
    assert not load_checkpoint(tmp_path).optimizer


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    tmp_path: Path, quick: Quick, same: Same
) -> None:
    results = []
    for index, seed in enumerate((0, 0, 1)):
        run(quick("schedule.max_steps=3", f"run.seed={seed}"), tmp_path / str(index))
        results.append(load_checkpoint(tmp_path / str(index)).weights)
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@pytest.mark.parametrize(
    "options",
    [
        ("optimizer.name=adam",),
        ("optimizer.name=sgd", "optimizer.lr=0.05", "optimizer.nesterov=true"),
        ("optimizer.name=adamw", "run.channels_last=true", "schedule.warmup_epochs=0.3"),
        ("run.accumulate=2", "optimizer.decay_scales=true", "optimizer.decay_norms=false"),
        ("run.amp=fp16", "run.channels_last=true"),
        ("run.amp=bf16", "model.options.clip_weights=true", "model.options.surrogate=tanh"),
        ("schedule.first_stage_epochs=1", "loss.label_smoothing=0.1"),
        ("model.calibrate=true", "optimizer.clip_norm=1.0"),
        ("optimizer.ema_decay=0.9", "schedule.statistics_batches=2", "data.augment.mixup=0.4"),
        ("data.augment.area=0.4", "data.augment.operations=2", "data.augment.cutout=3"),
        ("model.options.weights=recu", "model.options.standardize_weights=true", "optimizer.ema_decay=0.5"),
        ("optimizer.name=bop", "optimizer.flip_rate=0.01", "schedule.name=cosine"),
        ("optimizer.scale_gradients=0.04", "optimizer.name=sgd", "model.options.inputs=window(start=2.0)"),
    ],
    ids=lambda options: options[0],
)
def test_every_way_of_training_resumes_in_the_middle_of_an_epoch_to_the_same_bits(
    tmp_path: Path, quick: Quick, same: Same, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = quick("run.save_steps=4", *options)
    run(recipe, tmp_path / "whole")

    class Stop(Exception):
        pass

    step = loop._Run._step

    def stopping(self: Any, parts: Any, at: int, guard: Any) -> Any:
        if at == 18:
            raise Stop
        return step(self, parts, at, guard)

    monkeypatch.setattr(loop._Run, "_step", stopping)
    with pytest.raises(Stop):
        run(recipe, tmp_path / "halves")
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "halves").meta["step"] == 16
    run(recipe, tmp_path / "halves", resume=True)
    whole, halves = load_checkpoint(tmp_path / "whole"), load_checkpoint(tmp_path / "halves")
    assert same(whole.weights, halves.weights)
    assert losses(tmp_path / "whole") == losses(tmp_path / "halves")
    assert whole.meta["metrics"] == halves.meta["metrics"]
    newest = [
        load_checkpoint(max((tmp_path / kind / "checkpoints").iterdir())) for kind in ("whole", "halves")
    ]
    assert newest[0].optimizer
    assert same(newest[0].optimizer, newest[1].optimizer)


def test_a_finished_run_is_not_overwritten_and_resuming_it_changes_nothing(
    tmp_path: Path, quick: Quick, same: Same
) -> None:
    recipe = quick("schedule.max_steps=2")
    run(recipe, tmp_path)
    before = load_checkpoint(tmp_path).weights
    with pytest.raises(RecipeError, match="already holds a run; pass --resume"):
        run(recipe, tmp_path)
    run(recipe, tmp_path, resume=True)
    assert same(before, load_checkpoint(tmp_path).weights)


def test_a_run_is_resumed_with_its_own_network_whatever_the_defaults_are(
    tmp_path: Path, quick: Quick, same: Same
) -> None:
    run(quick("schedule.max_steps=2", "model.options.shortcut=block"), tmp_path / "block")
    with pytest.raises(RecipeError, match=r"`model.options.shortcut` is 'conv' here and 'block' in the run"):
        run(quick("schedule.max_steps=2"), tmp_path / "block", resume=True)
    run(quick("schedule.max_steps=2"), tmp_path / "conv")
    before = load_checkpoint(tmp_path / "conv").weights
    run(quick("schedule.max_steps=2", "model.options.shortcut=conv"), tmp_path / "conv", resume=True)
    assert same(before, load_checkpoint(tmp_path / "conv").weights)


def test_a_run_is_resumed_with_its_own_recipe(tmp_path: Path, quick: Quick) -> None:
    run(quick("schedule.max_steps=2"), tmp_path)
    with pytest.raises(RecipeError, match=r"`optimizer.lr` is 0.5 here and 0.\d+ in the run"):
        run(quick("schedule.max_steps=2", "optimizer.lr=0.5"), tmp_path, resume=True)
    run(quick("schedule.max_steps=2", "run.log_steps=7"), tmp_path, resume=True)


def test_resuming_where_nothing_is_starts_from_the_beginning(tmp_path: Path, quick: Quick) -> None:
    assert run(quick("schedule.max_steps=1"), tmp_path / "new", resume=True)["step"] == 1


def test_resuming_does_not_overwrite_final_weights_without_checkpoints(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights that were copied here, or damaged")
    with pytest.raises(RecipeError, match="no checkpoint to resume from; move that file away to train anew"):
        run(quick("schedule.max_steps=1"), tmp_path, resume=True)
    assert (tmp_path / "model.safetensors").read_bytes().startswith(b"weights")


def test_a_truncated_newest_checkpoint_resumes_from_the_previous_one(
    tmp_path: Path, quick: Quick, same: Same
) -> None:
    recipe = quick()
    run(recipe, tmp_path)
    before = load_checkpoint(tmp_path).weights
    (tmp_path / "model.safetensors").unlink()
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="damaged or truncated"):
        run(recipe, tmp_path, resume=True)
    assert same(before, load_checkpoint(tmp_path).weights)


def test_a_full_disk_ends_the_run_with_a_clear_error_and_it_can_go_on(
    tmp_path: Path, quick: Quick, same: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = quick()
    run(recipe, tmp_path / "whole")
    save = outcome.save_checkpoint
    saved: list[Any] = []

    def full(*arguments: Any, **more: Any) -> Any:
        if saved:
            raise CheckpointError("x could not be written (9 bytes): No space left on device")
        saved.append(1)
        return save(*arguments, **more)

    monkeypatch.setattr(outcome, "save_checkpoint", full)
    with pytest.raises(CheckpointError, match="No space left"):
        run(recipe, tmp_path / "again")
    monkeypatch.undo()
    run(recipe, tmp_path / "again", resume=True)
    assert same(load_checkpoint(tmp_path / "whole").weights, load_checkpoint(tmp_path / "again").weights)


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_a_loss_that_is_not_finite_names_step_layer_and_last_checkpoint(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch, amp: str
) -> None:
    step = loop._Run._step

    def poison(self: Any, parts: Any, at: int, guard: Any) -> Any:
        if at == 13:
            self.model.get_submodule("blocks.1.bn2").weight.data[1] = math.inf
            self.model.get_submodule("norm").weight.data[0] = math.nan
        return step(self, parts, at, guard)

    monkeypatch.setattr(loop._Run, "_step", poison)
    with pytest.raises(NonFiniteLoss) as caught:
        run(quick(f"run.amp={amp}"), tmp_path)
    text = str(caught.value)
    assert "at step 13 (epoch 2)" in text  # epochs are counted from one, and each has 11 steps
    assert "first in the layer `blocks.1.bn2` (BatchNorm2d, whose parameter `weight` is not finite)" in text
    assert "step-000000011.safetensors" in text
    assert caught.value.step == 13


def test_a_loss_that_is_not_finite_before_any_checkpoint(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson, "training_loss", lambda logits, *_, **__: logits.sum() * math.inf)
    with pytest.raises(NonFiniteLoss, match="arose in the loss itself; no checkpoint was written yet"):
        run(quick(), tmp_path)


def test_accumulated_parts_take_the_same_images_as_one_batch(tmp_path: Path, quick: Quick) -> None:
    run(quick("schedule.max_steps=1", name="digits-small-real"), tmp_path / "one")
    run(quick("schedule.max_steps=1", "run.accumulate=4", name="digits-small-real"), tmp_path / "four")
    assert losses(tmp_path / "one")[0] == pytest.approx(losses(tmp_path / "four")[0], rel=0.05)


def test_compiled_training_follows_eager(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through dynamo, without the slow code generation; the compiled layers have tests of their own."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    run(quick("schedule.max_steps=4"), tmp_path / "eager")
    run(quick("schedule.max_steps=4", "run.compile=true"), tmp_path / "compiled")
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=1e-3)


def test_the_first_stage_has_real_weights_and_the_second_binary_ones(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    step = loop._Run._step

    def look(self: Any, *arguments: Any) -> Any:
        seen.append(next(iter(binary_layers(self.model)))[1].binarize_weights)
        return step(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", look)
    run(quick("schedule.first_stage_epochs=1"), tmp_path)
    assert seen == [False] * 11 + [True] * 11


def _images() -> Any:
    """The digits' test set, as the loop reads it."""
    from xnorpp.data import make_loader

    return make_loader(load_dataset("digits", split="test"), batch_size=128, train=False)


@pytest.mark.parametrize("steps", [5, 11, 12])
def test_a_checkpoint_of_the_first_stage_keeps_its_real_weights(
    tmp_path: Path, quick: Quick, steps: int
) -> None:
    """Evaluated and packed it has the accuracy the run measured; so at the stage's last step, 11, too."""
    from xnorpp.runtime import read
    from xnorpp.training.packing import pack_checkpoint

    summary = run(quick("schedule.first_stage_epochs=1", f"schedule.max_steps={steps}"), tmp_path)
    model, _ = load_model(tmp_path)
    real = steps <= 11
    assert next(iter(binary_layers(model)))[1].binarize_weights is not real
    assert evaluate(model, _images())["loss"] == pytest.approx(summary["metrics"]["loss"], rel=1e-5)
    pack_checkpoint(tmp_path, tmp_path / "model.xnor")
    kinds = {op.op for op in read(tmp_path / "model.xnor").ops}
    assert ("signs" in kinds, "binary_conv2d" in kinds) == (real, not real)


def test_packing_never_overwrites_a_checkpoint(tmp_path: Path, quick: Quick) -> None:
    from xnorpp.training.packing import pack_checkpoint

    run(quick("schedule.max_steps=1"), tmp_path)
    path = tmp_path / "model.safetensors"
    before = path.read_bytes()
    for given in (tmp_path, path):
        with pytest.raises(ValueError, match=r"`output` .* is a checkpoint, which packing would overwrite"):
            pack_checkpoint(given, path)
    assert path.read_bytes() == before


def test_distillation_without_a_teacher_is_told(
    tmp_path: Path, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for index, options in enumerate(
        [
            ("loss.distill_weight=0.9",),
            (),
            ("loss.distill_weight=0.9", "model.method=real", "model.scale=default"),
        ]
    ):
        train(quick("schedule.max_steps=1", *options), out=tmp_path / str(index), device="cpu")
        said.append([line for line in capsys.readouterr().out.splitlines() if "loss.teacher" in line])
    assert [len(lines) for lines in said] == [1, 0, 0]
    assert "`loss.distill_weight` is 0.9 and `loss.teacher` is empty" in said[0][0]


def test_a_recipe_may_be_named_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="There is no recipe 'digits-smal'"):
        train("digits-smal", out=tmp_path)
    (tmp_path / "one.toml").write_text(
        '[model]\nname = "small"\noptions = {width = 4}\n[schedule]\nmax_steps = 1\n'
    )
    summary = train(tmp_path / "one.toml", out=tmp_path / "run", device="cpu", quiet=True)
    assert summary["recipe"]["name"] == "one"
    with pytest.raises(TypeError, match=r"`recipe` is int; .*`load_recipe`"):
        train(3, out=tmp_path)  # type: ignore[arg-type]


def test_calibration_is_recorded(tmp_path: Path, quick: Quick) -> None:
    meta = run(quick("model.calibrate=true", "schedule.max_steps=1"), tmp_path)
    assert meta["calibration"]["samples"] == 128


def test_held_out_images_are_evaluated_on_instead_of_the_test_set(tmp_path: Path, quick: Quick) -> None:
    recipe = quick("data.holdout=0.25", "schedule.max_steps=1")
    run(recipe, tmp_path)
    fit = load_checkpoint(tmp_path).meta["steps_per_epoch"]
    assert fit == round(1437 * 0.75) // 128


def test_a_run_that_holds_images_out_can_be_evaluated_on_the_test_set(tmp_path: Path, quick: Quick) -> None:
    recipe = quick("data.holdout=0.25", "data.evaluate=test", "schedule.max_steps=1")
    sets = open_data(recipe, None, download=False, world=World())
    held = load_dataset("digits", holdout=0.25, part="held")
    seen = {image.tobytes() for image in sets.train.images}
    assert not any(image.tobytes() in seen for image in held.images)
    np.testing.assert_array_equal(sets.test.images, load_dataset("digits", split="test").images)
    assert run(recipe, tmp_path)["steps_per_epoch"] == round(1437 * 0.75) // 128


def test_shards_that_would_be_tested_on_too_are_refused(tmp_path: Path, quick: Quick) -> None:
    write_shards(load_dataset("digits"), tmp_path, format="npy")
    (tmp_path / "train-000000.tar").rename(tmp_path / "part-000000.tar")
    recipe = quick("data.dataset=shards", "data.size=8", "schedule.max_steps=1")
    with pytest.raises(RecipeError, match=r"names the same shards for training and testing"):
        run(recipe, tmp_path / "run", data=f"{tmp_path}/part-*.tar")
    held = recipe.replace("data.holdout=0.25")
    assert run(held, tmp_path / "run", data=f"{tmp_path}/part-*.tar")["step"] == 1


def test_unreadable_images_are_named_once_and_counted(
    tmp_path: Path, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for path in (
        f"{split}/n{label}/{i}.JPEG" for split in ("train", "val") for label in "01" for i in range(4)
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 9, 3), np.uint8)).save(tmp_path / path)
    bad = [tmp_path / "train" / "n0" / "1.JPEG", tmp_path / "val" / "n1" / "2.JPEG"]
    for image in bad:
        image.write_bytes(b"no image")
    recipe = quick("data.dataset=imagenet", "data.size=8", "data.batch_size=4", "run.accumulate=2")
    summary = train(recipe, out=tmp_path / "run", data=tmp_path, device="cpu")
    assert summary["skipped_images"] == 2
    assert set(summary["skipped"]) == set(map(str, bad))
    said = capsys.readouterr().out
    assert all(said.count(f"{image} cannot be read (") == 1 for image in bad)


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path, quick: Quick) -> None:
    with pytest.raises(RecipeError, match=r"`data.batch_size` \(=4096\) must be at most \d+, .*--batch-size"):
        run(quick("data.batch_size=4096"), tmp_path)


def test_threads_are_the_recipes(tmp_path: Path, quick: Quick) -> None:
    run(quick("schedule.max_steps=1", "run.threads=2"), tmp_path)
    assert torch.get_num_threads() == 2


def test_an_unknown_device_is_refused(tmp_path: Path, quick: Quick) -> None:
    with pytest.raises(ValueError, match=r"`device` \(='gpu'\) must be auto, cpu, cuda or cuda:N"):
        train(quick(), out=tmp_path, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="needs a CUDA device and torch finds none"):
            train(quick(), out=tmp_path, device="cuda:3")


class _Fixed:
    """A loader with two batches, and a network that says what it is told."""

    def epoch(self, epoch: int, start_step: int = 0) -> Any:
        logits = torch.eye(7)
        yield logits[:4], torch.tensor([0, 1, 2, 4])
        yield logits[4:], torch.tensor([4, 6, 0])


def test_evaluation_counts_first_and_five_best() -> None:
    model = torch.nn.Identity().train()
    found = evaluate(model, _Fixed())
    assert found["images"] == 7
    assert found["top1"] == pytest.approx(100 * 4 / 7)
    assert found["top5"] >= found["top1"]
    expected = sum(math.log(math.e + 6) - hit for hit in (1, 1, 1, 0, 1, 0, 0)) / 7
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert model.training


def test_an_empty_evaluation_is_refused() -> None:
    class Empty:
        def epoch(self, epoch: int, start_step: int = 0) -> Any:
            return iter(())

    with pytest.raises(ValueError, match="gave no images"):
        evaluate(torch.nn.Identity(), Empty())


def test_a_run_is_evaluated_in_float32_without_tf32(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            reduced = torch.is_autocast_enabled("cpu"), torch.backends.cudnn.allow_tf32
            seen.append((*reduced, torch.backends.cuda.matmul.allow_tf32, torch.is_grad_enabled()))
        return original(self, x)

    original = Small.forward
    monkeypatch.setattr(Small, "forward", forward)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    run(quick("run.amp=bf16", "schedule.max_steps=2", "schedule.statistics_batches=2"), tmp_path)
    assert set(seen) == {(False, False, False, False)}
    assert torch.backends.cudnn.allow_tf32


def test_training_images_are_evaluated_at_the_end(tmp_path: Path, quick: Quick) -> None:
    metrics = run(quick("run.eval_train=true", "run.log_steps=1"), tmp_path)["metrics"]
    assert {"train_top1", "train_top5", "train_loss"} <= set(metrics)
    assert metrics["train_top1"] != metrics["top1"]
    assert metrics["last_epoch_loss"] == pytest.approx(sum(losses(tmp_path)[11:]) / 11, rel=1e-5)
    meta = load_checkpoint(tmp_path).meta
    assert meta["metrics"] == metrics
    assert meta["code"] == code_hash()
    assert meta["settings_hash"] == settings_hash(quick())


def test_a_run_resumed_by_other_code_says_so(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "code_hash", lambda: "one")
    run(quick("schedule.max_steps=2"), tmp_path)
    monkeypatch.setattr(identity, "code_hash", lambda: "two")
    assert run(quick("schedule.max_steps=2"), tmp_path, resume=True)["code"] == "one+two"
