"""The evaluation transforms of timm and torchvision as a `Preprocess`; neither library is imported.

Both give the pixels that the other library gives to a Pillow image: they resize with Pillow too, and the
rules for sizes and offsets are the same (preprocess.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from xnorpp.runtime.format.preprocess import Preprocess, Size

__all__ = ["from_timm", "from_torchvision"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Steps of a Compose that turn an image into numbers from 0 to 1, as `normalise` does.
_TO_NUMBERS = ("ToTensor", "PILToTensor", "ToImage", "ConvertImageDtype", "ToDtype", "MaybeToTensor")


def from_timm(config: Mapping[str, Any]) -> Preprocess:
    """What timm evaluates with.

    Args:
        config: `timm.data.resolve_model_data_config(model)`, or a model's `pretrained_cfg`: `input_size` (c,
            h, w), `crop_pct`, `crop_mode` ("center" or "squash"), `interpolation`, `mean` and `std`. What is
            missing has timm's defaults: (3, 224, 224), 0.875, "center", "bilinear" and ImageNet's mean and
            std.

    Raises:
        ValueError: `crop_mode` is "border", which pads, or another field cannot be stored.

    Example:
        >>> from_timm({"input_size": (3, 224, 224), "crop_pct": 0.95, "interpolation": "bicubic"}).resize
        235
    """
    if not isinstance(config, Mapping):
        raise TypeError(
            f"`config` is {type(config).__name__}; a mapping is needed, as "
            "timm.data.resolve_model_data_config gives one"
        )
    channels, height, width = _input_size(config.get("input_size", (3, 224, 224)))
    share = config.get("crop_pct") or 0.875
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ValueError(f"`crop_pct` (={share!r}) must be above 0 and at most 1")
    mode = config.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise ValueError(
            f'`crop_mode` (={mode!r}) must be "center" or "squash"; padding an image is not supported'
        )
    if config.get("crop_border_pixels"):
        raise ValueError(
            f"`crop_border_pixels` (={config['crop_border_pixels']!r}) must be 0; trimming is not supported"
        )
    rectangle = math.floor(height / share), math.floor(width / share)
    interpolation = _interpolation(config.get("interpolation", "bilinear"))
    resize: Size = rectangle
    if mode == "center" and rectangle[0] == rectangle[1]:
        resize = rectangle[0]
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    return Preprocess(
        resize,
        height if height == width else (height, width),
        tuple(mean),
        tuple(std),
        channels,
        "squash" if mode == "squash" else "keep",
        interpolation,
    )


def from_torchvision(transform: Any, channels: int | None = None) -> Preprocess:
    """What torchvision evaluates with.

    Args:
        transform: `weights.transforms()`, an object with `resize_size`, `crop_size`, `mean`, `std` and
            `interpolation`; or a `Compose` of Resize, CenterCrop, a conversion to numbers, and Normalize.
            Without Normalize, mean and std are 0 and 1.
        channels: By default as many as `mean` has, or 3.

    Raises:
        ValueError: A step is not one of these, or an option of it cannot be stored.
    """
    if hasattr(transform, "transforms"):
        return _from_steps(transform.transforms, channels)
    needed = ("resize_size", "crop_size", "mean", "std")
    missing = [name for name in needed if not hasattr(transform, name)]
    if missing:
        raise ValueError(
            f"`transform` is {type(transform).__name__} without `{missing[0]}`; the transforms of "
            "torchvision's classification weights or a Compose are needed"
        )
    resize, aspect = _resize(transform.resize_size)
    interpolation = _interpolation(getattr(transform, "interpolation", "bilinear"))
    mean, std = _floats(transform.mean), _floats(transform.std)
    crop = _plain(transform.crop_size)
    return Preprocess(resize, crop, mean, std, channels or len(mean), aspect, interpolation)


def _from_steps(steps: Sequence[Any], channels: int | None) -> Preprocess:
    found: dict[str, Any] = {}
    for step in steps:
        kind = type(step).__name__
        if kind in found:
            raise ValueError(f"`transform` has two steps {kind}; one is supported")
        if kind not in ("Resize", "CenterCrop", "Normalize", *_TO_NUMBERS):
            raise ValueError(
                f"`transform` has the step {kind}; supported are Resize, CenterCrop, Normalize and "
                f"{', '.join(_TO_NUMBERS)}"
            )
        if kind == "CenterCrop" and "Resize" not in found:
            raise ValueError("`transform` crops before it resizes; Resize must come before CenterCrop")
        found[kind] = step
    if "Resize" not in found:
        raise ValueError("`transform` has no step Resize; one is needed")
    if getattr(found["Resize"], "max_size", None) is not None:
        raise ValueError(f"`max_size` (={found['Resize'].max_size}) of Resize is not supported; leave it out")
    resize, aspect = _resize(found["Resize"].size)
    if "CenterCrop" not in found and aspect == "keep":
        raise ValueError("`transform` has no step CenterCrop; without it the size follows the image's")
    crop = _plain(found["CenterCrop"].size) if "CenterCrop" in found else resize
    normalize = found.get("Normalize")
    count = channels or (3 if normalize is None else len(normalize.mean))
    mean = (0.0,) * count if normalize is None else _floats(normalize.mean)
    std = (1.0,) * count if normalize is None else _floats(normalize.std)
    interpolation = _interpolation(getattr(found["Resize"], "interpolation", "bilinear"))
    return Preprocess(resize, crop, mean, std, count, aspect, interpolation)


def _input_size(value: Any) -> tuple[int, int, int]:
    sizes = list(value) if isinstance(value, (list, tuple)) else [value, value]
    sizes = [3, *sizes] if len(sizes) == 2 else sizes
    if len(sizes) != 3 or not all(type(n) is int and n > 0 for n in sizes):
        raise ValueError(f"`input_size` (={value!r}) must be (channels, height, width)")
    return sizes[0], sizes[1], sizes[2]


def _resize(size: Any) -> tuple[Size, str]:
    """A number, or a list with one, is the shorter side; two are a rectangle."""
    single = isinstance(size, int) or (isinstance(size, (list, tuple)) and len(size) == 1)
    if single:
        return _plain(size), "keep"
    return (size if isinstance(size, (int, tuple)) else tuple(size)), "squash"


def _plain(size: Any) -> Size:
    """torchvision stores a square as a number, [n] or (n, n)."""
    if isinstance(size, (list, tuple)):
        return size[0] if len(set(size)) == 1 else (size[0], size[1])
    return size  # type: ignore[no-any-return]  # Preprocess checks it


def _floats(values: Any) -> tuple[float, ...]:
    """A list, or a tensor: timm's Normalize has tensors, whose float32 numbers stay as they are."""
    return tuple(float(value) for value in values)


def _interpolation(value: Any) -> str:
    """A name, or torchvision's enumeration. On Pillow images "nearest-exact" is "nearest"."""
    name = str(getattr(value, "value", value))
    return "nearest" if name == "nearest-exact" else name
