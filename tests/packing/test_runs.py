"""A program is the same for any number of images and in every call, and a run leaves the model as it was."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import check_packable

FOLLOW: dict[str, Callable[[Tensor], Tensor]] = {
    "divided": lambda x: x / x.shape[0],
    "times size": lambda x: x * x.size(0),
    "sum over the batch's count": lambda x: x.sum(1) * (1.0 / len(x)),
    "half": lambda x: x + x.shape[0] // 2,
    "a tensor of it": lambda x: x + torch.full((len(x), 1, 1, 1), float(len(x))),
    "its logarithm": lambda x: x * torch.log(torch.tensor(float(x.shape[0]))),
    "a limit": lambda x: x.clamp(max=0.1 * x.shape[0]),
    "a way": lambda x: x * 2 if x.shape[0] > 4 else x * 3,
    "a number of channels": lambda x: x[:, : x.shape[0] // 2 + 1],
}


@pytest.mark.parametrize("name", FOLLOW)
def test_a_number_that_follows_from_the_batch_is_refused(name: str) -> None:
    is_refused(Lambda(FOLLOW[name]), (8, 4, 4), "number of images in the batch", "x.shape")
    (obstacle,) = check_packable(Lambda(FOLLOW[name]), (8, 4, 4)).obstacles
    assert re.match(r"test_runs.py:\d+: .*lambda x", obstacle.line)


def test_numbers_along_the_batch_are_refused() -> None:
    is_refused(Lambda(lambda x: x + torch.arange(len(x)).view(-1, 1, 1, 1)), (8, 4, 4), "", "")


ALLOWED: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(x.shape[0], -1),
    "zeros": lambda x: torch.cat([x, torch.zeros(x.shape[0], 1, 4, 4)], 1),
    "places": lambda x: x[torch.arange(x.shape[0]), 2],
    "expanded": lambda x: x + torch.ones(1, 8, 1, 1).expand(x.shape[0], -1, 4, 4),
    "windows": lambda x: x.view(x.shape[0] * 2, 4, 4, 4).softmax(1).view(x.shape[0], 8, 4, 4),
    "repeated": lambda x: x * torch.linspace(0, 1, 8).view(1, 8, 1, 1).repeat(x.size(0), 1, 1, 1),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_batch_in_shapes_is_no_number(name: str) -> None:
    agrees(ALLOWED[name], images(8, 4, 4))


def test_a_fixed_number_of_images_is_refused() -> None:
    is_refused(Lambda(lambda x: x.view(2, -1).relu()), (8, 4, 4), "mixes images", "each image to itself")
    model = Lambda(lambda x: x + torch.zeros(2, 1, 1, 1))
    is_refused(model, (8, 4, 4), "runs on 2 images, and not on 5", "x.shape")
    model = Lambda(lambda x: x + torch.zeros(16, 1, 1, 1))
    for call in (check_packable, xnorpp.pack):
        with pytest.raises(ValueError, match=r"runs on 16 images, and not on 2 .*test_runs.py"):
            call(model, example=torch.zeros(16, 8, 4, 4))


class Stateful(nn.Module):
    """Changes itself in every call: in place, by new tensors, by attributes and in containers."""

    def __init__(self, read: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.zeros(1))
        self.factor = nn.Parameter(torch.ones(1))
        self.count, self.seen, self.read = 0, [], read  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        self.conv.weight.data = self.conv.weight.data.clamp(-0.1, 0.1)
        y = self.conv(x)
        self.calls += 1
        self.count += 1
        self.mean.mul_(0.9).add_(0.1 * y.mean((0, 2, 3)))
        self.last = y.detach().flatten()[:1]
        self.factor.data.mul_(1.0 + 0.0 * self.count)
        self.seen.append(tuple(x.shape))
        self.own = x.sum()
        return y * self.calls if self.read else y * self.factor


def states(model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    attributes = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    return copy.deepcopy(model.state_dict()), copy.deepcopy(attributes)


RUNS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "check_packable": check_packable,
    "pack": lambda model, x: xnorpp.pack(model, example=x),
    "pack_submodules": xnorpp.pack_submodules,
    "verify": lambda model, x: xnorpp.packing.verify(model, x.numpy()),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_leaves_the_model_as_it_was(name: str) -> None:
    model = nn.Sequential(Stateful(), nn.ReLU())
    before, attributes = states(model[0])
    ids = {name: id(value) for name, value in model.named_parameters()}
    RUNS[name](model, torch.rand(3, 3, 6, 6))
    after, others = states(model[0])
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert attributes == others
    assert ids == {name: id(value) for name, value in model.named_parameters()}


def test_what_no_output_needs_is_no_obstacle() -> None:
    class Balanced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.loss = (x.mean(0) - x.mean()).pow(2).sum() + torch.randn_like(x).sum() * x.std()
            return x * 2

    agrees(Balanced(), images(4, 3))
    is_refused(Lambda(lambda x: (x * 2, x.mean())), (4,), "over the whole batch", "")


def test_binarize_leaves_what_a_forward_pass_changes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), Stateful(), nn.Flatten(), nn.Linear(64, 2))
    before, attributes = states(model[1])
    xnorpp.binarize(model, example=torch.rand(2, 3, 6, 6))
    after, others = states(model[1])
    assert all(torch.equal(before[key], after[key]) for key in ("calls", "mean", "last", "factor"))
    assert attributes == others


def test_the_numbers_before_the_forward_pass_are_packed() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("share", torch.tensor(1.0))
            self.register_buffer("own", torch.arange(4.0).reshape(4, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.own
            self.share *= 0.5
            return y

    model = Halves()
    packed = agrees(model, images(4, 3, 3))
    model.share.fill_(1.0)
    assert packed is not None


@pytest.mark.parametrize("read", ["counter", "history", "cache"])
def test_what_earlier_calls_change_is_refused_where_it_is_read(read: str) -> None:
    class Streaming(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("history", torch.zeros(1, 4, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            y = x - self.history
            self.history = x.clone()
            return y

    class Cached(nn.Module):
        cache: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            made = x * 2 if self.cache is None else x * self.cache.mean()
            self.cache = torch.rand(3)
            return made

    model = {"counter": Stateful(read=True), "history": Streaming(), "cache": Cached()}[read]
    example = (3, 6, 6) if read == "counter" else (4, 3, 3)
    is_refused(model, example, "earlier call", "self.training")


def test_a_table_that_is_made_at_the_first_call_packs() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table: Tensor | None = None
            self.shapes: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            if self.table is None or self.table.shape[1] != x.shape[1]:
                self.table = torch.sin(torch.arange(float(x.shape[1]))).reshape(1, -1)
            if x.shape[1] not in self.shapes:
                self.shapes[x.shape[1]] = torch.arange(float(x.shape[1]))
            return x + self.table * self.shapes[x.shape[1]]

    model = Positions()
    agrees(model, images(6))
    fresh = Positions()
    xnorpp.pack(fresh, example=images(6))
    assert (fresh.table, fresh.shapes) == (None, {})
