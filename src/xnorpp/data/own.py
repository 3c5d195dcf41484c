"""A user's own data: arrays, anything indexable (a torch `Dataset`), a `DataLoader`, or a folder of images.

`as_dataset` turns each into a data set that `make_loader` knows. Torch is recognised where it is loaded and
never imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.data.dataset import (
    NO_AUGMENT,
    ArrayDataset,
    Dataset,
    DatasetError,
    DatasetInfo,
    Int64Array,
    StreamDataset,
)
from xnorpp.data.formats.shard_card import MAX_CLASSES
from xnorpp.data.samples import as_array, is_tensor, read_images, read_labels, read_sample, stack

OWN = "own"
"""The name of data that was given as an object, in recipes and checkpoints."""


@dataclass
class IndexedDataset:
    """Anything with a length whose entries are (image, label) pairs, such as a map-style torch `Dataset`.

    `shape` and `pixels` (whether images are uint8) are those of the first sample. `indices` chooses some of
    the items; `labels` are known without reading the images, or None; `numbers` renumbers the classes;
    `limit` is the number of outputs that labels must stay below.

    Example:
        >>> import numpy as np
        >>> from xnorpp.data import as_dataset
        >>> samples = [(np.zeros((8, 8, 1), np.uint8), 0), (np.ones((8, 8, 1), np.uint8), 1)]
        >>> data = as_dataset(samples, classes=["dark", "bright"])
        >>> type(data).__name__, len(data), data.shape
        ('IndexedDataset', 2, (1, 8, 8))
    """

    info: DatasetInfo
    split: str
    classes: tuple[str, ...]
    items: Any
    shape: tuple[int, ...]
    pixels: bool
    labels: Int64Array | None = None
    indices: Int64Array | None = None
    numbers: Int64Array | None = None
    limit: int | None = None

    def __len__(self) -> int:
        return len(self.items) if self.indices is None else len(self.indices)

    @property
    def name(self) -> str:
        return self.info.name

    def where(self) -> str:
        """How messages name it."""
        return f"`{self.split}_data`" if self.name == OWN else f"data set {self.name!r}"

    def subset(self, indices: Int64Array) -> IndexedDataset:
        chosen = indices if self.indices is None else self.indices[indices]
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, indices=chosen, labels=labels)

    def renumbered(self, numbers: Int64Array, classes: tuple[str, ...]) -> IndexedDataset:
        """Class i becomes class `numbers[i]` of `classes`."""
        known = None if self.labels is None else numbers[self.labels]
        return replace(self, numbers=numbers, classes=classes, labels=known)


@dataclass
class BatchesDataset:
    """An opaque source of batches, such as a torch `DataLoader`: only its own iteration gives its samples.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from xnorpp.data import as_dataset
        >>> samples = TensorDataset(torch.zeros(6, 1, 8, 8), torch.tensor([0, 1, 0, 1, 0, 1]))
        >>> data = as_dataset(DataLoader(samples, batch_size=2), classes=["dark", "bright"])
        >>> type(data).__name__, len(data)
        ('BatchesDataset', 6)
    """

    info: DatasetInfo
    split: str
    classes: tuple[str, ...]
    batches: Any
    batch_size: int
    shape: tuple[int, ...]
    pixels: bool
    labels: None = None
    limit: int | None = None

    def __len__(self) -> int:
        samples = getattr(self.batches, "dataset", None)
        with contextlib.suppress(TypeError):
            return len(samples)  # type: ignore[arg-type]
        return len(self.batches) * self.batch_size

    @property
    def name(self) -> str:
        return self.info.name

    def where(self) -> str:
        """How messages name it."""
        return f"`{self.split}_data`" if self.name == OWN else f"data set {self.name!r}"

    def subset(self, indices: Int64Array) -> BatchesDataset:
        raise DatasetError(
            f"{self.where()} is a {type(self.batches).__name__}, of which no part can be taken; give the "
            "data set itself instead of a loader of it"
        )


AnyDataset = Dataset | IndexedDataset | BatchesDataset


def as_dataset(
    data: Any,
    *,
    split: str = "test",
    classes: Sequence[str] | None = None,
    name: str = OWN,
    argument: str | None = None,
) -> AnyDataset:
    """Your own data as a data set of this package.

    Args:
        data: A pair (images, labels) of numpy arrays or torch tensors; anything with `__len__` and
            `__getitem__` whose entries are (image, label), such as a map-style torch `Dataset`; a torch
            `DataLoader` or another sized iterable of batches; or a data set of this package, which is
            returned as it is.
        split: "train" or "test".
        classes: The names of the classes; None: what the data itself has as `classes`.
        name: The name that the card gets.
        argument: What messages name it; None: `train_data` or `test_data`.

    Raises:
        TypeError: The data is none of these.
        DatasetError: It is, but what it holds cannot be used.

    Example:
        >>> import numpy as np
        >>> from xnorpp.data import as_dataset
        >>> images = np.zeros((4, 8, 8, 3), np.uint8)
        >>> as_dataset((images, np.array([0, 1, 0, 1])), classes=["cat", "dog"]).classes
        ('cat', 'dog')
    """
    where = argument or f"`{split}_data`"
    if isinstance(data, (ArrayDataset, StreamDataset, IndexedDataset, BatchesDataset)):
        return data
    if isinstance(data, dict):
        raise TypeError(f"{where} is a dictionary; give a pair (images, labels) or a data set")
    if _is_pair(data):
        return _from_arrays(data[0], data[1], split, classes, name, where)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.utils.data.IterableDataset):
        raise TypeError(
            f"{where} is the IterableDataset {type(data).__name__}; give a DataLoader of it, with a length"
        )
    sized = hasattr(data, "__len__") and not isinstance(data, (str, bytes))
    if sized and hasattr(data, "__getitem__"):
        return _from_items(data, split, classes, name, where)
    if hasattr(data, "__iter__") and not isinstance(data, (str, bytes)):
        return _from_batches(data, split, classes, name, where)
    raise TypeError(
        f"{where} is {type(data).__name__}; give a torch Dataset or DataLoader, a pair of arrays (images, "
        "labels), or the path of a folder"
    )


def _is_pair(data: Any) -> bool:
    """Whether `data` is (images, labels): two arrays, the first of which has more axes than one."""
    return (
        isinstance(data, (tuple, list))
        and len(data) == 2
        and all(is_tensor(part) or isinstance(part, np.ndarray) for part in data)
        and data[0].ndim >= 2
    )


def _from_arrays(
    images: Any, labels: Any, split: str, classes: Sequence[str] | None, name: str, where: str
) -> AnyDataset:
    pixels = read_images(images, where)
    numbers = read_labels(labels, len(pixels), where)
    if not len(pixels):
        raise DatasetError(f"{where} has no images")
    names = _names(classes, int(numbers.max()) + 1, where)
    if pixels.dtype == np.uint8:
        height, width, channels = pixels.shape[1:]
        info = own_info(name, len(names), (channels, height, width), len(numbers), split)
        return ArrayDataset(info, split, names, pixels, numbers)
    shape = pixels.shape[1:]
    info = own_info(name, len(names), shape, len(numbers), split)
    return IndexedDataset(info, split, names, _Pairs(pixels, numbers), shape, False, numbers)


class _Pairs:
    """Arrays of images and labels as something indexable."""

    def __init__(self, images: Any, labels: Int64Array) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.images[index], int(self.labels[index])


def _from_items(
    items: Any, split: str, classes: Sequence[str] | None, name: str, where: str
) -> IndexedDataset:
    if not len(items):
        raise DatasetError(f"{where} has no samples")
    with own_random_state():
        seed_sample(0, 0, 0)
        image, _ = read_sample(items[0], f"sample 0 of {where}")
    labels = known_labels(items)
    named = classes if classes is not None else _attribute(items, "classes")
    names: tuple[str, ...] = ()
    if named is not None or labels is not None:
        names = _names(named, 0 if labels is None else int(labels.max()) + 1, where)
    info = own_info(name, len(names), image.shape, len(items), split)
    return IndexedDataset(info, split, names, items, image.shape, image.dtype == np.uint8, labels)


def _from_batches(
    batches: Any, split: str, classes: Sequence[str] | None, name: str, where: str
) -> BatchesDataset:
    try:
        count = len(batches)
    except TypeError:
        raise DatasetError(
            f"{where} is {type(batches).__name__} without a length; the schedule needs the number of batches "
            "of an epoch, so give it a `__len__`, or give the data set itself"
        ) from None
    with own_random_state():
        first = next(iter(batches), None)
    if not count or first is None:
        raise DatasetError(f"{where} has no batches")
    images, labels = read_batch(first, where)
    named = classes if classes is not None else _attribute(getattr(batches, "dataset", None), "classes")
    names = () if named is None else _names(named, 0, where)
    size = len(labels) if getattr(batches, "batch_size", None) is None else int(batches.batch_size)
    shape = tuple(images.shape[1:])
    pixels = str(images.dtype).endswith("uint8")
    if pixels:
        channels_first = read_images(images[:1], where).transpose(0, 3, 1, 2)
        shape = channels_first.shape[1:]
    info = own_info(name, len(names), shape, count * size, split)
    return BatchesDataset(info, split, names, batches, size, shape, pixels)


def read_batch(batch: Any, where: str) -> tuple[Any, Any]:
    """The images and labels of one batch of a loader, as they are.

    Raises:
        DatasetError: The batch is not a pair of arrays or tensors with as many labels as images.
    """
    if isinstance(batch, dict):
        keys = ", ".join(repr(key) for key in list(batch)[:4])
        raise DatasetError(
            f"a batch of {where} is a dictionary ({keys}); it must be a pair (images, labels), which a "
            "`collate_fn` can make of it"
        )
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise DatasetError(
            f"a batch of {where} is {type(batch).__name__}; it must be a pair (images, labels)"
        )
    images, labels = batch
    for part, what in ((images, "images"), (labels, "labels")):
        if not is_tensor(part) and not isinstance(part, np.ndarray):
            raise DatasetError(
                f"the {what} of a batch of {where} are {type(part).__name__}; they must be a tensor"
            )
    if labels.ndim != 1 or len(labels) != len(images):
        raise DatasetError(
            f"a batch of {where} has images of shape {tuple(images.shape)} and labels of shape "
            f"{tuple(labels.shape)}; there must be one class index for each image"
        )
    return images, labels


def own_info(name: str, classes: int, shape: tuple[int, ...], samples: int, split: str) -> DatasetInfo:
    """The card of a user's data: no augmentation, and no normalisation but the division by 255.

    `image_size` is 0 where the images are not square.
    """
    square = len(shape) == 3 and shape[1] == shape[2]
    channels = shape[0] if shape else 1
    return DatasetInfo(
        name=name,
        classes=classes,
        channels=channels,
        image_size=shape[1] if square else 0,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        train_size=samples if split == "train" else 0,
        test_size=samples if split == "test" else 0,
        default_augment=NO_AUGMENT,
        how_to_get="it was given as an object",
    )


def known_labels(items: Any) -> Int64Array | None:
    """All labels of an indexable data set, where it has them as `targets` or `labels` (torchvision's), in its
    last tensor (`TensorDataset`), or inside (`Subset`); None where only reading every sample would show them.
    """
    inner, chosen = getattr(items, "dataset", None), getattr(items, "indices", None)
    if inner is not None and chosen is not None:
        inside = known_labels(inner)
        return None if inside is None else inside[np.asarray(chosen, np.int64)]
    tensors = getattr(items, "tensors", None)
    candidates = [getattr(items, "targets", None), getattr(items, "labels", None)]
    if isinstance(tensors, tuple) and tensors:
        candidates.append(tensors[-1])
    for values in candidates:
        if values is None or callable(values):
            continue
        with contextlib.suppress(ValueError, TypeError):
            found = as_array(values)
            if found.shape == (len(items),) and np.issubdtype(found.dtype, np.integer) and found.min() >= 0:
                return found.astype(np.int64)
    return None


def _attribute(items: Any, name: str) -> Any:
    """An attribute of a data set, or of the one inside it."""
    while items is not None:
        found = getattr(items, name, None)
        if isinstance(found, (list, tuple)):
            return found
        items = getattr(items, "dataset", None)
    return None


def _names(classes: Sequence[str] | None, least: int, where: str) -> tuple[str, ...]:
    """The class names; numbers where there are none."""
    if least > MAX_CLASSES:
        raise DatasetError(
            f"the largest label of {where} is {least - 1}; labels are class indices from 0, at most "
            f"{MAX_CLASSES - 1}"
        )
    if classes is None:
        return tuple(str(number) for number in range(least))
    if isinstance(classes, str) or not isinstance(classes, Sequence) or len(classes) < least:
        raise DatasetError(
            f"`classes` (={classes!r}) must be a list of at least {least} names: the largest label of "
            f"{where} is {least - 1}"
        )
    return tuple(str(name) for name in classes)


def as_images(dataset: AnyDataset) -> Dataset:
    """A data set whose images are uint8, as what packed models are evaluated on and shards are written from.

    Raises:
        DatasetError: Its images are float, or it is a loader.
    """
    if isinstance(dataset, (ArrayDataset, StreamDataset)):
        return dataset
    if isinstance(dataset, BatchesDataset) or not dataset.pixels:
        raise DatasetError(
            f"data set {dataset.name!r} must give single uint8 images here, and gives "
            + ("batches" if isinstance(dataset, BatchesDataset) else "float ones")
        )
    indices = list(range(len(dataset)) if dataset.indices is None else map(int, dataset.indices))
    with own_random_state():
        samples = [_seeded(dataset, index) for index in indices]
    images, labels = stack(samples, indices, dataset.where())
    if dataset.numbers is not None:
        labels = dataset.numbers[labels]
    names = dataset.classes or tuple(str(number) for number in range(int(labels.max()) + 1))
    pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return ArrayDataset(dataset.info, dataset.split, names, pixels, labels)


def _seeded(dataset: IndexedDataset, index: int) -> tuple[Any, int]:
    seed_sample(0, 0, index)
    return read_sample(dataset.items[index], f"sample {index} of {dataset.where()}")


def seed_sample(seed: int, *what: Any) -> None:
    """Seeds `random`, numpy's and torch's global generators (on the CPU) for one sample or epoch."""
    number = int.from_bytes(hashlib.sha256(repr((seed, *what)).encode()).digest()[:8], "little")
    random.seed(number)
    # Users' transforms draw from numpy's old global generator.
    np.random.seed(number % (1 << 32))  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.random.default_generator.manual_seed(number >> 1)


@contextlib.contextmanager
def own_random_state() -> Iterator[None]:
    """Leaves the global generators as they were: reading data must not change what a program draws next."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch_before = None if torch is None else torch.random.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if torch is not None and torch_before is not None:
            torch.random.default_generator.set_state(torch_before)


def is_path(data: Any) -> bool:
    """Whether data was given as the path of a folder."""
    return isinstance(data, (str, Path, os.PathLike))
