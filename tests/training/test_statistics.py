"""Batch norm's statistics measured anew: exactly the mean over the batches, and nothing else is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from xnorpp.training import load_model, load_recipe, train
from xnorpp.training.statistics import measure_statistics


def test_they_are_the_mean_over_the_batches() -> None:
    norm = nn.BatchNorm2d(3, momentum=0.3)
    batches = [torch.randn(8, 3, 5, 5) * 2 + 1 for _ in range(4)]
    assert measure_statistics(norm, batches) == 32
    means = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    variances = torch.stack([batch.transpose(0, 1).flatten(1).var(1) for batch in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, means)
    torch.testing.assert_close(norm.running_var, variances)
    assert norm.momentum == 0.3


def test_modes_and_weights_stay_and_dropout_is_off() -> None:
    model = nn.Sequential(nn.Dropout(0.99), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    model[2].train()
    weight = model[2].weight.clone()
    measure_statistics(model, [torch.ones(64, 4) + torch.arange(64.0)[:, None]])
    assert [module.training for module in model] == [False, False, True]
    assert torch.equal(model[2].weight, weight)
    torch.testing.assert_close(model[1].running_mean, torch.full((4,), 32.5))


def test_no_batch_is_refused_and_loses_nothing() -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(7.0)
    with pytest.raises(ValueError, match="`batches`"):
        measure_statistics(norm, [])
    assert float(norm.running_mean[0]) == 7.0


def test_a_run_ends_with_them(tmp_path: Path) -> None:
    settings = ["schedule.max_steps=4", "run.tensorboard=false"]
    train(load_recipe("digits-small-case4", settings), out=tmp_path / "a", device="cpu", quiet=True)
    recipe = load_recipe("digits-small-case4", [*settings, "schedule.statistics_batches=5"])
    train(recipe, out=tmp_path / "b", device="cpu", quiet=True)
    plain, measured = (load_model(tmp_path / name)[0].state_dict() for name in "ab")
    means = [name for name in plain if name.endswith("running_mean")]
    assert means
    assert all(not torch.equal(plain[name], measured[name]) for name in means)
    others = [name for name in plain if not name.endswith(("running_mean", "running_var", "tracked"))]
    assert all(torch.equal(plain[name], measured[name]) for name in others)
