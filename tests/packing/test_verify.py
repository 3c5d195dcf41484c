"""`verify` sees what it is there to see: it fails on a wrong packing and counts flips."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from torch import nn

from xnorpp.nn import BinaryConv2d
from xnorpp.packing import verify

fold = importlib.import_module("xnorpp.packing.fold")  # the module; the package's attribute is its function


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 8, 3, padding=1, scale="channel"),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 8, 3, padding=1, scale="channel_height_width", output_size=(6, 6)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    with torch.no_grad():
        for norm in (model[1], model[3]):
            norm.bias.normal_()
            norm.running_mean.normal_()
    return model


X = np.random.default_rng(0).standard_normal((16, 3, 6, 6)).astype(np.float32)


def test_a_right_packing_holds() -> None:
    result = verify(network(), X)
    assert result.holds
    assert result.flips == 0
    assert result.bits == 2 * 16 * 8 * 36
    assert result.same_class == 1.0
    assert result.output_error < 1e-5
    assert {layer.op for layer in result.layers} >= {"sign", "affine", "conv2d"}


def test_a_wrong_threshold_is_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    good = fold.integer_threshold

    def shifted(*arguments: object) -> object:
        t, flip = good(*arguments)
        return t + np.float32(2), flip

    monkeypatch.setattr(fold, "integer_threshold", shifted)
    result = verify(network(), X)
    assert not result.holds
    assert result.flips > 0
    assert [layer.name for layer in result.layers if layer.beyond] == ["4"]


def test_a_wrong_fold_is_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    good = fold._into_weights

    def scaled(output: object) -> object:
        folded = good(output)
        for node in fold.order(*folded):
            if node.op == "conv2d":
                node.tensors["bias"] = node.tensors["bias"] * 1.0001
        return folded

    monkeypatch.setattr(fold, "_into_weights", scaled)
    result = verify(network(), X)
    assert "conv2d" in {layer.op for layer in result.layers if layer.beyond}


def test_half_is_not_rounding_of_single() -> None:
    assert not verify(network(), X, half=True).holds


def test_at_least_one_image_is_needed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten())
    for shape in ((0, 3, 4, 4), (3,)):
        with pytest.raises(ValueError, match=r"`x` has shape .*; a batch of at least one input"):
            verify(model, np.zeros(shape, np.float32))
