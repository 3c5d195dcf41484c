"""The evaluation transforms of timm and torchvision as a `Preprocess`, by objects with their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xnorpp.data import Preprocess


class Named:
    """An object with attributes, as those of timm and torchvision."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Resize(Named):
    pass


class CenterCrop(Named):
    pass


class ToTensor(Named):
    pass


class Normalize(Named):
    pass


class RandomErasing(Named):
    pass


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Preprocess(256, 224, MEAN, STD, 3, "keep")),
        (
            {
                "input_size": (3, 224, 224), "interpolation": "bicubic", "crop_pct": 0.95,
                "crop_mode": "center", "mean": (0.5,) * 3, "std": (0.5,) * 3,
            },
            Preprocess(235, 224, (0.5,) * 3, (0.5,) * 3, 3, "keep", "bicubic"),
        ),
        (
            {"input_size": [3, 288, 288], "crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"},
            Preprocess((288, 288), 288, MEAN, STD, 3, "squash", "bicubic"),
        ),
        (
            {"input_size": (3, 128, 256), "crop_pct": 0.9, "interpolation": "bicubic"},
            Preprocess((142, 284), (128, 256), MEAN, STD, 3, "keep", "bicubic"),
        ),
        (
            {"input_size": (1, 28, 28), "crop_pct": 1.0, "mean": (0.1307,), "std": (0.3081,)},
            Preprocess(28, 28, (0.1307,), (0.3081,), 1, "keep"),
        ),
    ],
)  # fmt: skip
def test_what_timm_evaluates_with(config: dict[str, Any], expected: Preprocess) -> None:
    assert Preprocess.from_timm(config) == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"crop_mode": "border"}, r"`crop_mode` \(='border'\) must be \"center\" or \"squash\""),
        ({"crop_pct": 1.5}, r"`crop_pct` \(=1.5\) must be above 0 and at most 1"),
        ({"crop_border_pixels": 4}, "trimming is not supported"),
        ({"input_size": (3, 224)[:1]}, r"`input_size` \(=\(3,\)\) must be \(channels, height, width\)"),
        ({"interpolation": "random"}, r"`interpolation` \(='random'\) must be"),
    ],
)
def test_what_timm_does_and_a_file_cannot_store(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Preprocess.from_timm(config)


def test_what_torchvision_evaluates_with() -> None:
    bicubic = Named(value="bicubic")  # as torchvision's InterpolationMode
    preset = Named(resize_size=[232], crop_size=[224], mean=list(MEAN), std=list(STD), interpolation=bicubic)
    expected = Preprocess(232, 224, MEAN, STD, 3, "keep", "bicubic")
    assert Preprocess.from_torchvision(preset) == expected
    steps = [
        Resize(size=232, interpolation=bicubic, max_size=None), CenterCrop(size=(224, 224)), ToTensor(),
        Normalize(mean=np.float64(MEAN), std=np.float64(STD)),
    ]  # fmt: skip
    assert Preprocess.from_torchvision(Named(transforms=steps)) == expected
    exact = Resize(size=[8, 12], interpolation=Named(value="nearest-exact"))
    assert Preprocess.from_torchvision(Named(transforms=[exact, ToTensor()]), channels=1) == Preprocess(
        (8, 12), (8, 12), (0.0,), (1.0,), 1, "squash", "nearest"
    )


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([CenterCrop(size=4), Resize(size=4)], "Resize must come before CenterCrop"),
        ([ToTensor()], "has no step Resize"),
        ([Resize(size=4), ToTensor()], "has no step CenterCrop"),
        ([Resize(size=4), Resize(size=8)], "two steps Resize"),
        ([Resize(size=4, max_size=9)], r"`max_size` \(=9\) of Resize is not supported"),
        ([RandomErasing()], "has the step RandomErasing; supported are Resize, CenterCrop, Normalize"),
        (None, "is Named without `resize_size`"),
    ],
)
def test_what_torchvision_does_and_a_file_cannot_store(steps: Any, words: str) -> None:
    transform = Named() if steps is None else Named(transforms=steps)
    with pytest.raises(ValueError, match=words):
        Preprocess.from_torchvision(transform)
