"""A packed model as a user meets it: `PackedModel`, and the engine that runs inside it."""

from __future__ import annotations

import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy.typing as npt

from xnorpp.runtime.format.batch import as_array, join_inputs
from xnorpp.runtime.format.preprocess import Preprocess
from xnorpp.runtime.format.program import Program, ProgramError, encode, read, write
from xnorpp.runtime.limits import (
    DEFAULT_LIMITS,
    Limits,
    check_limits,
    check_memory,
    check_threads,
    reference_bytes,
)
from xnorpp.runtime.predict import Guess, classify, outputs_of, preprocess_of, takes_images

if TYPE_CHECKING:
    from xnorpp.runtime.decode import ImageSource

__all__ = ["Engine", "EngineSettings", "PackedModel", "ReferenceModel", "check_settings", "start_engine"]

Array = npt.NDArray[Any]


class Engine(Protocol):
    """What runs a program: native CPU kernels, CUDA, or the reference. It is safe to call from threads."""

    program: Program
    isa: str
    threads: int

    def __call__(self, x: Array) -> Any:
        """A batch, uint8 `(n, h, w, c)` or normalised float32 `(n, c, h, w)`, to float32 outputs, any `n`.

        An array, or a dict of arrays by name where the program has several outputs.
        """

    @property
    def memory(self) -> int:
        """Bytes that the engine holds."""


class EngineSettings(NamedTuple):
    """How an engine is made: what a copy of a model in another process is made with, too."""

    threads: int | None = None
    isa: str | None = None
    device: str = "cpu"
    limits: Limits = DEFAULT_LIMITS


class PackedModel:
    """A packed model that runs: what `xnorpp.load` and `xnorpp.pack` return.

    Calling it takes a batch or one image. It may be called from several threads at once. It can be pickled
    and deep-copied (as the bytes of its file and the settings), so that it works with `multiprocessing`,
    joblib and Ray; each copy starts an engine of its own, at its first use.

    Args:
        program: The packed program.
        threads: How many threads one call may use, 1 to 1024. By default the work of the call's images
            decides, up to one per core and 8.
        isa: The CPU kernels, as in `available_isas()`, or "reference". By default those of the environment
            variable `XNORPP_ISA`, or the fastest that this machine has.
        device: "cpu", "cuda" or "cuda:N".
        limits: What the program may ask for in memory and in work per image.

    Raises:
        ProgramError: The pre-processing in the program is wrong or does not fit its input.
        ValueError: An argument is wrong.

    Example:
        >>> import xnorpp
        >>> model = xnorpp.load("cifar10-resnet20")
        >>> model.input_shape
        (3, 32, 32)
        >>> import numpy as np
        >>> model(np.zeros((32, 32, 3), np.uint8)).shape
        (10,)
    """

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        isa: str | None = None,
        device: str = "cpu",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if not isinstance(program, Program):
            raise TypeError(
                f"`program` is {type(program).__name__}; a Program is needed (`load` reads a file)"
            )
        self.settings = EngineSettings(threads, isa, device, limits)
        check_settings(self.settings)
        self.program = program
        if program.preprocess is not None:
            try:
                self.preprocess  # noqa: B018  # wrong fields are found now, not at the first image
            except ValueError as error:
                raise ProgramError(f"input: {error}") from None
        self._batch_axes = len(program.input_shape) + 1
        self._scalars = _scalars(program)
        self._started: Engine | None = None
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        """The engine that runs the program, started at its first use."""
        return self._started or self.start()

    def start(self) -> Engine:
        """Start the engine now; without it the first use does."""
        with self._lock:
            if self._started is None:
                self._started = start_engine(self.program, self.settings)
            return self._started

    def __call__(self, x: Any, *more: Any) -> Any:
        """Run a batch or one image.

        Args:
            x: uint8 images (n, h, w, c), normalised inside; or float32 (n, c, h, w), already normalised; or
                one image without the axis n. Anything that `numpy.asarray` converts to such an array is
                accepted; on a GPU also a torch tensor there.

            *more: The other inputs of a model that takes several, as it takes them.

        Returns:
            float32 outputs (n, ...), without the axis n for one image. Where the model has several outputs, a
            dict of them by name.

        Raises:
            ValueError: `x` has another type or shape.
        """
        engine = self._started or self.start()
        if more:
            x, single = join_inputs(self.program, (x, *more))
            return self(x[0] if single else x)
        try:
            axes = x.ndim
        except AttributeError:
            x = as_array(x)
            axes = x.ndim
        single = axes == self._batch_axes - 1
        found = engine(x[None] if single else x)
        if self._scalars:
            found = _without_axis(found, self._scalars)
        if not single:
            return found
        return {name: one[0] for name, one in found.items()} if isinstance(found, dict) else found[0]

    def classify(self, image: ImageSource, top: int = 5) -> tuple[Guess, ...]:
        """The most likely classes of one image, best first.

        The image is prepared as `preprocess` describes, turned upright first where its EXIF block demands it,
        and given to the engine as bytes (as float32 where the file has format version 1). Probabilities use
        the temperature that is stored in the file, if there is one.

        Args:
            image: A path, the bytes of an image file, a binary file object, a Pillow image, or a uint8 array
                (H, W) or (H, W, C) of any size.
            top: How many classes, at least 1.

        Returns:
            `Guess(index, label, probability)`, at most `top` of them.

        Raises:
            CorruptImageError: The image cannot be read (a ValueError).
            ValueError: The model has several outputs or a dense one, or its input is no image.
        """
        return classify(self, image, top)

    def segment(self, image: ImageSource) -> Any:
        """The class of each pixel of an image, for a model with a dense output.

        Args:
            image: As of `classify`.

        Returns:
            uint8 (height, width) of the image's own size; of an output with one channel, 1 where it is above
            0. A dict by name where the model has several dense outputs.

        Raises:
            CorruptImageError: The image cannot be read (a ValueError).
            ValueError: The model has no dense output, or its input is no image.
        """
        from xnorpp.runtime.masks import segment

        masks = {name: mask.classes for name, mask in segment(self, image).items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def save(self, path: str | os.PathLike[str], *, short_names: bool = False) -> int:
        """Write the packed file, whole or not at all, and return its size in bytes.

        Args:
            path: The file.
            short_names: Number the tensors instead of naming them after their modules. The header is some
                7 kB smaller for 20 layers, and the answers are the same.
        """
        if not short_names:
            return write(self.program, path)
        from xnorpp.runtime.format.names import with_short_names

        return write(with_short_names(self.program), path)

    @property
    def isa(self) -> str:
        """The kernels that run it."""
        return self.engine.isa

    @property
    def threads(self) -> int:
        """How many threads one call may use; where that follows from the work, how many one image gets."""
        return self.engine.threads

    @property
    def memory(self) -> int:
        """Bytes that the engine holds."""
        return self.engine.memory

    @property
    def device(self) -> str:
        """Where it runs: "cpu", "cuda" or "cuda:N"."""
        return self.settings.device

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, where the file has them."""
        return self.program.labels

    @cached_property
    def preprocess(self) -> Preprocess | None:
        """How an image becomes an input: what the file stores, with defaults for what it leaves out.

        Without anything in the file, images are squashed to the input's size. None where the input is not an
        image of 1 to 4 channels.
        """
        return preprocess_of(self.program) if takes_images(self.program) else None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(channels, height, width) of one image."""
        return self.program.input_shape

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(outputs_of(self.program))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (encode(self.program), *self.settings)

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, shape)) for shape in outputs_of(self.program).values())
        engine = self.settings.device if self._started is None else f"{self.isa}, threads={self.threads}"
        return f"PackedModel({'x'.join(map(str, self.input_shape))} -> {shapes}; {engine})"


def _scalars(program: Program) -> tuple[str, ...]:
    """Outputs whose one number has no axis in the trained model, (n,), as the packer recorded them."""
    recorded = program.meta.get("scalars")
    names = recorded if isinstance(recorded, list) else []
    return tuple(name for name, shape in outputs_of(program).items() if name in names and shape == (1,))


def _without_axis(found: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(found, dict):
        return found[:, 0]
    return {name: value[:, 0] if name in names else value for name, value in found.items()}


def _restored(content: bytes, *settings: Any) -> PackedModel:
    return PackedModel(read(content, EngineSettings(*settings).limits.file_bytes), *settings)


class ReferenceModel:
    """The definition in plain numpy as an engine: right everywhere, fast nowhere.

    Example:
        >>> import numpy as np
        >>> import xnorpp
        >>> from xnorpp.runtime import ReferenceModel
        >>> fast = xnorpp.load("cifar10-resnet20")
        >>> images = np.zeros((1, 3, 32, 32), np.float32)
        >>> np.allclose(ReferenceModel(fast.program)(images), fast(images), atol=1e-4)
        True
    """

    isa = "reference"
    threads = 1

    def __init__(self, program: Program, limits: Limits = DEFAULT_LIMITS) -> None:
        check_limits(program, limits)
        check_memory(reference_bytes(program), limits)
        self.program = program

    @property
    def memory(self) -> int:
        """Bytes of the weights and constants, as the file has them."""
        return sum(tensor.nbytes for tensor in self.program.tensors.values())

    def __call__(self, x: Array) -> Any:
        from xnorpp.runtime.reference import run

        return run(self.program, x)


def start_engine(program: Program, settings: EngineSettings) -> Engine:
    """The engine that the settings ask for."""
    if settings.device != "cpu":
        from xnorpp.runtime.cuda.model import CudaModel

        check_limits(program, settings.limits)
        return CudaModel(program, device=settings.device)
    named = os.environ.get("XNORPP_ISA") or None
    chosen = settings.isa or named
    if chosen == "reference":
        return ReferenceModel(program, settings.limits)
    from xnorpp.runtime.cpu import CpuModel

    if chosen is not None:
        _check_isa(chosen, "`isa`" if settings.isa else "XNORPP_ISA")
    return CpuModel(program, settings.threads, chosen, settings.limits)


def check_settings(settings: EngineSettings) -> None:
    """Raise a ValueError for settings that no engine can be made with, whatever the machine."""
    check_threads(settings.threads)
    if not isinstance(settings.limits, Limits):
        raise TypeError(f"`limits` is {type(settings.limits).__name__}; a Limits is needed")
    device = settings.device
    name, colon, number = str(device).partition(":")
    if device != "cpu" and (name != "cuda" or (colon and not number.isdecimal())):
        raise ValueError(f"`device` (={device!r}) must be 'cpu', 'cuda' or 'cuda:N'")
    if device != "cpu":
        for option in ("threads", "isa"):
            value = getattr(settings, option)
            if value is not None:
                raise ValueError(
                    f"`{option}` (={value!r}) is for the CPU; leave it out with device={device!r}"
                )


def _check_isa(isa: str, where: str) -> None:
    """Refuse kernels that are unknown or do not run here, with those that do."""
    from xnorpp.runtime.cpu import available_isas, isa_table

    rows = {name: (built, detected) for name, built, detected in isa_table()}
    if isa not in rows:
        raise ValueError(f"{where} (={isa!r}) is unknown; known are {', '.join(rows)}, reference")
    built, detected = rows[isa]
    if not (built and detected):
        reason = "not a feature of this processor" if built else "not built into this package"
        usable = ", ".join([*available_isas(), "reference"])
        raise ValueError(f"{where} (={isa!r}) is {reason}; available are {usable}")
