"""Pixels with Pillow: arrays as images, colour modes, and the window of a squashed image. No torch.

The crop of a squashed image is computed alone: Pillow's `resize(box=...)` takes the source region that the
crop comes from, and its filter still sees the pixels around that region. The box's corners are multiples of
1/256 of the image's side, exact in floating point, so the result is that of "resize the whole, then crop":
bit for bit for nearly all sizes, within one grey level where Pillow takes the two directions in another
order. Training, testing and prediction of the data sets all go through `fit`, so they agree exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MODES", "as_image", "fit", "resampling", "to_mode"]

UInt8Array = npt.NDArray[np.uint8]

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's colour mode, by the number of channels


def as_image(image: Image | UInt8Array) -> Image:
    """A uint8 array (H, W) or (H, W, 1 to 4) as a Pillow image; a Pillow image as it is."""
    from PIL import Image

    if isinstance(image, Image.Image):
        return image
    if not isinstance(image, np.ndarray):
        raise TypeError(
            f"`image` is {type(image).__name__}; a Pillow image or a uint8 array is needed, "
            "and PIL.Image.open(path) reads a file"
        )
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    planes = image.shape[2] if image.ndim == 3 else 1
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or planes not in MODES or not image.size:
        raise ValueError(
            f"`image` (={image.dtype} {image.shape}) must be uint8 of shape (H, W) or (H, W, 1 to 4)"
        )
    return Image.fromarray(np.ascontiguousarray(image))


def to_mode(image: Image, channels: int) -> Image:
    """The image in the colour mode for this number of channels: grey, grey and alpha, RGB, or RGBA."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Sixteen bits per pixel: Pillow's own conversion clips everything above 255, and the image is white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def resampling(name: str) -> Any:
    """Pillow's filter of that name: nearest, bilinear, bicubic or lanczos."""
    from PIL import Image

    return Image.Resampling[name.upper()]


def fit(
    image: Image,
    resize: int,
    crop: int | tuple[int, int],
    top: int,
    left: int,
    channels: int,
    interpolation: str = "bilinear",
) -> UInt8Array:
    """Squash to `resize` x `resize`, then take the window of size `crop` at (`top`, `left`).

    Returns:
        uint8 (height of the crop, its width, channels).
    """
    image = to_mode(image, channels)
    rows, columns = (crop, crop) if isinstance(crop, int) else crop
    if image.size == (resize, resize):
        if (rows, columns) != (resize, resize):
            image = image.crop((left, top, left + columns, top + rows))
    else:
        width, height = image.size
        box = (
            left * width / resize,
            top * height / resize,
            (left + columns) * width / resize,
            (top + rows) * height / resize,
        )
        image = image.resize((columns, rows), resampling(interpolation), box=box)
    return np.asarray(image).reshape(rows, columns, channels)
