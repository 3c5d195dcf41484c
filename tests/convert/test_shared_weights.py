"""Weights that are used without their layer, and frozen ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.convert import binarize
from xnorpp.nn import BinaryConv2d

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """Three convolutions of eight channels, and what `inner` does with the second."""

    def __init__(self, inner: Callable[[nn.Conv2d, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last, self.head, self.inner = nn.Conv2d(8, 8, 1), nn.Linear(8, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.inner(self.conv, self.stem(x))).mean((2, 3)))


def typed(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Asks the weight for its type and size alone."""
    if conv.weight.data.numel() + conv.weight.size(0) + len(conv.weight.shape) == 0:
        return x
    return conv(x.type_as(conv.weight) + torch.zeros_like(conv.weight)[0, 0, 0, 0])


USED: dict[str, tuple[Callable[[nn.Conv2d, Tensor], Tensor], str]] = {
    "backwards too": (
        lambda conv, x: F.conv_transpose2d(conv(x), conv.weight, padding=1),
        "its weight is used outside of it too, by torch.nn.functional.conv_transpose2d, and stays",
    ),
    "its numbers": (
        lambda conv, x: conv(x) + F.conv2d(x, conv.weight.data, padding=1),
        "its weight is used outside of it too, by torch.nn.functional.conv2d, and stays real-valued there",
    ),
    "never called": (
        lambda conv, x: F.conv2d(x, conv.weight, padding=1),
        "never called itself; torch.nn.functional.conv2d uses its weight",
    ),
}


@pytest.mark.parametrize("example", [None, IMAGES], ids=["graph", "run"])
@pytest.mark.parametrize("name", USED)
def test_a_layer_whose_weight_others_use_stays_real(name: str, example: Tensor | None) -> None:
    inner, reason = USED[name]
    model = Network(inner).eval()
    report = binarize(model, example=example)
    assert report.changed == ("last",)
    row = next(row for row in report.rows if row.path == "conv")
    if (name, example is None) != ("its numbers", True):
        assert row.reason.startswith(reason)
    assert type(model.conv) is nn.Conv2d


@pytest.mark.parametrize("example", [None, IMAGES], ids=["graph", "run"])
def test_what_asks_for_the_type_of_a_weight_uses_none(example: Tensor | None) -> None:
    assert binarize(Network(typed), example=example).changed == ("conv", "last")


def test_an_override_makes_such_a_layer_binary() -> None:
    model = Network(USED["backwards too"][0])
    binarize(model, example=IMAGES, overrides={"conv": "xnor++"})
    assert isinstance(model.conv, BinaryConv2d)


def test_frozen_layers_stay_real_unless_an_override_names_them() -> None:
    model = Network(lambda conv, x: conv(x))
    model.conv.requires_grad_(False)
    report = binarize(model, example=IMAGES)
    assert report.changed == ("last",)
    (row,) = (row for row in report.rows if row.path == "conv")
    assert row.reason == "frozen (requires_grad=False): its weight would not learn to be binary"
    assert binarize(model, example=IMAGES, overrides={"conv": "xnor++"}).changed == ("conv",)
    assert not model.conv.weight.requires_grad
    model(IMAGES).sum().backward()
    assert model.conv.weight.grad is None
    assert model.conv.scale.alpha.grad is not None  # what can still learn does
