"""Which output of a model stands for which class of a data set: matched by name, never by position alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from xnorpp.data.dataset import DatasetError, Int64Array

if TYPE_CHECKING:
    from xnorpp.data.dataset import ArrayDataset, StreamDataset
    from xnorpp.data.own import IndexedDataset

    D = TypeVar("D", ArrayDataset, StreamDataset, IndexedDataset, ArrayDataset | StreamDataset)


def match_classes(
    model_labels: Sequence[str] | None, dataset_classes: Sequence[str], *, dataset: str = "the data set"
) -> Int64Array:
    """The model's output for each class of a data set.

    Args:
        model_labels: The names of the model's outputs, in their order; None or empty: not known, so that
            output i stands for class i.
        dataset_classes: The names of the data set's classes, in the order of its labels.
        dataset: The data set's name, for the error message.

    Returns:
        An int64 array: entry i is the output that stands for class i of the data set.

    Raises:
        DatasetError: A class of the data set is not one of the model's, or a name occurs twice.

    Example:
        >>> match_classes(["stripe", "noise", "circle"], ["circle", "noise", "stripe"]).tolist()
        [2, 1, 0]
    """
    ours = [str(label) for label in model_labels or ()]
    theirs = [str(name) for name in dataset_classes]
    if not ours or ours == theirs:
        return np.arange(len(theirs), dtype=np.int64)
    known = set(ours)
    unknown = [name for name in theirs if name not in known]
    if unknown:
        raise DatasetError(
            f"the model's classes ({_some(ours)}) are not those of data set {dataset!r} ({_some(theirs)}): "
            f"the model does not know {unknown[0]!r}; choose the data set it was trained for, or match the "
            "classes by position (`eval --by-position`) if the names alone differ"
        )
    twice = [name for number, name in enumerate(ours) if name in ours[:number]]
    if twice:
        raise DatasetError(
            f"the model has several classes named {twice[0]!r}, in another order than data set {dataset!r}, "
            "so they cannot be matched by name; give it names that differ, or match by position"
        )
    index = {name: number for number, name in enumerate(ours)}
    return np.array([index[name] for name in theirs], np.int64)


def in_order_of(dataset: D, model_labels: Sequence[str] | None) -> D:
    """The data set with its labels renumbered to a model's outputs; see `match_classes`."""
    outputs = match_classes(model_labels, dataset.classes, dataset=dataset.name)
    names = tuple(str(label) for label in model_labels or ())
    return dataset.renumbered(outputs, names) if names and names != dataset.classes else dataset


def by_position(dataset: D, model_labels: Sequence[str] | None) -> D:
    """The data set with its classes named as a model names its outputs, label i being output i."""
    if not model_labels:
        return dataset
    names = tuple(str(label) for label in model_labels)
    if len(names) != len(dataset.classes):
        raise DatasetError(
            f"the model has {len(names)} classes and data set {dataset.name!r} {len(dataset.classes)}, so "
            "they cannot be matched by position"
        )
    return replace(dataset, classes=names)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ... {len(names)} in all" if len(names) > 3 else "")
