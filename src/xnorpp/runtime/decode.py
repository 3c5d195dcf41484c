"""Reading an image: a file or bytes to pixels, with Pillow. No torch.

Only the formats in `FORMATS` are decoded: Pillow knows many more, some of which start other programs. Only
regular files are read: a FIFO would block forever, a device might never end.
"""

from __future__ import annotations

import functools
import io
import math
import os
import stat
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.errors import XnorppError
from xnorpp.runtime.format.pixels import MODES, as_image, fit

UInt8Array = npt.NDArray[np.uint8]

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "FORMATS",
    "Blob",
    "CorruptImageError",
    "decode",
    "decode_blob",
    "fit",
    "load_image",
    "read_blob",
]

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF")  # those that Pillow loads at once first
MAX_BYTES = 1 << 30  # of one encoded image
_ORIENTATION = 0x0112  # EXIF's tag; 1 is upright, 2 to 8 are turned or mirrored
# Not to wait for the other end of a FIFO; not to become a terminal's process. Windows has neither.
_OPEN = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
)


class CorruptImageError(XnorppError, ValueError):
    """The file or bytes are not an image that can be decoded; the message is why, in one sentence."""


class Blob(NamedTuple):
    """Where an encoded image is stored.

    `size` bytes of `path` from `offset` on; `size` -1 means the whole file.
    """

    path: str
    offset: int = 0
    size: int = -1


if TYPE_CHECKING:
    ImageSource: TypeAlias = (
        str | os.PathLike[str] | Blob | bytes | bytearray | memoryview | IO[bytes] | Image | UInt8Array
    )


def read_blob(blob: Blob) -> bytes:
    """The bytes of a stored image."""
    handle = os.open(blob.path, _OPEN)
    with open(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(found.st_mode):
            raise CorruptImageError("it is not a regular file")
        if blob.size < 0:
            _check_bytes(found.st_size)
            return file.read()
        file.seek(blob.offset)
        data = file.read(blob.size)
    if len(data) != blob.size:
        raise CorruptImageError(f"{len(data)} bytes where {blob.size} were expected")
    return data


def load_image(source: ImageSource, *, upright: bool = True) -> Image:
    """The image that a caller means, decoded.

    Args:
        source: A path, a `Blob`, the bytes of an image file (or of a `.npy` file), a binary file object, a
            Pillow image, or a uint8 array (H, W) or (H, W, 1 to 4).
        upright: Turn the image as its EXIF orientation demands. A Pillow image is not changed; what is turned
            is a copy.

    Raises:
        CorruptImageError: It cannot be read or decoded.
        TypeError, ValueError: It is none of these.
    """
    if isinstance(source, (str, os.PathLike)):
        source = Blob(os.fspath(source))
    if isinstance(source, Blob):
        return _opened(_read(source), upright)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _opened(bytes(source), upright)
    if hasattr(source, "read"):
        return _opened(_read_file(source), upright)
    if not isinstance(source, np.ndarray) and not hasattr(source, "getexif"):
        raise TypeError(
            f"`image` is {type(source).__name__}; a path, bytes, a binary file, a Pillow image or a uint8 "
            "array of shape (H, W) or (H, W, C) is needed"
        )
    return _loaded(as_image(source), upright)


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
    """An encoded image to the window of its squashed pixels, uint8 (crop, crop, channels).

    `fast` lets the JPEG decoder itself halve (or quarter) an image whose sides stay above 0.7 * `resize` by
    it: a quarter to a third quicker on the usual 500x375, at the price of some sharpness, because 250x188 is
    then stretched to 256x256. `upright` turns the image as its EXIF orientation demands: for images straight
    from a camera, not for data sets, whose networks saw the pixels as they are stored.
    """
    if not data:
        raise CorruptImageError("the file is empty")
    try:
        if data[:6] == b"\x93NUMPY":
            return _cut(data, resize, crop, top, left, channels)
        image = _open(data)
        if fast and image.format == "JPEG":
            least = int(0.7 * resize)
            image.draft(MODES[channels], (least, least))
        if upright:
            image = _turned(image)
        return fit(image, resize, crop, top, left, channels)
    except (MemoryError, CorruptImageError):
        raise
    except Exception as error:
        raise _corrupt(error) from error


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
    """`decode` of a stored image; a file that cannot be read counts as corrupt."""
    data = _read(blob)
    return decode(data, resize, crop, top, left, channels, fast=fast, upright=upright)


def _open(data: bytes) -> Image:
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=FORMATS)


def _opened(data: bytes, upright: bool) -> Image:
    if not data:
        raise CorruptImageError("the file is empty")
    try:
        image = as_image(_array(data)) if data[:6] == b"\x93NUMPY" else _open(data)
    except MemoryError:
        raise
    except Exception as error:
        raise _corrupt(error) from error
    return _loaded(image, upright)


def _loaded(image: Image, upright: bool) -> Image:
    """Pillow decodes when the pixels are needed: now, so that a damaged image is found here."""
    try:
        image.load()
        return _turned(image) if upright else image
    except MemoryError:
        raise
    except Exception as error:
        raise _corrupt(error) from error


def _corrupt(error: Exception) -> CorruptImageError:
    """Anything that Pillow raises, as one sentence."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):  # its own text has the buffer's address
        return CorruptImageError(f"not a recognised image format; those are {', '.join(FORMATS)}")
    if type(error) in (OSError, SyntaxError, ValueError) and str(error):  # Pillow's own words suffice
        return CorruptImageError(str(error))
    return CorruptImageError(f"{type(error).__name__}: {error}")


def _read(blob: Blob) -> bytes:
    try:
        return read_blob(blob)
    except OSError as error:
        reasons = {FileNotFoundError: "there is no such file", IsADirectoryError: "it is a folder"}
        raise CorruptImageError(reasons.get(type(error)) or error.strerror or str(error)) from error


def _read_file(file: Any) -> bytes:
    data = file.read(MAX_BYTES + 1)
    if not isinstance(data, bytes):
        raise TypeError(f"`image` is a file of {type(data).__name__}; one opened in binary mode is needed")
    _check_bytes(len(data))
    return data


def _check_bytes(count: int) -> None:
    if count > MAX_BYTES:
        raise CorruptImageError(f"it has more than {MAX_BYTES:,} bytes")


def _turned(image: Image) -> Image:
    """Upright as the EXIF orientation demands; a damaged EXIF block is ignored, and the pixels are good."""
    from PIL import ImageOps

    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow's parser raises nearly anything
        return image
    if orientation == 1:
        return image
    turned = ImageOps.exif_transpose(image)
    turned.format = image.format  # shows whether there are sixteen bits per pixel
    return turned


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

    All images of a shard have the same header, and parsing it takes longer than cutting the window out.
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
