"""What `pack`, `verify` and `pack_submodules` are given: a wrong argument is one clear sentence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from xnorpp.nn import BinaryConv2d
from xnorpp.packing import pack, pack_submodules, verify

X = np.random.default_rng(0).standard_normal((20, 3, 8, 8)).astype(np.float32)
NAN = X.copy()
NAN[3, 1, 2, 4] = np.nan


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), BinaryConv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 5)]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"labels": 3}, "`labels` is int; a list with one name per output is needed"),
        ({"labels": "abcde"}, "`labels` is str; a list"),
        ({"labels": b"abcde"}, "`labels` is bytes; a list"),
        ({"labels": {"a": 1}}, "`labels` is dict; a list"),
        ({"labels": ["a", "b", None, "d", "e"]}, "`labels` (item 2: None) must be names"),
        ({"labels": ["a"] * 4}, "4 labels for 5 outputs"),
        ({"meta": 3}, "`meta` is int; a mapping is needed"),
        ({"meta": "abc"}, "`meta` is str; a mapping"),
        ({"meta": {3: 4}}, "`meta` has the key 3; its keys must be text"),
        ({"any_size": 3}, "`any_size` (=3) must be True or False, or None"),
        ({"half": "yes"}, "`half` (='yes') must be True or False"),
        ({"real": "int8", "calibration": (X, np.full(20, 5))}, "has the class 5; the network's are 0 to 4"),
        ({"real": "int8", "calibration": (X, np.full(20, -1))}, "has the class -1"),
        ({"real": "int8", "calibration": (X, np.full(20, 0.5))}, "classes of type float64; whole numbers"),
        ({"real": "int8", "calibration": NAN}, "`calibration` has NaN or infinite numbers"),
        ({"real": "int8", "calibration": X, "tolerance": "a"}, "`tolerance` (='a') must be between 0 and 1"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_pack(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        pack(network(), (3, 8, 8), **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [("a", "b", "c", "d", "e"), np.array(list("abcde")), [0, 1, 2, 3, 4]])
def test_labels_may_be_any_sequence(labels: Any) -> None:
    assert pack(network(), (3, 8, 8), labels=labels).labels == tuple(map(str, labels))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((2, 3, 9, 9), np.float32), "`x` of shape (2, 3, 9, 9) is none that the model runs on"),
        (np.zeros((2, 3), np.float32), "`x` of shape (2, 3) is none that the model runs on"),
        ("abc", "`x` is str of <U3; arrays of numbers are needed"),
    ],
)
def test_wrong_input_of_verify(x: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        verify(network(), x)


def test_models_that_are_none() -> None:
    for function in (pack, pack_submodules):
        with pytest.raises(ValueError, match="`model` is NoneType"):
            function(None, (3, 8, 8))
    with pytest.raises(ValueError, match="`model` is NoneType"):
        verify(None, X)
