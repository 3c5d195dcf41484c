"""What a user's data may hold: Pillow images, numpy arrays or torch tensors, and whole numbers as labels.

Everything is turned into numpy arrays here, with the channels first; nothing imports torch.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.data.dataset import DatasetError, Int64Array

Array = npt.NDArray[Any]
MAX_CHANNELS = 4
_ALLOWED = "a Pillow image, or a uint8 or float array or tensor of shape (H, W), (H, W, C) or (C, H, W)"


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


def as_array(value: Any) -> Array:
    """A tensor or array as a numpy array; half precision becomes float32, which numpy can hold."""
    if is_tensor(value):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.float()
        return np.asarray(value.numpy())
    return np.asarray(value)


def channels_last(shape: tuple[int, ...], *, tensor: bool) -> bool:
    """Whether an image of this shape is (H, W, C) rather than (C, H, W).

    The axis of one to four entries is the channels'. Where both the first and the last could be, a tensor has
    them first and an array last, as torch and Pillow do.
    """
    first, last = (1 <= shape[axis] <= MAX_CHANNELS for axis in (0, -1))
    return last and not (first and tensor)


def read_image(image: Any, where: str) -> Array:
    """One image as uint8 or float32, channels first; float data of another rank than 3 stays as it is.

    Args:
        image: A Pillow image, a numpy array or a torch tensor.
        where: What the error message names, such as "sample 3 of `train_data`".

    Raises:
        DatasetError: It is none of these, or has a type or shape that no image has.
    """
    if hasattr(image, "getbands"):  # Pillow
        image = _pillow(image)
        return np.ascontiguousarray(image.transpose(2, 0, 1))
    tensor = is_tensor(image)
    if not tensor and not isinstance(image, np.ndarray):
        raise DatasetError(f"{where} is {type(image).__name__}; it must be {_ALLOWED}")
    pixels = as_array(image)
    if pixels.dtype != np.uint8:
        if not np.issubdtype(pixels.dtype, np.floating):
            raise DatasetError(f"{where} is of type {pixels.dtype}; it must be {_ALLOWED}")
        pixels = pixels.astype(np.float32, copy=False)
        if pixels.ndim != 3:
            return pixels
    elif pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise DatasetError(f"{where} has the shape {pixels.shape}; it must be {_ALLOWED}")
    if channels_last(pixels.shape, tensor=tensor):
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if pixels.dtype == np.uint8 and pixels.shape[0] > MAX_CHANNELS:
        raise DatasetError(f"{where} has the shape {pixels.shape}; it must be {_ALLOWED}, with C from 1 to 4")
    return pixels


def _pillow(image: Any) -> Array:
    """(H, W, C): grey and RGB as they are, floats as float32, everything else as RGB."""
    if image.mode not in ("L", "RGB", "F"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def read_label(label: Any, where: str) -> int:
    """A label as an int: a Python or numpy integer, or a tensor or array with one whole number."""
    if is_tensor(label) or isinstance(label, np.ndarray):
        values = as_array(label)
        if values.size == 1 and np.issubdtype(values.dtype, np.integer):
            return int(values.reshape(()))
        raise DatasetError(
            f"the label of {where} is {values.dtype} of shape {values.shape}; it must be one whole number, "
            "the class's index"
        )
    try:
        return operator.index(label)
    except TypeError:
        raise DatasetError(
            f"the label of {where} is {label!r}; it must be a whole number, the class's index"
        ) from None


def read_sample(sample: Any, where: str) -> tuple[Array, int]:
    """An (image, label) pair as an array, channels first, and an int.

    Raises:
        DatasetError: The sample is no such pair; a dictionary is named as what it is.
    """
    if isinstance(sample, dict):
        keys = ", ".join(repr(key) for key in list(sample)[:4])
        raise DatasetError(
            f"{where} is a dictionary ({keys}); it must be a pair (image, label), so return "
            "`sample['image'], sample['label']` or what yours are called"
        )
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        size = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
        raise DatasetError(f"{where} is {type(sample).__name__}{size}; it must be a pair (image, label)")
    return read_image(sample[0], where), read_label(sample[1], where)


def stack(samples: list[tuple[Array, int]], indices: list[int], where: str) -> tuple[Array, Int64Array]:
    """Samples as one batch of images and labels.

    Raises:
        DatasetError: Two images differ in shape or type.
    """
    first = samples[0][0]
    for index, (image, _) in zip(indices, samples):
        if image.shape != first.shape or image.dtype != first.dtype:
            raise DatasetError(
                f"sample {index} of {where} has the shape {image.shape} ({image.dtype}) and sample "
                f"{indices[0]} {first.shape} ({first.dtype}); all images must be alike, so resize or crop "
                "them to one size"
            )
    return np.stack([image for image, _ in samples]), np.array([label for _, label in samples], np.int64)


def read_images(images: Any, where: str) -> Array:
    """A whole array of images, the first axis counting them: uint8 (N, H, W, C), or float32, channels first.

    Raises:
        DatasetError: It is not an array of images.
    """
    tensor = is_tensor(images)
    values = as_array(images)
    if values.dtype == np.uint8:
        if values.ndim == 3:
            return values[:, :, :, None]
        if values.ndim == 4 and channels_last(values.shape[1:], tensor=tensor):
            return values
        if values.ndim == 4 and 1 <= values.shape[1] <= MAX_CHANNELS:
            return np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    elif np.issubdtype(values.dtype, np.floating) and values.ndim >= 2:
        values = values.astype(np.float32, copy=False)
        if values.ndim == 4 and channels_last(values.shape[1:], tensor=tensor):
            return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        return values
    raise DatasetError(
        f"the images of {where} are {values.dtype} of shape {values.shape}; they must be uint8 of shape "
        "(N, H, W), (N, H, W, C) or (N, C, H, W) with C from 1 to 4, or float"
    )


def read_labels(labels: Any, count: int, where: str) -> Int64Array:
    """All labels of a data set as int64 (N,).

    Raises:
        DatasetError: They are not `count` whole numbers from 0 on.
    """
    values = as_array(labels)
    if values.shape == (count, 1):
        values = values[:, 0]
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer):
        raise DatasetError(
            f"the labels of {where} are {values.dtype} of shape {values.shape}; they must be {count} whole "
            "numbers, one class index for each image"
        )
    if count and values.min() < 0:
        raise DatasetError(f"the labels of {where} start at {values.min()}; they must start at 0")
    return values.astype(np.int64)
