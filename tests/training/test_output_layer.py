"""The output layer fitted again: it alone changes, for the better, and the same way each time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from xnorpp.training import RecipeError, load_model, train
from xnorpp.training.output_layer import fit_output_layer
from xnorpp.training.recipe.config import Recipe


class Net(nn.Module):
    """Batch norm and dropout, which are at rest, an output layer, and another linear layer before it."""

    def __init__(self, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5))
        self.out, self.after = nn.Linear(12, 3), after

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.body(x))
        return scores if self.after is None else self.after(scores)


def batches() -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(0)
    images = [torch.randn(100, 6, generator=made) for _ in range(8)]
    return [(one, one[:, :3].argmax(1)) for one in images]


def loss(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return float(sum(functional.cross_entropy(model(x), y) for x, y in batches()) / 8)


def test_the_output_layer_alone_learns() -> None:
    torch.manual_seed(0)
    model = Net()
    before, start = copy.deepcopy(model.state_dict()), loss(model)
    again = copy.deepcopy(model)
    model.train()
    assert fit_output_layer(model, iter(batches()), seed=3) is model.out
    assert model.training
    assert model.body[1].training
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"out.weight", "out.bias"}
    assert loss(model) < start
    fit_output_layer(again, iter(batches()), seed=3)
    assert torch.equal(model.out.weight, again.out.weight)


def test_the_steps_are_those_of_gradient_descent() -> None:
    """One batch of all images is taken three times, with Nesterov's momentum and a rate that falls to 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3, bias=False))
    ((x, y),) = batches()[:1]
    weight = model[0].weight.detach().clone()
    momentum = torch.zeros_like(weight)
    for step in range(3):
        parameter = weight.clone().requires_grad_()
        functional.cross_entropy(x @ parameter.T, y).backward()
        momentum = 0.9 * momentum + parameter.grad
        rate = 0.01 * (1 + torch.cos(torch.tensor(torch.pi * step / 3)).item()) / 2
        weight -= rate * (parameter.grad + 0.9 * momentum)
    fit_output_layer(model, [(x, y)])
    torch.testing.assert_close(model[0].weight.detach(), weight)


def test_scores_of_no_linear_layer_are_refused() -> None:
    with pytest.raises(RecipeError, match="are not the output of a linear layer; set it to 0"):
        fit_output_layer(Net(nn.ReLU()), batches())
    with pytest.raises(ValueError, match="at least one batch"):
        fit_output_layer(Net(), [])


def test_a_run_ends_with_it(tmp_path: Path, quick: Callable[..., Recipe]) -> None:
    common = ("schedule.max_steps=2", "schedule.statistics_batches=2")
    for name, more in (("a", ()), ("b", ("schedule.output_batches=2",))):
        train(quick(*common, *more), out=tmp_path / name, device="cpu", quiet=True)
    (one, _), (two, _) = (load_model(tmp_path / name) for name in ("a", "b"))
    pairs = zip(one.state_dict().items(), two.state_dict().values(), strict=True)
    assert {name for (name, value), other in pairs if not torch.equal(value, other)} == {
        "fc.weight",
        "fc.bias",
    }
