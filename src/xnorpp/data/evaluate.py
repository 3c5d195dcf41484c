"""Accuracy of a packed model over a data set. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.data.dataset import ArrayDataset, Dataset, Skipped, StreamDataset, skip_limit
from xnorpp.data.labels import in_order_of
from xnorpp.runtime import PackedModel, Preprocess
from xnorpp.runtime.decode import load_image
from xnorpp.runtime.predict import as_input, check_classifier, preprocess_of, probabilities

__all__ = ["Accuracy", "evaluate_packed", "prepared", "ranks"]

F32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Accuracy:
    """Per cent right at the first guess and within five, over `images` images."""

    top1: float
    top5: float
    images: int
    skipped: tuple[Skipped, ...] = ()


def evaluate_packed(
    model: PackedModel,
    dataset: Dataset,
    *,
    batch: int = 64,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
    max_skipped: int | None = None,
    observe: Callable[[F32, npt.NDArray[np.int64]], None] | None = None,
) -> Accuracy:
    """Top-1 and top-5 of a packed model over a data set; ties count against it.

    Classes are matched by name (`match_classes`). Unreadable images are skipped and named.

    Args:
        model: A model with one output of one number per class.
        dataset: The images and their classes.
        batch: Images per call.
        workers: Threads that decode streamed images.
        progress: Called with how many images are done since the last call.
        max_skipped: How many unreadable images are tolerated; by default 1 % of the set, at least 1 and at
            most 100, as in training.
        observe: Called with the probabilities (n, classes) and classes (n,) of each batch.

    Raises:
        ValueError: The model does not classify images into the classes of the data set, or too many images
            cannot be read.
    """
    classes = check_classifier(model.program)
    dataset = in_order_of(dataset, model.labels)
    if classes != len(dataset.classes):
        raise ValueError(
            f"the model has {classes} outputs and data set {dataset.name!r} {len(dataset.classes)} classes"
        )
    right = right5 = images = 0
    skipped: list[Skipped] = []
    preprocess = preprocess_of(model.program)
    for pixels, labels in prepared(dataset, preprocess, batch, workers, skipped, max_skipped):
        if len(labels):
            outputs = model(as_input(model.program, preprocess, pixels))
            rank = ranks(outputs, labels)
            if observe:
                observe(probabilities(model.program, outputs), labels)
            right += int((rank <= 1).sum())
            right5 += int((rank <= 5).sum())
        images += len(labels)
        if progress:
            progress(len(labels))
    if not images:
        raise ValueError(f"data set {dataset.name!r} gave no image to evaluate on")
    return Accuracy(100 * right / images, 100 * right5 / images, images, tuple(skipped))


def ranks(scores: F32, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rank of each image's own class, 1 the best; ties count against it, for it counts itself."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    return np.asarray((scores >= own).sum(axis=1), dtype=np.int64)


def prepared(
    dataset: Dataset,
    preprocess: Preprocess,
    batch: int,
    workers: int,
    skipped: list[Skipped],
    max_skipped: int | None = None,
) -> Iterator[tuple[UInt8, npt.NDArray[np.int64]]]:
    """Prepared images and labels in the data set's order; those that cannot be read go to `skipped`."""
    for name, value in (("batch", batch), ("workers", workers)):
        if value < 1:
            raise ValueError(f"`{name}` (={value}) must be at least 1")
    starts = range(0, len(dataset), batch)
    if isinstance(dataset, ArrayDataset):
        for start in starts:
            chunk = dataset.images[start : start + batch]
            if chunk.shape[1:3] != preprocess.size:
                chunk = np.stack([preprocess.apply(image) for image in chunk])
            yield chunk, dataset.labels[start : start + batch]
        return
    limit = skip_limit(len(dataset), max_skipped)
    with ThreadPoolExecutor(workers) as pool:
        for start in starts:
            indices = range(start, min(start + batch, len(dataset)))
            found = list(pool.map(_reader(dataset, preprocess), indices))
            good = [index for index, image in zip(indices, found) if not isinstance(image, str)]
            skipped.extend(
                Skipped(dataset.sample_name(index), image)
                for index, image in zip(indices, found)
                if isinstance(image, str)
            )
            if len(skipped) > limit:
                last = skipped[-1]
                raise ValueError(f"more than {limit} images cannot be read; {last.name}: {last.reason}")
            images = [image for image in found if not isinstance(image, str)]
            nothing = np.zeros((0, *preprocess.size, preprocess.channels), np.uint8)
            yield np.stack(images) if images else nothing, dataset.labels[good]


def _reader(dataset: StreamDataset, preprocess: Preprocess) -> Callable[[int], Any]:
    def read(index: int) -> UInt8 | str:
        try:  # as stored, whatever the EXIF orientation: so the network saw them in training
            return preprocess.apply(load_image(dataset.blob(index), upright=False))
        except ValueError as error:  # a CorruptImageError, or too long for its width
            return str(error)

    return read
