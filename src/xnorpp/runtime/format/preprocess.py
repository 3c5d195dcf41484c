"""From a picture to a network's input, without torch.

What prediction and testing do, kept in the packed file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

UInt8Array = npt.NDArray[np.uint8]

LARGEST_SIZE = 1 << 13  # pixels on a side; what a file says must not fill the memory


@dataclass(frozen=True)
class Preprocess:
    """Resize to `resize` x `resize` (bilinear, not keeping the aspect), centre crop to `crop`, normalise.

    `normalise` is `(x / 255 - mean) / std` a channel. `channels` is 1 (grey) or 3 (RGB); a picture of another
    mode is converted. An already right-sized picture passes unchanged.
    """

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3

    def __post_init__(self) -> None:
        for name in ("resize", "crop", "channels"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise ValueError(f"`{name}` (={getattr(self, name)!r}) must be an integer")
        if self.channels not in (1, 3):
            raise ValueError(f"`channels` (={self.channels}) must be 1 or 3")
        if not 0 < self.crop <= self.resize:
            raise ValueError(
                f"`crop` (={self.crop}) must be at least 1 and at most `resize` (={self.resize})"
            )
        if self.resize > LARGEST_SIZE:
            raise ValueError(f"`resize` (={self.resize}) must be at most {LARGEST_SIZE}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(f"`{name}` (={values}) must have `channels` (={self.channels}) values")
            with np.errstate(over="ignore"):
                numbers = np.asarray(values, np.float32)
            if not np.isfinite(numbers).all():
                raise ValueError(f"`{name}` (={values}) must be finite numbers")
            if name == "std" and numbers.min() <= 0:
                raise ValueError(f"`std` (={values}) must be positive in float32")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, and read back by `from_dict`."""
        return {
            "resize": self.resize,
            "crop": self.crop,
            "mean": list(self.mean),
            "std": list(self.std),
            "channels": self.channels,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        known = ("resize", "crop", "mean", "std", "channels")
        wrong = sorted(set(values) ^ set(known))
        if wrong:
            raise ValueError(
                f'`preprocess` must have exactly the keys {", ".join(known)}; "{wrong[0]}" is wrong'
            )
        return cls(
            resize=values["resize"],
            crop=values["crop"],
            mean=_numbers(values["mean"], "mean"),
            std=_numbers(values["std"], "std"),
            channels=values["channels"],
        )

    def apply(self, picture: Image | UInt8Array) -> UInt8Array:
        """A Pillow image, or a uint8 array (H, W) or (H, W, C), to uint8 (crop, crop, channels)."""
        from xnorpp.runtime.decode import fit

        margin = (self.resize - self.crop) // 2
        return fit(as_image(picture), self.resize, self.crop, margin, margin, self.channels)

    def normalise(self, images: UInt8Array) -> npt.NDArray[np.float32]:
        """uint8 (N, H, W, C) to float32 (N, C, H, W)."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != self.channels:
            raise ValueError(
                f"`images` (={images.dtype} {images.shape}) must be uint8 of shape (N, H, W, {self.channels})"
            )
        mean = np.asarray(self.mean, np.float32)
        std = np.asarray(self.std, np.float32)
        scaled = (images.astype(np.float32) / np.float32(255) - mean) / std
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def _numbers(values: Any, name: str) -> tuple[float, ...]:
    """A row of numbers as JSON has it; text that looks like one is none."""
    if not isinstance(values, list | tuple) or not all(
        isinstance(v, Real) and not isinstance(v, bool) for v in values
    ):
        raise ValueError(f"`{name}` (={values!r:.60}) must be a list of numbers")
    try:
        return tuple(float(v) for v in values)
    except OverflowError:  # an integer beyond every float
        raise ValueError(f"`{name}` must be finite numbers") from None


def as_image(picture: Image | UInt8Array) -> Image:
    """A uint8 array (H, W), (H, W, 1) or (H, W, 3) as a Pillow image; a Pillow image as it is."""
    from PIL import Image

    if isinstance(picture, Image.Image):
        return picture
    if not isinstance(picture, np.ndarray):
        raise TypeError(
            f"`picture` is {type(picture).__name__}; a Pillow image or a uint8 array is needed, "
            "and PIL.Image.open(path) reads a file"
        )
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[:, :, 0]
    if picture.dtype != np.uint8 or not (picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] == 3)):
        raise ValueError(
            f"`picture` (={picture.dtype} {picture.shape}) must be uint8 of shape (H, W) or (H, W, 1 or 3)"
        )
    return Image.fromarray(np.ascontiguousarray(picture))
