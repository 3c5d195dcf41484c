"""Labels and probabilities from a packed model: images in, guesses out. Needs numpy and Pillow.

Images are given to the model as bytes, the fast way, which the file defines for every engine: the
whole-numbered filters of a large first layer (runtime/stem.py), or the float32 that each byte stands for.
Files of format version 1 do not define it, and there images are normalised first, so that the answers are
those of the trained network but for float rounding.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.choices import check_whole
from xnorpp.runtime.format.pixels import MODES
from xnorpp.runtime.format.preprocess import Preprocess
from xnorpp.runtime.format.program import Program

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from xnorpp.runtime.decode import ImageSource
    from xnorpp.runtime.model import PackedModel

__all__ = [
    "Guess",
    "Prediction",
    "as_input",
    "check_classifier",
    "classify",
    "guesses",
    "needed_preprocess",
    "outputs_of",
    "predict",
    "preprocess_of",
    "printable",
    "probabilities",
    "takes_images",
    "temperature_of",
]

F32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]
_Prepared: TypeAlias = "tuple[UInt8, float] | str"
AHEAD = 2  # batches that are decoded while the model runs


@dataclass(frozen=True)
class Guess:
    """One class for an image.

    Example:
        >>> import numpy as np
        >>> import xnorpp
        >>> guess = xnorpp.load("cifar10-resnet20").classify(np.zeros((32, 32, 3), np.uint8), top=1)[0]
        >>> guess.label in xnorpp.load("cifar10-resnet20").labels, 0 < guess.probability <= 1
        (True, True)
    """

    index: int
    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of an image, best first; or, for one that cannot be read, why.

    `distortion` is by how much the image was stretched in one direction more than in the other: 4.0 for one
    of 1600x400 that became a square, 1.0 where the aspect ratio is preserved.

    Example:
        >>> from PIL import Image
        >>> import xnorpp
        >>> from xnorpp.runtime.predict import predict
        >>> Image.new("RGB", (64, 32), "red").save("red.png")
        >>> good, bad = predict(xnorpp.load("cifar10-resnet20"), ["red.png", "missing.png"])
        >>> len(good.guesses) > 0, good.distortion, bad.error is not None
        (True, 2.0, True)
    """

    image: str
    guesses: tuple[Guess, ...] = ()
    error: str | None = None
    distortion: float = 1.0


def takes_images(program: Program) -> bool:
    """Whether the input is an image of 1 to 4 channels, or the file stores how an image becomes one."""
    shape = program.input_shape
    return program.preprocess is not None or (len(shape) == 3 and shape[0] in MODES and min(shape) > 0)


def preprocess_of(program: Program) -> Preprocess:
    """How an image becomes an input: what the file stores, or else a resize to the input's size.

    Raises:
        ValueError: What is stored is wrong or does not fit the input, or the input is not an image.
    """
    shape = program.input_shape
    if not takes_images(program) or len(shape) != 3:
        raise ValueError(
            f"the model's input has the shape {shape}, which is not an image of 1 to 4 channels and one "
            "size; call the model with an array"
        )
    stored = program.preprocess or {}
    if {"crop", "resize"} & stored.keys():  # a size of its own, where the input allows any
        shape = tuple(-1 if axis in program.free_axes else n for axis, n in enumerate(shape))
    channels, height, width = shape
    known = {"mean": program.mean, "std": program.std}
    return Preprocess.from_dict({**known, **stored}, (channels, height, width))


def as_input(program: Program, preprocess: Preprocess, pixels: UInt8) -> UInt8 | F32:
    """Prepared images (n, h, w, c) as a model takes them: bytes, where the file defines what they mean."""
    same = (preprocess.mean, preprocess.std) == (program.mean, program.std)
    return pixels if program.version > 1 and same else preprocess.normalise(pixels)


def outputs_of(program: Program) -> dict[str, tuple[int, ...]]:
    """The shape of each output by its name, without the batch axis."""
    return {name: program.values[value].shape for name, value in program.outputs.items()}


def check_classifier(program: Program) -> int:
    """How many classes the program distinguishes; a ValueError for one that does not classify images."""
    shapes = outputs_of(program)
    if len(shapes) != 1:
        raise ValueError(
            f"the model has {len(shapes)} outputs ({', '.join(shapes)}); classes can be read from a model "
            "with one output only, and calling the model gives all of them"
        )
    (shape,) = shapes.values()
    if len(shape) != 1:
        raise ValueError(
            f"the model's output has the shape {shape}, not one number per class; `segment` and "
            "`xnorpp predict --save DIR` make masks of it, and calling the model gives the output itself"
        )
    return shape[0]


def temperature_of(program: Program) -> float:
    """The calibration temperature that the file stores, else 1."""
    return 1.0 if program.temperature is None else program.temperature


def probabilities(program: Program, outputs: F32) -> F32:
    """Softmax of the outputs (n, classes) divided by the stored temperature.

    Where the program itself ends with a softmax, its logarithm is what the temperature divides.
    """
    temperature = temperature_of(program)
    if outputs.ndim == 1:  # one number for each image, without an axis
        outputs = outputs[:, None]
    last = next(op for op in program.ops if op.output == program.output)
    if last.op == "softmax":
        if temperature == 1.0:
            return outputs
        outputs = np.log(np.maximum(outputs, np.finfo(np.float32).tiny))
    scaled = outputs if temperature == 1.0 else outputs / np.float32(temperature)
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def classify(model: PackedModel, image: ImageSource, top: int = 5) -> tuple[Guess, ...]:
    """`PackedModel.classify`."""
    from xnorpp.runtime.decode import load_image

    _check_top(top)
    preprocess = needed_preprocess(model)
    pixels = preprocess.apply(load_image(image))
    scores = probabilities(model.program, model(as_input(model.program, preprocess, pixels[None])))
    return guesses(model.labels, scores[0], top)


def predict(
    model: PackedModel,
    paths: str | Path | bytes | Sequence[str | Path | bytes],
    *,
    top: int = 5,
    batch: int = 16,
    workers: int = 1,
) -> Iterator[Prediction]:
    """One prediction per image, in order; a path, or the bytes of a file, by itself is one image.

    An image that cannot be read has an `error`; the others are classified. One whose EXIF block states that
    the camera was held sideways is turned upright first.

    Args:
        model: A packed model that classifies images.
        paths: Paths of images, or their encoded bytes, which are named "-".
        top: How many classes to return for each.
        batch: Images per call of the model.
        workers: Threads that read and decode images, up to two batches ahead of the model.

    Raises:
        ValueError: `top`, `batch` or `workers` is below 1, or the model does not classify images.

    Example:
        >>> import io, xnorpp
        >>> from PIL import Image
        >>> stream = io.BytesIO()
        >>> Image.new("RGB", (40, 30), "blue").save(stream, "PNG")
        >>> (found,) = predict(xnorpp.load("cifar10-resnet20"), stream.getvalue(), top=2)
        >>> len(found.guesses), found.error
        (2, None)
    """
    from concurrent.futures import ThreadPoolExecutor

    _check_top(top)
    check_whole("batch", batch)
    check_whole("workers", workers)
    images = [paths] if isinstance(paths, (str, os.PathLike, bytes)) else paths
    preprocess = needed_preprocess(model)
    chunks = [images[start : start + batch] for start in range(0, len(images), batch)]
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[list[Future[_Prepared]]] = deque()
        for number, chunk in enumerate(chunks):
            while len(ahead) < AHEAD and number + len(ahead) < len(chunks):
                following = chunks[number + len(ahead)]
                ahead.append([pool.submit(_prepare, image, preprocess) for image in following])
            prepared = [future.result() for future in ahead.popleft()]
            good = [one[0] for one in prepared if not isinstance(one, str)]
            scores: Iterator[F32] = iter(())
            if good:
                inputs = as_input(model.program, preprocess, np.stack(good))
                scores = iter(probabilities(model.program, model(inputs)))
            for image, one in zip(chunk, prepared):
                name = "-" if isinstance(image, bytes) else str(image)
                if isinstance(one, str):
                    yield Prediction(name, error=one)
                else:
                    yield Prediction(name, guesses(model.labels, next(scores), top), distortion=one[1])


def printable(text: str) -> str:
    r"""A text from a file for a terminal: whatever is not printable becomes an escape.

    Labels come from anyone's file; a newline or an ANSI sequence in one could forge what a program prints.

    >>> print(printable("cat\x1b[2J\n"))
    cat\x1b[2J\n
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def needed_preprocess(model: PackedModel) -> Preprocess:
    """How an image becomes an input of a classifier; a ValueError for a model that is none."""
    check_classifier(model.program)
    return model.preprocess or preprocess_of(model.program)


def _prepare(source: str | Path | bytes, preprocess: Preprocess) -> _Prepared:
    """The prepared image and its distortion, or why there is none."""
    from xnorpp.runtime.decode import load_image

    try:
        image = load_image(source)
        return preprocess.apply(image), preprocess.distortion(image.height, image.width)
    except ValueError as error:  # a CorruptImageError, or too long for its width
        return str(error)


def guesses(labels: tuple[str, ...] | None, scores: F32, top: int) -> tuple[Guess, ...]:
    """The `top` most likely classes from one image's probabilities, best first."""
    order = np.argsort(-scores, kind="stable")[:top]
    return tuple(
        Guess(int(index), labels[index] if labels else str(index), float(scores[index])) for index in order
    )


def _check_top(top: Any) -> None:
    check_whole("top", top)
