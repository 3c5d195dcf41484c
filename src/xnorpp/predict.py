"""Predictions and accuracy of a packed model: pictures in, labels out. No torch on this way.

Pictures are normalised here and given to the model as float32, so that the answers are those of the trained
network but for float rounding with every engine and every network. Given bytes, an engine may round the
weights of a large first layer (runtime/picture.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.data import ArrayDataset, Dataset, Preprocess, Skipped, StreamDataset
from xnorpp.data.dataset import skip_limit
from xnorpp.runtime import Model, Program
from xnorpp.runtime.decode import Blob, CorruptImageError, decode_blob

F32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Guess:
    """One class for a picture."""

    index: int
    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of a picture, best first; or, for one that cannot be read, why."""

    image: str
    guesses: tuple[Guess, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Accuracy:
    """Per cent right at the first guess and within five, over `images` pictures."""

    top1: float
    top5: float
    images: int
    skipped: tuple[Skipped, ...] = ()


def preprocess_of(program: Program) -> Preprocess:
    """How a picture becomes an input: what the file says, or else a resize to its input's size."""
    channels, height, width = program.input_shape
    if program.preprocess is not None:
        preprocess = Preprocess.from_dict(program.preprocess)
        made = (preprocess.channels, preprocess.crop, preprocess.crop)
        if made != program.input_shape:  # known before an image of that size is made
            raise ValueError(
                f"the file's `preprocess` makes an input of shape {made}, and the network's is "
                f"{program.input_shape}; pack it again with a `preprocess` that fits"
            )
        return preprocess
    if height != width:
        raise ValueError(
            f"the file has no pre-processing and its input is {height}x{width}; pack it with `preprocess`"
        )
    return Preprocess(height, height, program.mean, program.std, channels)


def probabilities(program: Program, outputs: F32) -> F32:
    """Softmax of the outputs, unless the program ends with one."""
    last = next(op for op in program.ops if op.output == program.output)
    if last.op == "softmax":
        return outputs
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def predict(
    model: Model, paths: str | Path | Sequence[str | Path], *, top: int = 5, batch: int = 16
) -> Iterator[Prediction]:
    """One prediction a path, in order; a path by itself is one picture.

    A picture that cannot be read has an `error`; the others go on. One whose EXIF block says that the camera
    was held sideways is turned upright first.
    """
    _check_positive(top=top, batch=batch)
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    preprocess = preprocess_of(model.program)
    for start in range(0, len(paths), batch):
        chunk = paths[start : start + batch]
        read = [_read(str(path), preprocess) for path in chunk]
        good = [picture for picture in read if not isinstance(picture, str)]
        scores = iter(
            probabilities(model.program, model(preprocess.normalise(np.stack(good)))) if good else ()
        )
        for path, picture in zip(chunk, read):
            if isinstance(picture, str):
                yield Prediction(str(path), error=picture)
            else:
                yield Prediction(str(path), _guesses(model.labels, next(scores), top))


def _read(path: str, preprocess: Preprocess) -> UInt8 | str:
    """The prepared picture, or why there is none."""
    margin = (preprocess.resize - preprocess.crop) // 2
    try:
        return decode_blob(
            Blob(path), preprocess.resize, preprocess.crop, margin, margin, preprocess.channels, upright=True
        )
    except CorruptImageError as error:
        return str(error)


def _guesses(labels: tuple[str, ...] | None, scores: F32, top: int) -> tuple[Guess, ...]:
    order = np.argsort(-scores, kind="stable")[:top]
    return tuple(
        Guess(int(index), labels[index] if labels else str(index), float(scores[index])) for index in order
    )


def evaluate_packed(
    model: Model,
    dataset: Dataset,
    *,
    batch: int = 64,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Accuracy:
    """Top-1 and top-5 of a packed model over a data set; ties count against it.

    Unreadable pictures are skipped and named, at most 1 % of the set (at least 1, at most 100), as in
    training. `workers` threads decode streamed pictures; `progress` hears how many pictures are done.
    """
    classes = model.program.values[model.program.output].shape[0]
    if classes != len(dataset.classes):
        raise ValueError(
            f"the model has {classes} outputs and data set {dataset.name!r} {len(dataset.classes)} classes"
        )
    right = right5 = images = 0
    skipped: list[Skipped] = []
    preprocess = preprocess_of(model.program)
    for pictures, labels in prepared(dataset, preprocess, batch, workers, skipped):
        if len(labels):
            rank = ranks(model(preprocess.normalise(pictures)), labels)
            right += int((rank <= 1).sum())
            right5 += int((rank <= 5).sum())
        images += len(labels)
        if progress:
            progress(len(labels))
    if not images:
        raise ValueError(f"data set {dataset.name!r} gave no picture to evaluate on")
    return Accuracy(100 * right / images, 100 * right5 / images, images, tuple(skipped))


def ranks(scores: F32, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The place of each picture's own class, 1 the best; ties count against it, for it counts itself."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    return np.asarray((scores >= own).sum(axis=1), dtype=np.int64)


def prepared(
    dataset: Dataset, preprocess: Preprocess, batch: int, workers: int, skipped: list[Skipped]
) -> Iterator[tuple[UInt8, npt.NDArray[np.int64]]]:
    """Prepared pictures and labels in the data set's order; those that cannot be read go to `skipped`."""
    _check_positive(batch=batch, workers=workers)
    starts = range(0, len(dataset), batch)
    if isinstance(dataset, ArrayDataset):
        for start in starts:
            chunk = dataset.images[start : start + batch]
            if chunk.shape[1:3] != (preprocess.crop, preprocess.crop):
                chunk = np.stack([preprocess.apply(image) for image in chunk])
            yield chunk, dataset.labels[start : start + batch]
        return
    limit = skip_limit(len(dataset))
    with ThreadPoolExecutor(workers) as pool:
        for start in starts:
            indices = range(start, min(start + batch, len(dataset)))
            found = list(pool.map(_reader(dataset, preprocess), indices))
            good = [index for index, picture in zip(indices, found) if not isinstance(picture, str)]
            skipped.extend(
                Skipped(dataset.sample_name(index), picture)
                for index, picture in zip(indices, found)
                if isinstance(picture, str)
            )
            if len(skipped) > limit:
                last = skipped[-1]
                raise ValueError(f"more than {limit} pictures cannot be read; {last.name}: {last.reason}")
            shape = (0, preprocess.crop, preprocess.crop, preprocess.channels)
            pictures = [picture for picture in found if not isinstance(picture, str)]
            yield np.stack(pictures) if pictures else np.zeros(shape, np.uint8), dataset.labels[good]


def _reader(dataset: StreamDataset, preprocess: Preprocess) -> Callable[[int], Any]:
    margin = (preprocess.resize - preprocess.crop) // 2
    size = (preprocess.resize, preprocess.crop, margin, margin, preprocess.channels)

    def read(index: int) -> UInt8 | str:
        try:
            return decode_blob(dataset.blob(index), *size)
        except CorruptImageError as error:
            return str(error)

    return read


def _check_positive(**arguments: int) -> None:
    for name, value in arguments.items():
        if value < 1:
            raise ValueError(f"`{name}` (={value}) must be at least 1")
