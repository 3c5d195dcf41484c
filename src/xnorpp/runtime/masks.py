"""Masks from a packed model with a dense output: a class for each pixel. Needs numpy and Pillow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.decode import load_image
from xnorpp.runtime.format.preprocess import Preprocess
from xnorpp.runtime.format.program import Program, ProgramError
from xnorpp.runtime.predict import as_input, preprocess_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from xnorpp.runtime.decode import ImageSource
    from xnorpp.runtime.model import PackedModel

__all__ = ["Mask", "dense_outputs", "segment"]

UInt8 = npt.NDArray[np.uint8]
MOST_CLASSES = 256  # one byte for each pixel
STRIDE = 32  # an image whose size a network does not take is enlarged to a multiple of this


@dataclass(frozen=True)
class Mask:
    """The classes of an image's pixels.

    Attributes:
        classes: uint8 (height, width), the class of each pixel; of an output with one channel, 1 where it is
            above 0.
        labels: The names of the classes, where the file has them.
    """

    classes: UInt8
    labels: tuple[str, ...] | None = None

    def shares(self) -> dict[str, float]:
        """The share of pixels of each class that occurs, largest first."""
        values, counts = np.unique(self.classes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {self._label(int(values[i])): float(counts[i]) / self.classes.size for i in order}

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels and index < len(self.labels) else str(index)

    def image(self) -> Image:
        """A PNG-ready image: the bytes are the classes, shown in a colour for each."""
        from PIL import Image as images

        found = images.fromarray(np.ascontiguousarray(self.classes), "L").convert("P")
        found.putpalette([n for index in range(MOST_CLASSES) for n in colour_of(index)])
        found.frombytes(np.ascontiguousarray(self.classes).tobytes())
        return found


def colour_of(index: int) -> tuple[int, int, int]:
    """Black for class 0, and colours that differ as much as possible for the first few: the bits of the class
    spread over red, green and blue, highest first, as in the masks of the PASCAL data sets."""
    red = green = blue = 0
    for bit in range(8):
        red |= (index & 1) << (7 - bit)
        green |= (index >> 1 & 1) << (7 - bit)
        blue |= (index >> 2 & 1) << (7 - bit)
        index >>= 3
    return red, green, blue


def dense_outputs(program: Program) -> dict[str, tuple[int, int, int]]:
    """The outputs that have rows and columns, by name, with their shapes.

    Raises:
        ValueError: There is none, or one has more than 256 classes.
    """
    shapes = {name: program.values[value].shape for name, value in program.outputs.items()}
    dense = {name: (s[0], s[1], s[2]) for name, s in shapes.items() if len(s) == 3 and s[1:] != (1, 1)}
    if not dense:
        raise ValueError("no output of the model has rows and columns, which a mask needs")
    for name, (channels, _, _) in dense.items():
        if channels > MOST_CLASSES:
            raise ValueError(
                f"the output {name!r} has {channels} channels; a mask has at most {MOST_CLASSES}"
            )
    return dense


def segment(model: PackedModel, image: ImageSource) -> dict[str, Mask]:
    """A mask for each dense output, of the image's own size.

    Where the model takes any size it gets the image as it is, enlarged to a multiple of 32 if it needs that;
    otherwise, or where the file stores how an image is resized, the image is prepared so.
    """
    program = model.program
    names = dense_outputs(program)
    loaded = load_image(image)
    preprocess, size = _prepared_size(program, (loaded.height, loaded.width))
    pixels = preprocess.apply(loaded)
    found: Any = model(as_input(program, preprocess, pixels[None]))
    outputs: Mapping[str, Any] = found if isinstance(found, dict) else {program.output_name: found}
    masks = {}
    for name in names:
        scores = outputs[name][0]
        classes = (scores[0] > 0) if len(scores) == 1 else scores.argmax(axis=0)
        labels = program.labels if name == program.output_name else None
        masks[name] = Mask(_resized(classes.astype(np.uint8), size), labels)
    return masks


def _prepared_size(program: Program, size: tuple[int, int]) -> tuple[Preprocess, tuple[int, int]]:
    """How an image of this size becomes an input, and the size of its mask."""
    stored = preprocess_of(program)
    chosen = {"crop", "resize"} & (program.preprocess or {}).keys()
    if chosen or not program.variable:
        whole = stored.aspect == "squash" and stored.resize == stored.crop
        crop = (stored.crop, stored.crop) if isinstance(stored.crop, int) else stored.crop
        return stored, size if whole else crop
    for wanted in (size, tuple(-(-n // STRIDE) * STRIDE for n in size)):
        try:
            program.for_input((program.input_shape[0], *wanted))
        except ProgramError:
            continue
        fields = {"mean": stored.mean, "std": stored.std, "channels": stored.channels}
        height, width = wanted
        return Preprocess((height, width), (height, width), **fields), size  # type: ignore[arg-type]
    return stored, size


def _resized(classes: UInt8, size: tuple[int, int]) -> UInt8:
    """Each pixel of the larger mask has the class of the nearest one."""
    if classes.shape == size:
        return classes
    pairs = zip(size, classes.shape, strict=True)
    rows, columns = (((np.arange(out) + 0.5) * n / out).astype(np.int64) for out, n in pairs)
    return np.ascontiguousarray(classes[rows][:, columns])
