"""The streams of the fused training path on a real GPU, recorded as a CUDA graph. One command there:

pytest -m gpu tests/gpu/test_streams.py
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from recording import recorded
from torch import Tensor, nn

from xnorpp import binarize
from xnorpp.models import create_model
from xnorpp.nn import fuse_for_training
from xnorpp.nn.fused import dispatch as fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="NOT RUN: streams and recorded graphs need a GPU."
    ),
]

REPLAYS = 20


def networks(name: str) -> nn.Module:
    if name == "own":
        return create_model("resnet20", input_size=32, weights="recu", standardize_weights=True)
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from foreign_training import CifarResNet
    finally:
        sys.path.pop(0)
    model = CifarResNet((32, 64, 128), 2)
    binarize(model)
    assert fuse_for_training(model)
    return model


def replayed(model: nn.Module, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The gradients of a recorded step, which every replay must give again."""

    def call() -> None:
        model.zero_grad(set_to_none=True)
        with fused.for_graph():
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                y = model(x)
            (y.float() * weights).sum().backward()

    replay = recorded(call)
    found: dict[str, Tensor] = {}
    for _ in range(REPLAYS):
        replay()
        now = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found = found or now
        assert now.keys() == found.keys()
        wrong = [name for name, value in now.items() if not torch.equal(value, found[name])]
        assert not wrong, wrong
    return found


@pytest.mark.parametrize("name", ["own", "foreign"])
def test_every_choice_of_streams_gives_the_same_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.manual_seed(0)
    model = networks(name).cuda().to(memory_format=torch.channels_last).train()
    x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    weights = torch.randn(64, 10, device="cuda")
    found = {}
    for choice in ((False, False, False), (True, False, False), (True, True, False), (True, False, True),
                   (True, True, True)):  # fmt: skip
        for key, value in zip(("aside", "branch", "late"), choice, strict=True):
            monkeypatch.setitem(fused._state, key, value)
        found[choice] = replayed(copy.deepcopy(model), x, weights)
    first = found[False, False, False]
    assert len(first) == len(list(model.parameters()))
    for choice, gradients in found.items():
        wrong = [key for key, value in gradients.items() if not torch.equal(value, first[key])]
        assert not wrong, (choice, wrong)
