"""Whether a network's probabilities mean what they say, and the temperature that makes them.

A network that gives 0.9 to its first guess should be right nine times out of ten. Trained networks are surer
than that, and one number repairs most of it: the logits are divided by a temperature before the softmax. It
changes no guess. It has to be fitted on images that training never saw; fitted on others, it would find a
network right that has learned them by heart.

What is fitted is the probability of the first guess: the one that `predict` prints first and that the
calibration error is about. The usual criterion, the cross-entropy of all classes, also fits how the rest is
shared out among the others; with hundreds of classes the first guess may then be off by some percent.

paper: Guo et al. 2017, "On Calibration of Modern Neural Networks", https://arxiv.org/abs/1706.04599

No torch here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xnorpp.data.dataset import Dataset, Skipped
from xnorpp.data.evaluate import prepared
from xnorpp.data.labels import in_order_of
from xnorpp.runtime import PackedModel
from xnorpp.runtime.format.program import VERSION, Program
from xnorpp.runtime.predict import check_classifier, preprocess_of

__all__ = [
    "Calibration",
    "calibrate",
    "expected_calibration_error",
    "fit_temperature",
    "logits_of",
    "with_temperature",
]

Floats = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]
Criterion = Literal["guess", "classes"]
BINS = 15
COLDEST, HOTTEST = 0.05, 50.0
COARSE, FINE = 40, 30  # temperatures tried over the whole range, then steps towards the best


@dataclass(frozen=True)
class Calibration:
    """A fitted temperature, the number of images, and calibration error and cross-entropy at 1 and at it."""

    temperature: float
    images: int
    error_before: float
    error: float
    loss_before: float
    loss: float


def expected_calibration_error(probabilities: Floats, labels: Labels, bins: int = BINS) -> float:
    """The mean distance between how sure the first guesses are and how often they are right.

    Images are sorted into bins of equal width by the probability of their first guess; the distances of the
    bins are weighted by their images.

    Args:
        probabilities: One row of probabilities per image, (n, classes).
        labels: The classes, (n,).
        bins: How many.

    Returns:
        A number from 0 to 1; 0 is perfect.

    Raises:
        ValueError: The arrays do not fit together, or are empty.

    Example:
        >>> sure = np.array([[0.9, 0.1]] * 10)
        >>> round(expected_calibration_error(sure, np.array([0] * 9 + [1])), 6)
        0.0
        >>> round(expected_calibration_error(sure, np.array([0] * 5 + [1] * 5)), 6)
        0.4
    """
    _check(probabilities, labels)
    if bins < 1:
        raise ValueError(f"`bins` (={bins}) must be at least 1")
    guesses = probabilities.argmax(axis=1)
    sure = probabilities[np.arange(len(labels)), guesses].astype(np.float64)
    right = (guesses == labels).astype(np.float64)
    places = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=sure - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def fit_temperature(logits: Floats, labels: Labels, of: Criterion = "guess") -> float:
    """The temperature that makes softmax(logits / temperature) fit the classes.

    Args:
        logits: One row per image, (n, classes).
        labels: The classes, (n,).
        of: `"guess"` minimises the log loss of whether the first guess is right, `"classes"` the
            cross-entropy of all classes. For two classes they are the same.

    Returns:
        The temperature, from 0.05 to 50.

    Raises:
        ValueError: The arrays do not fit together, or are empty, or `of` is something else.

    Example:
        >>> logits = np.array([[2.0, 0.0]] * 4)
        >>> round(fit_temperature(logits, np.array([0, 0, 0, 1])), 3)  # 3 of 4 right: logit ln 3
        1.82
    """
    _check(logits, labels)
    if of not in ("guess", "classes"):
        raise ValueError(f"`of` (={of!r}) must be 'guess' or 'classes'")
    values = logits.astype(np.float64)
    return _of_guess(values, labels) if of == "guess" else _of_classes(values, labels)


def _of_guess(values: Floats, labels: Labels) -> float:
    guesses = values.argmax(axis=1)
    rows = np.arange(len(labels))
    right = guesses == labels
    below = values - values[rows, guesses, None]
    below[rows, guesses] = -np.inf

    def loss(temperature: float) -> float:
        others = np.exp(below / temperature).sum(axis=1)  # the first guess has 1 / (1 + others)
        wrong = np.log(np.maximum(others[~right], np.finfo(np.float64).tiny))
        return float((np.log1p(others).sum() - wrong.sum()) / len(labels))

    # The loss may have several minima: the best of many temperatures, then a golden section around it.
    tried = np.geomspace(COLDEST, HOTTEST, COARSE)
    best = int(np.argmin([loss(one) for one in tried]))
    if best in (0, COARSE - 1):
        return float(tried[best])
    low, high = np.log(tried[best - 1]), np.log(tried[best + 1])
    share = (math.sqrt(5) - 1) / 2
    for _ in range(FINE):
        left, right_of = high - share * (high - low), low + share * (high - low)
        low, high = (low, right_of) if loss(math.exp(left)) < loss(math.exp(right_of)) else (left, high)
    return math.exp((low + high) / 2)


def _of_classes(values: Floats, labels: Labels) -> float:
    """By bisection of the derivative of the loss, which has one minimum in 1 / temperature."""
    own = values[np.arange(len(labels)), labels]

    def slope(inverse: float) -> float:
        powers = _softmax(values * inverse)
        return float(((powers * values).sum(axis=1) - own).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(low) >= 0:
        return HOTTEST
    if slope(high) <= 0:
        return COLDEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 2 / (low + high)


def logits_of(
    model: PackedModel,
    dataset: Dataset,
    *,
    batch: int = 64,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> tuple[Floats, Labels]:
    """The outputs of a packed classifier for all images that can be read, and their classes.

    Args:
        model: A model with one output of one number per class.
        dataset: The images; classes are matched by name.
        batch: Images per call.
        workers: Threads that decode streamed images.
        progress: Called with how many images are done since the last call.

    Raises:
        ValueError: The model does not classify images into the classes of the data set.
    """
    classes = check_classifier(model.program)
    dataset = in_order_of(dataset, model.labels)
    if classes != len(dataset.classes):
        raise ValueError(
            f"the model has {classes} outputs and data set {dataset.name!r} {len(dataset.classes)} classes"
        )
    preprocess = preprocess_of(model.program)
    skipped: list[Skipped] = []
    found: list[Floats] = []
    known: list[Labels] = []
    for pixels, labels in prepared(dataset, preprocess, batch, workers, skipped):
        if len(labels):
            found.append(_as_logits(model.program, np.asarray(model(preprocess.normalise(pixels)))))
            known.append(labels)
        if progress:
            progress(len(labels))
    if not found:
        raise ValueError(f"data set {dataset.name!r} gave no image to calibrate on")
    return np.concatenate(found), np.concatenate(known)


def calibrate(model: PackedModel, dataset: Dataset, of: Criterion = "guess", **options: Any) -> Calibration:
    """Fits a temperature for a packed classifier.

    Args:
        model: The model.
        dataset: Images that its training never saw, and that its accuracy is not reported on.
        of: What is fitted, as for `fit_temperature`.
        **options: As those of `logits_of`.

    Returns:
        The temperature, with calibration error and loss at temperature 1 and at the fitted one, measured on
        the same images.

    Raises:
        ValueError: The model does not classify images into the classes of the data set.
    """
    logits, labels = logits_of(model, dataset, **options)
    temperature = fit_temperature(logits, labels, of)
    errors, losses = [], []
    for one in (1.0, temperature):
        probabilities = _softmax(logits.astype(np.float64) / one)
        errors.append(expected_calibration_error(probabilities, labels))
        own = probabilities[np.arange(len(labels)), labels]
        losses.append(float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean()))
    return Calibration(temperature, len(labels), errors[0], errors[1], losses[0], losses[1])


def with_temperature(program: Program, temperature: float, **meta: Any) -> Program:
    """The same program with a stored temperature, in the newest version of the format; `meta` is added to
    what the file records.

    Raises:
        ValueError: The temperature is not positive.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"`temperature` (={temperature}) must be above 0 and finite")
    return dataclasses.replace(
        program,
        temperature=float(temperature),
        version=VERSION,
        meta={**program.meta, **meta},
    )


def _as_logits(program: Program, outputs: Floats) -> Floats:
    """Of a program that ends with a softmax, the logarithms of its outputs, as `predict` takes them."""
    last = next(op for op in program.ops if op.output == program.output)
    if last.op == "softmax":
        logarithms: Floats = np.log(np.maximum(outputs, np.finfo(np.float32).tiny))
        return logarithms
    return outputs


def _softmax(scores: Floats) -> Floats:
    powers: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _check(rows: Floats, labels: Labels) -> None:
    if rows.ndim != 2 or labels.shape != (len(rows),) or not len(rows):
        raise ValueError(
            f"`labels` {labels.shape} must have one class for each row of the scores {rows.shape}, and there "
            "must be at least one"
        )
