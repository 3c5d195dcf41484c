"""A recipe small enough to train many times in a test run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from xnorpp.training import load_recipe
from xnorpp.training.recipe.config import Recipe

# Some virtual machines report AMX but stop a process that uses it; bf16 does not need it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

QUICK = (
    "model.options.width=4",
    "schedule.epochs=2",
    "data.batch_size=128",
    "run.log_steps=1",
    "run.tensorboard=false",
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny shapes are faster on one thread, and results must not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_interpreter() -> Iterator[None]:
    """Training here is plain PyTorch, also behind a test's own `monkeypatch.undo()`.

    Tests of the fused kernels make Triton interpret them, for the whole process; with that, a step in graph
    mode would take them here too, and round bfloat16 in other places than the plain step does.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


@pytest.fixture
def drawn() -> None:
    """For tests that look at the plot of a run."""


@pytest.fixture(autouse=True)
def _plots_without_pixels(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run ends with its plot, whose text takes longer than the training of many a test: the plot is made,
    and its pixels are for tests that ask for `drawn`."""
    if "drawn" in request.fixturenames:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
        yield


@pytest.fixture
def quick() -> Callable[..., Recipe]:
    """Makes the quick recipe: Case 4 on the digits, 4 channels wide, 2 epochs of 11 steps."""

    def make(*overrides: str, name: str = "digits-small-case4") -> Recipe:
        return load_recipe(name, [*QUICK, *overrides])

    return make


@pytest.fixture
def same() -> Callable[[Any, Any], bool]:
    """Whether two dictionaries of tensors are equal bit for bit."""

    def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
        return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)

    return equal
