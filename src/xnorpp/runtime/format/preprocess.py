"""From an image to a network's input, without torch: what evaluation does, stored in the packed file.

    squash, `resize` an integer     the image becomes resize x resize; the crop starts at floor(margin / 2).
                                    This is all that version 1 of the format has, and every bit of it stays
    squash, `resize` a pair (h, w)  torchvision's Resize((h, w)) and CenterCrop
    keep, `resize` an integer       torchvision's Resize(int) and CenterCrop: the shorter side becomes
                                    `resize`, the longer int(resize * longer / shorter)
    keep, `resize` a pair (h, w)    timm's ResizeKeepRatio and CenterCrop: the image is scaled until it just
                                    covers h x w, and both sides are rounded

In the last three the whole image is resized with Pillow's filter, which widens when it shrinks ("antialias"),
and the crop starts at round((side - crop) / 2), half to even, as in torchvision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.pixels import MODES, as_image, fit, resampling, to_mode

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Preprocess", "as_image", "normalise", "normalise_constants", "scale_and_offset"]

UInt8Array = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
Size = int | tuple[int, int]

ASPECTS = ("squash", "keep")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
MAX_SIDE = 1 << 13
MAX_PIXELS = 1 << 26  # of a resized image: one that is a thousand times as wide as high is refused
_SMALLEST, _LARGEST = 2.0**-126, 2.0**128 - 2.0**104  # of float32

LARGEST_SIZE = 1 << 13  # pixels on a side; what a file states must not fill the memory


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop the centre, normalise: `(x / 255 - mean) / std` per channel.

    Args:
        resize: One number or (height, width). What it means follows from `aspect`.
        crop: The size of the network's input, one number for a square or (height, width).
        mean: One number per channel.
        std: One positive number per channel.
        channels: 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA). An image of another mode is converted,
            as Pillow converts it.
        aspect: "squash" resizes to `resize` and changes the aspect ratio; "keep" resizes until the image
            covers `resize`: with one number, the shorter side gets that length.
        interpolation: "nearest", "bilinear", "bicubic" or "lanczos", as Pillow computes them.

    An image that already has the right size passes unchanged.

    Raises:
        ValueError: A field is wrong; the message names it.

    Example:
        >>> Preprocess(256, 224, (0.5,) * 3, (0.25,) * 3, aspect="keep").resized(375, 500)
        (256, 341)
    """

    resize: Size
    crop: Size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    aspect: str = "squash"
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if type(self.channels) is not int or self.channels not in MODES:
            raise ValueError(f"`channels` (={_clip(self.channels)}) must be an integer, 1, 2, 3 or 4")
        for name, allowed in (("aspect", ASPECTS), ("interpolation", INTERPOLATIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` (={getattr(self, name)!r}) must be {_either(allowed)}")
        for name in ("resize", "crop"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), self.channels))
        if min(self.std) < _SMALLEST:
            raise ValueError(f"`std` (={self.std}) must be positive in float32, at least 2^-126")
        if any(inner > outer for inner, outer in zip(_pair(self.crop), _pair(self.resize))):
            raise ValueError(
                f"`crop` (={self.crop}) must be at least 1 and at most `resize` (={self.resize})"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, and read back by `from_dict`.

        `aspect` and `interpolation` are written where they are not "squash" and "bilinear": the rest is what
        version 1 of the format has.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        return {key: value for key, value in plain.items() if _DEFAULTS.get(key) != value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], input_shape: tuple[int, ...] | None = None) -> Preprocess:
        """The fields as a file stores them.

        Args:
            values: The fields. A missing `aspect` is "squash", `interpolation` "bilinear", `mean` 0 and `std`
                1 for every channel, `channels` those of the input (without it, as many as `mean` has, or 3),
                `crop` the input's size (without it, `resize`), and `resize` the crop.
            input_shape: (channels, height, width) of the network's input, which the result must produce.

        Raises:
            ValueError: A field is unknown or wrong, or does not fit the input.
        """
        known = [field.name for field in fields(cls)]
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ValueError(f"`preprocess` has the key {unknown[0]!r}; allowed are {', '.join(known)}")
        given = dict(values)
        if input_shape is not None:
            channels, height, width = input_shape
            given.setdefault("channels", channels)
            if min(height, width) > 0:
                given.setdefault("crop", height if height == width else (height, width))
        mean = given.get("mean")
        given.setdefault("channels", len(mean) if isinstance(mean, Sequence) else 3)
        given.setdefault("crop", given.get("resize"))
        given.setdefault("resize", given["crop"])
        count = given["channels"] if given["channels"] in list(MODES) else 1
        given.setdefault("mean", (0.0,) * count)
        given.setdefault("std", (1.0,) * count)
        made = cls(**given)
        if input_shape is not None:
            made.check_input(input_shape)
        return made

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Preprocess:
        """What timm evaluates with, from `timm.data.resolve_model_data_config(model)` or a `pretrained_cfg`.

        See `xnorpp.runtime.format.transforms.from_timm`.
        """
        from xnorpp.runtime.format.transforms import from_timm

        return from_timm(config)

    @classmethod
    def from_torchvision(cls, transform: Any, channels: int | None = None) -> Preprocess:
        """What torchvision evaluates with, from `weights.transforms()` or a `Compose`.

        See `xnorpp.runtime.format.transforms.from_torchvision`.
        """
        from xnorpp.runtime.format.transforms import from_torchvision

        return from_torchvision(transform, channels)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the network's input."""
        return _pair(self.crop)

    @property
    def side(self) -> int:
        """The side of a square input."""
        height, width = self.size
        if height != width:
            raise ValueError(f"`crop` (={self.crop}) must be a square here")
        return height

    def check_input(self, shape: tuple[int, ...]) -> None:
        """Raise a ValueError unless this produces a network's input of `shape` (channels, height, width).

        A height or width of -1 stands for any.
        """
        wrong = [n for n, wanted in zip((self.channels, *self.size), shape) if wanted not in (n, -1)]
        if wrong or len(shape) != 3:
            raise ValueError(
                f"`preprocess` makes an input of shape {(self.channels, *self.size)}, and the network's is "
                f"{tuple(shape)}; `crop` and `channels` must match it"
            )

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of that size is resized to, before the crop."""
        if self.aspect == "squash":
            return _pair(self.resize)
        if isinstance(self.resize, int):
            longer = int(self.resize * max(height, width) / min(height, width))
            return (longer, self.resize) if width <= height else (self.resize, longer)
        ratio = min(height / self.resize[0], width / self.resize[1])
        return round(height / ratio), round(width / ratio)

    def offset(self, height: int, width: int) -> tuple[int, int]:
        """(top, left) of the crop in a resized image of that size."""
        rows, columns = self.size
        if self.aspect == "squash" and isinstance(self.resize, int):
            return (height - rows) // 2, (width - columns) // 2
        return round((height - rows) / 2), round((width - columns) / 2)

    def distortion(self, height: int, width: int) -> float:
        """By how much an image of that size is stretched in one direction more than in the other, from 1."""
        if self.aspect == "keep":
            return 1.0
        rows, columns = _pair(self.resize)
        ratio = (height * columns) / (width * rows)
        return max(ratio, 1 / ratio)

    def apply(self, image: Image | UInt8Array) -> UInt8Array:
        """An image as the network sees it, not yet normalised.

        Args:
            image: A Pillow image, or a uint8 array (H, W) or (H, W, C).

        Returns:
            uint8 (height, width, channels).

        Raises:
            ValueError: The array is not an image, or the image is too long for its width.
        """
        whole = as_image(image)
        height, width = self.resized(whole.height, whole.width)
        top, left = self.offset(height, width)
        if self.aspect == "squash" and isinstance(self.resize, int):
            return fit(whole, self.resize, self.size, top, left, self.channels, self.interpolation)
        if height * width > MAX_PIXELS:
            raise ValueError(
                f"the image (={whole.width}x{whole.height}) would be resized to {width}x{height}, which is "
                f"more than {MAX_PIXELS:,} pixels; crop it first"
            )
        whole = to_mode(whole, self.channels)
        if whole.size != (width, height):
            whole = whole.resize((width, height), resampling(self.interpolation))
        rows, columns = self.size
        window = whole.crop((left, top, left + columns, top + rows))
        return np.asarray(window).reshape(rows, columns, self.channels)

    def normalise(self, images: UInt8Array) -> F32:
        """uint8 (N, H, W, C) to float32 (N, C, H, W)."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != self.channels:
            raise ValueError(
                f"`images` (={images.dtype} {images.shape}) must be uint8 of shape (N, H, W, {self.channels})"
            )
        return normalise(images, self.mean, self.std)


_DEFAULTS = {"aspect": "squash", "interpolation": "bilinear"}


def normalise_constants(mean: Sequence[float], std: Sequence[float]) -> tuple[F32, F32]:
    """`mean` and `std` as the float32 arrays that `(x / 255 - mean) / std` is computed with everywhere."""
    return np.asarray(mean, np.float32), np.asarray(std, np.float32)


def normalise(images: UInt8Array, mean: Sequence[float], std: Sequence[float]) -> F32:
    """uint8 (N, H, W, C) to `(x / 255 - mean) / std`, float32 (N, C, H, W): the definition for all engines.

    Each of the three operations rounds to float32 once.
    """
    centre, width = normalise_constants(mean, std)
    scaled = (images.astype(np.float32) / np.float32(255) - centre) / width
    return np.ascontiguousarray(np.moveaxis(scaled, -1, 1))


def scale_and_offset(mean: Sequence[float], std: Sequence[float]) -> tuple[F32, F32]:
    """`normalise` as one `x * scale + offset` per channel, for engines of others: equal but for rounding."""
    centre, width = normalise_constants(mean, std)
    return np.asarray(1 / (255 * width), np.float32), -centre / width


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _either(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _size(name: str, value: Any) -> Size:
    sides = list(value) if isinstance(value, (list, tuple)) else [value]
    pair = isinstance(value, (list, tuple))
    if not all(type(n) is int for n in sides) or len(sides) != 1 + pair:
        raise ValueError(f"`{name}` (={_clip(value)}) must be an integer, or a pair of them (height, width)")
    if min(sides) < 1:
        raise ValueError(f"`{name}` (={_clip(value)}) must be at least 1")
    if max(sides) > MAX_SIDE:
        raise ValueError(f"`{name}` (={_clip(value)}) must be at most {MAX_SIDE}")
    return (sides[0], sides[1]) if pair else sides[0]


def _numbers(name: str, values: Any, channels: int) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple, np.ndarray)) or not all(_is_number(value) for value in values):
        raise ValueError(f"`{name}` (={_clip(values)}) must be a list of numbers, one per channel")
    if not all(_is_float32(value) for value in values):
        raise ValueError(f"`{name}` (={_clip(values)}) must be finite numbers, also in float32")
    if len(values) != channels:
        raise ValueError(f"`{name}` (={_clip(values)}) must have `channels` (={channels}) values")
    return tuple(float(value) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_float32(value: Real) -> bool:
    try:
        return abs(float(value)) <= _LARGEST  # false for NaN
    except OverflowError:  # an integer of more than 308 digits
        return False


def _clip(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
