"""The pixels are those of timm and torchvision themselves, bit for bit, over random sizes and settings.

Needs both libraries, so it is not part of the suite (its name does not start with `test_`):

    pip install torchvision timm && python -m pytest tests/extras/check_timm_torchvision.py

With torchvision 0.29.2 and timm 1.0.30 there was no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision_operators import declare_missing

from xnorpp import Preprocess

declare_missing()

import timm.data  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms._presets import ImageClassification  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def same(theirs: Callable[[Any], Any], ours: Preprocess, image: Image.Image) -> None:
    np.testing.assert_array_equal(ours.normalise(ours.apply(image)[None])[0], theirs(image).numpy())


def some_image(random: np.random.Generator) -> Image.Image:
    height, width = random.integers(20, 500, 2)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "lanczos"])
def test_torchvision(seed: int, mode: str) -> None:
    random = np.random.default_rng(seed)
    image, interpolation = some_image(random), InterpolationMode(mode)
    resize = int(random.integers(24, 260))
    crop = int(random.integers(16, resize + 1))
    preset = ImageClassification(crop_size=crop, resize_size=resize, interpolation=interpolation)
    if mode not in ("lanczos", "nearest-exact"):
        same(preset, Preprocess.from_torchvision(preset), image)
    numbers = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    for steps in (
        [
            transforms.Resize(resize, interpolation),
            transforms.CenterCrop((crop, max(16, crop - 3))),
            *numbers,
        ],
        [transforms.Resize((resize, resize + 5), interpolation), transforms.CenterCrop(crop), *numbers],
        [transforms.Resize((resize, resize + 5), interpolation), transforms.ToTensor()],
    ):
        compose = transforms.Compose(steps)
        same(compose, Preprocess.from_torchvision(compose), image)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("square", [True, False])
def test_timm(seed: int, crop_mode: str, square: bool) -> None:
    random = np.random.default_rng(seed)
    height, width = (int(n) for n in random.integers(16, 200, 2))
    config = {
        "input_size": (3, height, height if square else width),
        "crop_pct": float(random.choice([0.875, 0.9, 0.95, 1.0])),
        "crop_mode": crop_mode,
        "interpolation": str(random.choice(["bilinear", "bicubic", "lanczos"])),
        "mean": MEAN,
        "std": STD,
    }
    transform = timm.data.create_transform(**config, is_training=False)
    same(transform, Preprocess.from_timm(config), some_image(random))
