"""What a data set is: its card (`DatasetInfo`), and its samples, whole in memory or streamed from files.

Nothing here imports torch, so that an image can be read and prepared on a machine that only runs packed
models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.decode import Blob
from xnorpp.runtime.errors import XnorppError
from xnorpp.runtime.format.preprocess import Preprocess

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


class DatasetError(XnorppError, ValueError):
    """The data set cannot be used as it is; the message gives the reason in one sentence.

    Example:
        >>> import numpy as np
        >>> from xnorpp.data import DatasetError, as_dataset
        >>> try:
        ...     as_dataset((np.zeros((2, 8, 8, 1), np.uint8), np.array([0, -1])))
        ... except DatasetError as error:
        ...     print(type(error).__name__)
        DatasetError
    """


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """The data set was not found; the message explains how to get it.

    Example:
        >>> from xnorpp.data import DatasetNotFoundError, load_dataset
        >>> try:
        ...     load_dataset("cifar10", root="no-such-folder")
        ... except DatasetNotFoundError as error:
        ...     print("no-such-folder" in str(error))
        True
    """


@dataclass(frozen=True)
class Augment:
    """Training-time augmentation; 0 switches an item off.

    Attributes:
        crop: Random crop. Of an in-memory set the image is padded by `pad` black pixels on each side first;
            of a streamed set the crop is taken from the resized image and `pad` is not used.
        pad: See `crop`.
        flip: Mirror left-right, half of the time.
        area: Random resized crop: a part of the image with at least this share of its area and an aspect
            ratio from 3/4 to 4/3, enlarged to the whole. It takes the place of an in-memory set's crop.
        side: With `area`: the side in pixels to which that part is scaled; 0: the image's own. A network that
            takes any size then trains on smaller images than it is tested on, which is faster and shows
            objects as large as in a whole image.
        operations: RandAugment: the number of operations per image, drawn from rotation, shear, translation,
            brightness, contrast, saturation, posterisation and solarisation.
        magnitude: How strong they are at most, from 0 to 1.
        cutout: The side in pixels of a square that is set to the mean colour, anywhere in the image.
        mixup: The parameter of the Beta distribution by which an image and its label are mixed with its
            neighbour's in the batch.

    Example:
        >>> from xnorpp.data import Augment
        >>> Augment(pad=2, flip=False, cutout=8).plain == Augment(pad=2, flip=False)
        True
    """

    crop: bool = True
    pad: int = 4
    flip: bool = True
    area: float = 0.0
    operations: int = 0
    magnitude: float = 0.5
    cutout: int = 0
    mixup: float = 0.0
    side: int = 0

    def __post_init__(self) -> None:
        whole = ("pad", "operations", "cutout", "side")
        for name, high in {"pad": None, "area": 1, "operations": 10, "magnitude": 1, "cutout": None,
                           "mixup": None, "side": None}.items():  # fmt: skip
            value = getattr(self, name)
            kinds = (int,) if name in whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                word = "a whole number" if name in whole else "a number"
                raise ValueError(f"`{name}` (={value!r}) must be {word}")
            if not value >= 0:
                raise ValueError(f"`{name}` (={value}) must be at least 0")
            if high is not None and value > high:
                raise ValueError(f"`{name}` (={value}) must be at most {high}")
        if self.side and not self.area:
            raise ValueError(f"`side` (={self.side}) is that of random resized crops and needs `area`")

    @property
    def plain(self) -> Augment:
        """The crop and the flip alone, without what makes an image look unlike those of the test set."""
        return Augment(self.crop, self.pad, self.flip)

    @property
    def views(self) -> int:
        """How many crops and flips an image of an in-memory set has; 0 where it is changed otherwise too."""
        side = 2 * self.pad + 1 if self.crop else 1
        return side * side * (2 if self.flip else 1) if self == self.plain else 0

    @classmethod
    def parse(cls, value: Augment | Mapping[str, Any] | str | None, default: Augment) -> Augment:
        """None means the data set's default, "none" no augmentation, a mapping the default with some fields
        changed.
        """
        if value is None:
            return default
        if isinstance(value, Augment):
            return value
        names = [entry.name for entry in fields(cls)]
        if isinstance(value, str):
            if value != "none":
                raise ValueError(
                    f'`augment` (="{value}") must be "none", an Augment, or a table of {", ".join(names)}'
                )
            return NO_AUGMENT
        unknown = sorted(set(value) - set(names))
        if unknown:
            raise ValueError(f'`augment` has no field "{unknown[0]}"; its fields are {", ".join(names)}')
        return replace(default, **value)


NO_AUGMENT = Augment(crop=False, pad=0, flip=False)


@dataclass(frozen=True)
class DatasetInfo:
    """The card of a data set.

    `image_size` is the side a network is fed; `resize` the side streamed images get first.

    Example:
        >>> from xnorpp.data import dataset_info
        >>> info = dataset_info("imagenet")
        >>> info.classes, info.image_size, info.resize
        (1000, 224, 256)
        >>> info.preprocess().crop
        224
    """

    name: str
    classes: int
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_size: int
    test_size: int
    default_augment: Augment
    how_to_get: str
    resize: int | None = None

    def resize_for(self, size: int) -> int:
        """The side to resize to before a crop of `size`.

        The paper's 256 for 224 and 227, the same margin elsewhere.
        """
        if self.resize is None:
            return size
        if self.image_size <= size <= self.resize:
            return self.resize
        return round(size * self.resize / self.image_size)

    def following(self, preprocess: Preprocess) -> DatasetInfo:
        """The card with the normalisation that a model was trained with, and with its sizes where the images
        are squares.
        """
        card = replace(self, mean=preprocess.mean, std=preprocess.std)
        resize, crop = preprocess.resize, preprocess.crop
        if not isinstance(resize, int) or not isinstance(crop, int) or preprocess.aspect != "squash":
            return card
        return replace(card, image_size=crop, resize=None if resize == crop else resize)

    def preprocess(self, size: int | None = None) -> Preprocess:
        """What testing does to an image: resize (not keeping the aspect), centre crop, normalise."""
        side = self.image_size if size is None else size
        return Preprocess(
            resize=self.resize_for(side), crop=side, mean=self.mean, std=self.std, channels=self.channels
        )


class Skipped(NamedTuple):
    """An image that could not be read, and why.

    Example:
        >>> from xnorpp.data import Skipped
        >>> Skipped("train/cat/17.jpg", "image file is truncated").name
        'train/cat/17.jpg'
    """

    name: str
    reason: str


def skip_limit(samples: int, max_skipped: int | None = None) -> int:
    """How many unreadable images are tolerated.

    `max_skipped`, by default 1 % of the set, at least 1, at most 100.
    """
    if max_skipped is None:
        return max(1, min(100, samples // 100))
    if max_skipped < 0:
        raise ValueError(f"`max_skipped` (={max_skipped}) must be at least 0")
    return max_skipped


@dataclass
class ArrayDataset:
    """A small set, whole in memory: `images` uint8 (N, H, W, C), `labels` int64 (N,).

    Example:
        >>> from xnorpp.data import load_dataset
        >>> digits = load_dataset("digits", split="test")
        >>> type(digits).__name__, digits.images.shape, digits.labels.dtype
        ('ArrayDataset', (359, 8, 8, 1), dtype('int64'))
    """

    info: DatasetInfo
    split: str
    classes: tuple[str, ...]
    images: UInt8Array
    labels: Int64Array
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"`images` (={self.images.dtype} {self.images.shape}) must be uint8 of shape (N, H, W, C)"
            )
        _check_labels(self.labels, len(self.images), len(self.classes))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def name(self) -> str:
        return self.info.name

    def subset(self, indices: Int64Array) -> ArrayDataset:
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def renumbered(self, numbers: Int64Array, classes: tuple[str, ...]) -> ArrayDataset:
        """Class i becomes class `numbers[i]` of `classes`."""
        return replace(self, labels=numbers[self.labels], classes=classes)


@dataclass
class StreamDataset:
    """A set too large for memory: images are read and decoded when they are needed.

    `groups` (None, or one integer per sample) states which samples lie together in one file; the loader then
    shuffles groups, and samples within a few groups, instead of all samples, so that reading stays nearly
    sequential.

    Example:
        >>> from xnorpp.data import FolderDataset, ShardDataset, StreamDataset
        >>> issubclass(FolderDataset, StreamDataset), issubclass(ShardDataset, StreamDataset)
        (True, True)
    """

    info: DatasetInfo
    split: str
    classes: tuple[str, ...]
    labels: Int64Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def groups(self) -> Int64Array | None:
        return None

    def blob(self, index: int) -> Blob:
        raise NotImplementedError

    def sample_name(self, index: int) -> str:
        raise NotImplementedError

    def subset(self, indices: Int64Array) -> StreamDataset:
        raise NotImplementedError

    def renumbered(self, numbers: Int64Array, classes: tuple[str, ...]) -> StreamDataset:
        """Class i becomes class `numbers[i]` of `classes`."""
        return replace(self, labels=numbers[self.labels], classes=classes)


@dataclass
class FolderDataset(StreamDataset):
    """One file per image. `paths` are relative to `root`.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from xnorpp.data import FolderDataset, dataset_info
        >>> labels, paths = np.array([0, 1]), ["cat/1.jpg", "dog/1.jpg"]
        >>> info, classes = dataset_info("imagenet"), ("cat", "dog")
        >>> data = FolderDataset(info, "train", classes, labels, Path("images"), paths)
        >>> len(data), data.sample_name(1)
        (2, 'images/dog/1.jpg')
    """

    root: Path
    paths: list[str]

    def __post_init__(self) -> None:
        _check_labels(self.labels, len(self.paths), len(self.classes))

    def blob(self, index: int) -> Blob:
        return Blob(f"{self.root}/{self.paths[index]}")

    def sample_name(self, index: int) -> str:
        return self.blob(index).path

    def subset(self, indices: Int64Array) -> FolderDataset:
        return replace(self, labels=self.labels[indices], paths=[self.paths[i] for i in indices])


Dataset = ArrayDataset | StreamDataset
"""A data set of this package: whole in memory, or read when needed.

Example:
    >>> from xnorpp.data import Dataset, load_dataset
    >>> isinstance(load_dataset("digits"), Dataset)
    True
"""


def _check_labels(labels: Int64Array, samples: int, classes: int) -> None:
    if labels.dtype != np.int64 or labels.shape != (samples,):
        raise ValueError(f"`labels` (={labels.dtype} {labels.shape}) must be int64 of shape ({samples},)")
    if samples and not (labels.min() >= 0 and labels.max() < classes):
        raise DatasetError(
            f"`labels` (from {labels.min()} to {labels.max()}) must lie between 0 and {classes - 1}"
        )
