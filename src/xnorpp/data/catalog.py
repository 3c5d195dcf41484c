"""The data sets by name, and `load_dataset`. A new one is a file with a card and a `load`, and a row here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xnorpp.data.dataset import Dataset, DatasetInfo
from xnorpp.data.formats import cifar, digits, imagenet, mnist, shards, tiny_imagenet
from xnorpp.data.holdout import holdout_split
from xnorpp.runtime.choices import nearest_first

_DATASETS: dict[str, tuple[DatasetInfo, Callable[..., Dataset]]] = {
    card.name: (card, load)
    for card, load in (
        (digits.DIGITS, digits.load),
        (mnist.MNIST, mnist.load),
        (mnist.FASHION_MNIST, mnist.load),
        (cifar.CIFAR10, cifar.load),
        (cifar.CIFAR100, cifar.load),
        (tiny_imagenet.TINY_IMAGENET, tiny_imagenet.load),
        (imagenet.IMAGENET, imagenet.load),
        (shards.SHARDS, shards.load),
    )
}


def list_datasets() -> tuple[str, ...]:
    return tuple(_DATASETS)


def dataset_info(name: str) -> DatasetInfo:
    return _find(name)[0]


def _find(name: str) -> tuple[DatasetInfo, Callable[..., Dataset]]:
    if name not in _DATASETS:
        nearest = nearest_first(name, _DATASETS)
        raise ValueError(f'`dataset` (="{name}") must be one of {", ".join(nearest)}')
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
) -> Dataset:
    """The `train` or `test` split of a data set in `root` (None: the usual places).

    `download` fetches it where it is missing and may be fetched. `holdout` > 0 splits the training set,
    stratified and always the same way, and `part` chooses the larger "fit" or the smaller "held". `options`
    are the data set's own (see its `load`).
    """
    info, load = _find(name)
    if split not in ("train", "test"):
        raise ValueError(f'`split` (="{split}") must be "train" or "test"')
    if (holdout == 0) != (part is None):
        raise ValueError(f"`holdout` (={holdout}) and `part` (={part}) must be given together")
    if part not in (None, "fit", "held"):
        raise ValueError(f'`part` (="{part}") must be "fit" or "held"')
    if part is not None and split != "train":
        raise ValueError(f'`part` (="{part}") needs `split` "train": the test set is not split')
    allowed = [
        key for key in inspect.signature(load).parameters if key not in ("info", "root", "split", "download")
    ]
    for key in options:
        if key not in allowed:
            raise TypeError(f'data set "{name}" has no option `{key}`; it has {", ".join(allowed) or "none"}')
    dataset = load(info, root, split, download=download, **options)
    if part is None:
        return dataset
    fit, held = holdout_split(dataset.labels, holdout)
    return dataset.subset(fit if part == "fit" else held)
