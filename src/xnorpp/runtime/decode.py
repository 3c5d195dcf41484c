"""Decoding a picture with Pillow: bytes to uint8 (H, W, C), resized and cropped in one step. No torch.

The crop of a resized picture is computed alone: Pillow's `resize(box=...)` takes the source region that the
crop comes from, and its filter still sees the pixels around that region. The box's corners are multiples of
1/256 of the picture's side, exact in floating point, so the result is that of "resize the whole, then crop":
bit for bit for nearly all sizes, within one grey level where Pillow takes the two directions in another
order. Training, testing and prediction all go through `fit`, so they agree exactly with each other.
"""

from __future__ import annotations

import functools
import io
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.errors import XnorppError
from xnorpp.runtime.format.preprocess import as_image

if TYPE_CHECKING:
    from PIL.Image import Image


UInt8Array = npt.NDArray[np.uint8]
_MODES = {1: "L", 3: "RGB"}
_ORIENTATION = 0x0112  # EXIF's tag; 1 is upright, 2 to 8 are turned or mirrored


class CorruptImageError(XnorppError, ValueError):
    """The bytes are not a picture that can be decoded."""


class Blob(NamedTuple):
    """Where an encoded picture lies.

    `size` bytes of `path` from `offset` on; `size` -1 means the whole file.
    """

    path: str
    offset: int = 0
    size: int = -1


def read_blob(blob: Blob) -> bytes:
    with open(blob.path, "rb", buffering=0) as file:
        if blob.size < 0:
            return file.read()
        file.seek(blob.offset)
        data = file.read(blob.size)
    if len(data) != blob.size:
        raise CorruptImageError(f"{len(data)} bytes where {blob.size} were expected")
    return data


def fit(image: Image, resize: int, crop: int, top: int, left: int, channels: int) -> UInt8Array:
    """Resize to `resize` x `resize`, then the `crop` x `crop` window at (`top`, `left`).

    Uint8 (crop, crop, channels).
    """
    from PIL import Image

    mode = _MODES[channels]
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Sixteen bits a pixel: Pillow's own conversion cuts all above 255 off, and the picture is white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode != mode:
        image = image.convert(mode)
    if image.size == (resize, resize):
        if crop != resize:
            image = image.crop((left, top, left + crop, top + crop))
    else:
        width, height = image.size
        box = (
            left * width / resize,
            top * height / resize,
            (left + crop) * width / resize,
            (top + crop) * height / resize,
        )
        image = image.resize((crop, crop), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(image)
    return pixels.reshape(crop, crop, channels)


def decode(
    data: bytes,
    resize: int,
    crop: int,
    top: int,
    left: int,
    channels: int,
    *,
    fast: bool = False,
    upright: bool = False,
) -> UInt8Array:
    """An encoded picture to uint8 (crop, crop, channels).

    `fast` lets the JPEG decoder itself halve (or quarter) a picture whose sides stay above 0.7 * `resize` by
    it: a quarter to a third quicker on the usual 500x375, at the price of some sharpness, because 250x188 is
    then stretched to 256x256. `upright` turns the picture as its EXIF orientation says: for pictures straight
    from a camera, not for data sets, whose networks saw the pixels as they are stored.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        if data[:6] == b"\x93NUMPY":
            return _cut(data, resize, crop, top, left, channels)
        image = Image.open(io.BytesIO(data))
        if fast and image.format == "JPEG":
            least = int(0.7 * resize)
            image.draft(_MODES[channels], (least, least))
        if upright:
            _turn(image)
        return fit(image, resize, crop, top, left, channels)
    except (MemoryError, KeyboardInterrupt):
        raise
    except UnidentifiedImageError as error:  # its own text names the buffer's address
        what = "no picture format that is known" if data else "the file is empty"
        raise CorruptImageError(f"UnidentifiedImageError: {what}") from error
    except (Image.DecompressionBombError, Exception) as error:
        raise CorruptImageError(f"{type(error).__name__}: {error}") from error


def _turn(image: Image) -> None:
    """Apply the EXIF orientation in place; a damaged EXIF block says nothing, and the pixels are good."""
    from PIL import ImageOps

    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow's parser raises nearly anything
        return
    if orientation != 1:
        ImageOps.exif_transpose(image, in_place=True)


def _cut(data: bytes, resize: int, crop: int, top: int, left: int, channels: int) -> UInt8Array:
    """The window of a raw `.npy` array, uint8 (H, W, C).

    Nothing to decode, and nothing to resize if it fits.
    """
    pixels = _array(data)
    if pixels.dtype == np.uint8 and pixels.shape == (resize, resize, channels):
        window: UInt8Array = pixels[top : top + crop, left : left + crop]
        return window
    return fit(as_image(pixels), resize, crop, top, left, channels)


def _array(data: bytes) -> npt.NDArray[Any]:
    """The array in the bytes of a `.npy` file, not copied.

    All pictures of a shard have the same header, and parsing it takes longer than cutting the window out.
    """
    start = 10 + int.from_bytes(data[8:10], "little")
    found = _plain_header(data[:start])
    if found is None or len(data) != start + math.prod(found):
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    return np.frombuffer(data, np.uint8, offset=start).reshape(found)


@functools.lru_cache(maxsize=64)
def _plain_header(header: bytes) -> tuple[int, ...] | None:
    """The shape, where the header is version 1's of a uint8 array in C order; None: numpy may read it."""
    file = io.BytesIO(header)
    if np.lib.format.read_magic(file) != (1, 0):
        return None
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return None if fortran or dtype != np.uint8 else tuple(shape)


def decode_blob(
    blob: Blob,
    resize: int,
    crop: int,
    top: int,
    left: int,
    channels: int,
    *,
    fast: bool = False,
    upright: bool = False,
) -> UInt8Array:
    """`decode` of a stored picture; a file that cannot be read counts as corrupt."""
    try:
        data = read_blob(blob)
    except OSError as error:
        what = {FileNotFoundError: "there is no such file", IsADirectoryError: "it is a folder"}
        raise CorruptImageError(what.get(type(error)) or error.strerror or str(error)) from error
    return decode(data, resize, crop, top, left, channels, fast=fast, upright=upright)
