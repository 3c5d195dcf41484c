"""The data sets by name, and `load_dataset`.

A new one in this package is a file with a card and a `load`, and a row here. From outside, `register_dataset`
gives a function a name, and `package.module:function` needs no registration at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xnorpp.data.dataset import Dataset, DatasetError, DatasetInfo
from xnorpp.data.formats import cifar, digits, folder, imagenet, mnist, shards, tiny_imagenet
from xnorpp.data.holdout import holdout_split
from xnorpp.data.own import AnyDataset, BatchesDataset, as_dataset, is_path
from xnorpp.runtime.choices import nearest_first
from xnorpp.runtime.registry import call, is_reference, parameter_names, resolve

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Entry:
    """A row of the table. `info` is None for a user's function, whose card is made from what it returns."""

    name: str
    load: Callable[..., Any]
    info: DatasetInfo | None = None
    classes: tuple[str, ...] | None = None

    def options(self) -> tuple[str, ...]:
        """The arguments that only this data set has."""
        shared = ("info", "root", "split", "download")
        return tuple(name for name in parameter_names(self.load) if name not in shared)


_DATASETS: dict[str, _Entry] = {
    card.name: _Entry(card.name, load, card)
    for card, load in (
        (digits.DIGITS, digits.load),
        (mnist.MNIST, mnist.load),
        (mnist.FASHION_MNIST, mnist.load),
        (cifar.CIFAR10, cifar.load),
        (cifar.CIFAR100, cifar.load),
        (tiny_imagenet.TINY_IMAGENET, tiny_imagenet.load),
        (imagenet.IMAGENET, imagenet.load),
        (shards.SHARDS, shards.load),
        (folder.FOLDER, folder.load),
    )
}


def list_datasets() -> tuple[str, ...]:
    """The names `load_dataset` knows.

    Example:
        >>> from xnorpp.data import list_datasets
        >>> "cifar10" in list_datasets()
        True
    """
    return tuple(_DATASETS)


def register_dataset(
    name: str, *, info: DatasetInfo | None = None, classes: Sequence[str] | None = None
) -> Callable[[F], F]:
    """A decorator that gives a function's data a name, for recipes, `load_dataset` and the command line.

    The function is called with those of `root` (the value of `--data`, or None), `split` ("train" or "test")
    and `download` that it has as parameters; further parameters are the data set's options (`data.options` in
    a recipe). It returns what `as_dataset` takes: a pair of arrays, anything indexable, a loader, the path of
    a folder of images, or a data set of this package.

    Args:
        name: The name, which must be new and have no colon.
        info: A card, for another normalisation or augmentation than a user's own data has: none.
        classes: The names of the classes, where the returned data has no `classes` of its own.

    Raises:
        ValueError: The name is taken or has a colon.

    Example:
        >>> @register_dataset("noise", classes=["dark", "bright"])
        ... def noise(split):
        ...     images = np.random.default_rng(split == "test").integers(0, 256, (8, 4, 4, 1), np.uint8)
        ...     return images, (images.mean((1, 2, 3)) > 128).astype(np.int64)
        >>> load_dataset("noise").classes
        ('dark', 'bright')
    """
    if is_reference(name) or not name:
        raise ValueError(
            f"`name` (={name!r}) must not have a colon, which is reserved for package.module:function"
        )

    def register(function: F) -> F:
        known = _DATASETS.get(name)
        if known is not None and _home(known.load) != _home(function):
            raise ValueError(f"`name` (={name!r}) is a data set already; choose another name")
        _DATASETS[name] = _Entry(name, function, info, None if classes is None else tuple(classes))
        return function

    return register


def _home(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Where a function is defined: a module that is loaded again defines it again."""
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)


def dataset_info(name: str) -> DatasetInfo:
    """The card of a data set of this package, or of a registered one that was given a card.

    Raises:
        ValueError: There is no such data set, or its card is only known when it is loaded.

    Example:
        >>> from xnorpp.data import dataset_info
        >>> info = dataset_info("cifar10")
        >>> info.classes, info.train_size, info.test_size
        (10, 50000, 10000)
    """
    info = _find(name).info
    if info is None:
        raise ValueError(f"data set {name!r} has no card of its own; `load_dataset` makes one from its data")
    return info


def has_card(name: str) -> bool:
    """Whether `dataset_info` knows this data set without loading it."""
    return _find(name).info is not None


def dataset_options(name: str) -> tuple[str, ...]:
    """The arguments of `load_dataset` that only this data set has."""
    return _find(name).options()


def _find(name: str) -> _Entry:
    if is_reference(name):
        return _Entry(name, resolve("dataset", name))
    if name not in _DATASETS:
        nearest = nearest_first(name, _DATASETS)
        raise ValueError(
            f'`dataset` (="{name}") must be one of {", ".join(nearest)}, or a package.module:function'
        )
    return _DATASETS[name]


def load_dataset(
    name: str,
    root: str | Path | None = None,
    split: str = "train",
    *,
    download: bool = False,
    holdout: float = 0.0,
    part: str | None = None,
    **options: Any,
) -> Any:
    """The training or test split of a data set.

    Args:
        name: A name that `list_datasets` has, or `package.module:function` (see `register_dataset`).
        root: Where the data set lies; None: the usual places.
        split: "train" or "test".
        download: Get it where it is missing.
        holdout: A share above 0 splits the training set, stratified and always the same way.
        part: Which part of that split: the larger "fit" or the smaller "held".
        **options: The data set's own, see its `load`.

    Returns:
        An `ArrayDataset`, a `StreamDataset`, or for a user's own data an `IndexedDataset` or a
        `BatchesDataset`: what `make_loader` takes.

    Raises:
        ValueError: An argument is wrong, or the data set does not use it.
        DatasetError: The data set is missing or damaged; the message explains how to get it.

    Example:
        >>> digits = load_dataset("digits", split="test")
        >>> digits.images.dtype, digits.images.shape[1:]
        (dtype('uint8'), (8, 8, 1))
    """
    entry = _find(name)
    if split not in ("train", "test"):
        raise ValueError(f'`split` (="{split}") must be "train" or "test"')
    if (holdout == 0) != (part is None):
        raise ValueError(f"`holdout` (={holdout}) and `part` (={part}) must be given together")
    if part not in (None, "fit", "held"):
        raise ValueError(f'`part` (="{part}") must be "fit" or "held"')
    if part is not None and split != "train":
        raise ValueError(f'`part` (="{part}") needs `split` "train": the test set is not split')
    allowed = entry.options()
    for key in options:
        if key not in allowed:
            raise TypeError(f'data set "{name}" has no option `{key}`; it has {", ".join(allowed) or "none"}')
    dataset = _load(entry, root, split, download, options)
    if part is None:
        return dataset
    if isinstance(dataset, BatchesDataset):
        raise DatasetError(f"data set {name!r} is a loader, of which no share can be held out")
    return take_part(dataset, holdout, part)


def take_part(dataset: Any, holdout: float, part: str) -> Any:
    """The "fit" or "held" part of a training set, stratified where its labels are known beforehand."""
    labels = dataset.labels if dataset.labels is not None else np.zeros(len(dataset), np.int64)
    fit, held = holdout_split(labels, holdout)
    return dataset.subset(fit if part == "fit" else held)


def _load(
    entry: _Entry, root: str | Path | None, split: str, download: bool, options: dict[str, Any]
) -> AnyDataset:
    names = parameter_names(entry.load)
    if root is not None and names and "root" not in names:
        raise DatasetError(
            f"data set {entry.name!r} does not use `root` (={str(root)!r}, --data); leave it out"
        )
    if download and "download" not in names:
        how = f": {entry.info.how_to_get}" if entry.info else ""
        raise DatasetError(f"data set {entry.name!r} cannot be downloaded; leave `download` out{how}")
    if entry.info is not None and "info" in names:
        more = {"download": download} if "download" in names else {}
        made: Dataset = entry.load(entry.info, root, split, **more, **options)
        return made
    given = call(
        entry.load,
        f"data set {entry.name!r}",
        {"root": root, "split": split, "download": download},
        options,
    )
    if is_path(given):
        return folder.load(folder.FOLDER, given, split)
    dataset = as_dataset(
        given, split=split, classes=entry.classes, name=entry.name, argument=f"data set {entry.name!r}"
    )
    return dataset if entry.info is None else replace(dataset, info=entry.info)
