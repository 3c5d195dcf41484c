"""What surrounds an update: the moving average of the weights, and OvSW's scaled gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import xnorpp
from xnorpp.data import Augment
from xnorpp.nn import BinaryConv2d, BinaryLinear, set_stage
from xnorpp.training import CheckpointError, RecipeError, evaluate, load_checkpoint, load_model, loop, train
from xnorpp.training.distributed import World
from xnorpp.training.optimizer import make_optimizer
from xnorpp.training.packing import pack_checkpoint
from xnorpp.training.recipe.config import OptimizerPart, Recipe
from xnorpp.training.setup import Given, make_loaders, open_data, statistics_loader
from xnorpp.training.state.initial import initialise
from xnorpp.training.update.average import AveragedWeights
from xnorpp.training.update.gradients import raise_gradients_

Quick = Callable[..., Recipe]


def run(recipe: Recipe, out: Path, **more: Any) -> dict[str, Any]:
    return train(recipe, out=out, device="cpu", quiet=True, **more)


def test_the_average_follows_its_formula_and_copies_whole_numbers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    averaged = AveragedWeights(model, 0.9)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(40):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
            model(torch.randn(8, 2))
        averaged.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            old = expected[name]
            expected[name] = decay * old + (1 - decay) * value if value.is_floating_point() else value.clone()
    for name, value in averaged.network().state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert int(averaged.model[1].num_batches_tracked) == 40
    assert not any(parameter.requires_grad for parameter in averaged.model.parameters())


def test_the_averaged_network_is_in_the_stage_and_mode_of_the_trained_one() -> None:
    model = nn.Sequential(BinaryLinear(4, 4))
    averaged = AveragedWeights(model, 0.5)
    set_stage(model, weights_binary=False)
    model.eval()
    network = averaged.network()
    assert not network[0].binarize_weights
    assert not network.training


def test_a_run_evaluates_stores_and_packs_the_average(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run with `ema_decay` is that of a run without, averaged by hand over its steps."""
    seen: list[dict[str, torch.Tensor]] = []
    step = loop._Run._step

    def watching(self: Any, parts: Any, at: int, guard: Any) -> Any:
        if not seen:
            seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        loss = step(self, parts, at, guard)
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return loss

    monkeypatch.setattr(loop._Run, "_step", watching)
    run(quick("run.save_steps=8", "run.keep=4", "schedule.max_steps=14"), tmp_path / "plain")
    monkeypatch.undo()
    recipe = quick("run.save_steps=8", "run.keep=4", "schedule.max_steps=14", "optimizer.ema_decay=0.8")
    summary = run(recipe, tmp_path / "averaged")
    expected = seen[0]
    for number, weights in enumerate(seen[1:]):
        decay = min(0.8, (1 + number) / (10 + number))
        expected = {
            name: decay * expected[name] + (1 - decay) * value if value.is_floating_point() else value
            for name, value in weights.items()
        }
    final = load_checkpoint(tmp_path / "averaged")
    assert not final.average
    for name, value in final.weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)

    middle = load_checkpoint(tmp_path / "averaged" / "checkpoints" / "step-000000008.safetensors")
    plain = load_checkpoint(tmp_path / "plain" / "checkpoints" / "step-000000008.safetensors")
    assert middle.average.keys() == middle.weights.keys()
    assert all(torch.equal(middle.weights[name], plain.weights[name]) for name in plain.weights)
    model, _ = load_model(middle.path)
    assert all(torch.equal(value, middle.average[name]) for name, value in model.state_dict().items())
    initialise(model, plain.path)
    initialise(model, middle.path)
    assert torch.equal(model.state_dict()["fc.weight"], middle.average["fc.weight"])

    model, meta = load_model(tmp_path / "averaged")
    data = xnorpp.data.load_dataset("digits", None, "test")
    assert evaluate(model, data)["loss"] == pytest.approx(summary["metrics"]["loss"], rel=1e-5)
    pack_checkpoint(tmp_path / "averaged", tmp_path / "packed.xnor")
    images = xnorpp.data.Preprocess.from_dict(meta["preprocess"]).normalise(data.images[:16])
    with torch.no_grad():
        scores = model(torch.from_numpy(images)).numpy()
    packed = xnorpp.load(tmp_path / "packed.xnor")(images)
    np.testing.assert_allclose(packed, scores, rtol=1e-3, atol=1e-3)


def test_an_average_cannot_be_added_or_lost_on_resuming(tmp_path: Path, quick: Quick) -> None:
    run(quick("schedule.epochs=2", "optimizer.ema_decay=0.5"), tmp_path)
    with pytest.raises(RecipeError, match=r"`optimizer.ema_decay` is 0.0 here and 0.5 in the run"):
        run(quick("schedule.epochs=2"), tmp_path, resume=True)


def test_a_checkpoint_whose_average_is_missing_is_refused(tmp_path: Path, quick: Quick) -> None:
    from xnorpp.training.state.checkpoint import checkpoint_path, list_checkpoints, save_checkpoint

    recipe = quick("run.save_steps=4", "optimizer.ema_decay=0.5")
    run(recipe, tmp_path)
    found = load_checkpoint(list_checkpoints(tmp_path)[1])
    assert found.average
    for path in list_checkpoints(tmp_path):
        path.unlink()
    (tmp_path / "model.safetensors").unlink()
    save_checkpoint(checkpoint_path(tmp_path, found.meta["step"]), found.weights, found.meta, found.optimizer)
    with pytest.raises(CheckpointError, match="do not fit the network: the checkpoint has no"):
        run(recipe, tmp_path, resume=True)


def test_small_gradients_of_binary_filters_are_raised() -> None:
    conv, real = BinaryConv2d(2, 3, 3), nn.Conv2d(2, 3, 3)
    for layer in (conv, real):
        layer.weight.grad = (
            torch.randn_like(layer.weight) * torch.tensor([1e-6, 10.0, 0.0])[:, None, None, None]
        )
    before = [layer.weight.grad.clone() for layer in (conv, real)]  # type: ignore[union-attr]
    raise_gradients_(nn.ModuleList([conv, real]), 0.04)
    assert conv.weight.grad is not None
    assert real.weight.grad is not None
    norms = conv.weight.grad.flatten(1).norm(dim=1)
    wanted = 0.04 * conv.weight.detach().flatten(1).norm(dim=1)
    torch.testing.assert_close(norms[0], wanted[0])
    direction = conv.weight.grad[0] / norms[0]
    torch.testing.assert_close(direction, before[0][0] / before[0][0].norm())
    assert torch.equal(conv.weight.grad[1:], before[0][1:])
    assert torch.equal(real.weight.grad, before[1])


def test_standardised_weights_have_one_size_and_their_scale_starts_from_the_weights() -> None:
    layer = BinaryConv2d(4, 3, 3, standardize_weights=True, weights="recu")
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([0.01, 1.0, 100.0])[:, None, None, None]).add_(0.3)
    layer.reset_scale()
    latent = layer.latent_weight()
    torch.testing.assert_close(latent.mean((1, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(latent.square().mean((1, 2, 3)), torch.full((3,), 8.0), rtol=1e-3, atol=0)
    centred = layer.weight - layer.weight.mean((1, 2, 3), keepdim=True)
    assert torch.equal(layer.binary_weight(), torch.where(centred > 0, 1.0, -1.0))
    (factors,) = layer.scale_factors()
    torch.testing.assert_close(factors.flatten(), 0.8 * centred.abs().mean((1, 2, 3)))
    layer(torch.randn(2, 4, 5, 5)).square().sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad.sum((1, 2, 3)), torch.zeros(3), atol=1e-2, rtol=0)


def test_statistics_are_measured_on_images_that_look_like_the_test_set(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def measure(model: nn.Module, batches: Any) -> int:
        for images in batches:
            # cutout of the whole image leaves nothing but the mean colour, 0
            seen.append(bool((images == 0).all()))
        return 0

    monkeypatch.setattr(loop, "measure_statistics", measure)
    run(
        quick("schedule.max_steps=1", "schedule.statistics_batches=3", "data.augment.cutout=64"),
        tmp_path / "a",
    )
    assert seen == [False] * 3


@pytest.mark.parametrize(
    ("settings", "augment"),
    [
        (("data.augment.pad=3",), None),
        (("data.augment.pad=3", "data.augment.mixup=0.2"), Augment(True, 3, False)),
        (("data.augment.area=0.4", "data.augment.pad=3"), Augment(False, 3, False)),
        (("data.augment.area=0.4", "schedule.statistics_images=training"), None),
    ],
)
def test_which_images_statistics_are_measured_on(
    quick: Quick, settings: tuple[str, ...], augment: Augment | None
) -> None:
    """Of crop and flip alone; without a crop where random resized crops took its place. None: the loader."""
    recipe = quick("data.augment.flip=false", *settings)
    sets = open_data(recipe, None, download=False, world=World(), given=Given())
    loader = make_loaders(recipe, sets, World())[0][0]
    found = statistics_loader(recipe, sets, World(), loader)
    if augment is None:
        assert found is loader
    else:
        assert found.augment == augment


def test_bop_flips_by_its_rule_and_leaves_the_rest_to_adam() -> None:
    binary, real = BinaryLinear(3, 1, bias=False), nn.Linear(2, 2)
    model = nn.ModuleList([binary, real])
    options = OptimizerPart(name="bop", lr=0.1, flip_rate=0.5, flip_threshold=0.2, weight_decay=0.0)
    with torch.no_grad():
        binary.weight.copy_(torch.tensor([[0.3, -0.2, 0.7]]))
    optimizer = make_optimizer(model, options, torch.device("cpu"))
    assert binary.weight.tolist() == [[1.0, -1.0, 1.0]]
    adam = copy.deepcopy(real)
    other = torch.optim.Adam(adam.parameters(), lr=0.1)
    averages = torch.zeros(3)
    weights = torch.tensor([1.0, -1.0, 1.0])
    for gradient in ([0.3, 0.9, 0.1], [0.3, -0.2, 0.1], [0.3, -3.0, -5.0], [9.0, 0.0, 0.0]):
        binary.weight.grad = torch.tensor([gradient])
        for one, two in zip(real.parameters(), adam.parameters(), strict=True):
            one.grad = torch.ones_like(one)
            two.grad = torch.ones_like(two)
        optimizer.step()
        other.step()
        averages = 0.5 * averages + 0.5 * torch.tensor(gradient)
        flips = (averages.abs() > 0.2) & (averages * weights > 0)
        weights = torch.where(flips, -weights, weights)
        assert torch.equal(binary.weight[0], weights)
    assert weights.tolist() == [-1.0, 1.0, 1.0]
    assert all(torch.equal(a, b) for a, b in zip(real.parameters(), adam.parameters(), strict=True))
    with pytest.raises(RecipeError, match="network without binary weights"):
        make_optimizer(real, options, torch.device("cpu"))
