"""Gradients of weights that a backward pass waits for at its end alone, through Triton's interpreter; the
streams themselves are tested on a GPU (tests/gpu/test_streams.py)."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported, here or at first use
pytest.importorskip("triton")

from xnorpp.nn.fused import dispatch as fused
from xnorpp.nn.fused import unit as fused_unit
from xnorpp.nn.fused.dispatch import End, Unit

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setitem(fused._state, "late", True)
    monkeypatch.setitem(fused._state, "branch", True)
    yield monkeypatch
    assert all(not one.gradients and not one.asides for one in fused_unit._late.values())


class Two(nn.Module):
    """A post-activation block with a binary shortcut, and a unit with a batch norm before its sign."""

    def __init__(self, center: bool = False) -> None:
        super().__init__()
        more = {"bias": False, "center_weights": center}
        self.conv1, self.conv2 = BinaryConv2d(8, 12, 3, 1, 1, **more), BinaryConv2d(12, 12, 3, 1, 1, **more)
        self.side, self.last = BinaryConv2d(8, 12, 1, **more), BinaryConv2d(12, 12, 3, 1, 1, **more)
        self.norms = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(4))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.norms
        end = End(second, self.relu, Unit(None, self.side), third)
        x = fused.chain(x, [Unit(None, self.conv1), Unit(first, self.conv2)], end=end)
        return fused.chain(x, [Unit(fourth, self.last)], x)


def gradients(model: nn.Module, passes: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(3)
    x, weights = torch.randn(8, 8, 4, 4, device=DEVICE).bfloat16(), torch.randn(8, 12, 4, 4, device=DEVICE)
    with fused.backend("fused"), fused.for_graph():
        for _ in range(passes):
            (model(x.clone().requires_grad_()).float() * weights).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_late_gradients_are_the_same(center: bool, passes: int, late: pytest.MonkeyPatch) -> None:
    model = Two(center).to(DEVICE)
    found = gradients(copy.deepcopy(model), passes)
    late.setitem(fused._state, "late", False)
    expected = gradients(copy.deepcopy(model), passes)
    assert found.keys() == expected.keys() == {name for name, _ in model.named_parameters()}
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert found[name].stride() == value.stride()


def test_autograd_does_not_touch_late_gradients(late: pytest.MonkeyPatch) -> None:
    """Only those of parameters that nobody listens to are late."""
    model = Two().to(DEVICE)
    taken: list[list[Tensor | None]] = []
    real = fused_unit.finish

    def finish(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        taken.extend(arguments[2])  # type: ignore[arg-type]

    for module in ("chain", "closed"):
        late.setattr(f"xnorpp.nn.fused.{module}.finish", finish)
    gradients(copy.deepcopy(model))
    assert [part[fused_unit.LATENT] for part in taken] == [None] * 4
    taken.clear()
    seen: list[Tensor] = []
    listened = copy.deepcopy(model)
    listened.last.weight.register_hook(seen.append)
    found = gradients(listened)
    assert [part[fused_unit.LATENT] is None for part in taken] == [False, True, True, True]
    assert torch.equal(seen[0], found["last.weight"])


def test_a_backward_pass_that_failed_leaves_nothing(late: pytest.MonkeyPatch) -> None:
    model = Two().to(DEVICE)
    expected = gradients(copy.deepcopy(model))

    def fail(_: Tensor) -> None:
        raise RuntimeError("a hook failed")

    broken = copy.deepcopy(model)
    handle = broken.norms[0].weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="a hook failed"):
        gradients(broken)
    handle.remove()
    broken.zero_grad(set_to_none=True)
    for name, value in gradients(broken).items():
        assert torch.equal(value, expected[name]), name
