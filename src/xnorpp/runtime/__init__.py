"""Packed models on numpy alone: `load(path)` gives a callable from images to outputs.

>>> import numpy as np
>>> from xnorpp.runtime import load
>>> from xnorpp.shipped import shipped_path
>>> model = load(shipped_path("cifar10-resnet20"))
>>> model(np.zeros((1, 32, 32, 3), np.uint8)).shape
(1, 10)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xnorpp.lazy import names_from
from xnorpp.runtime.format.preprocess import Preprocess
from xnorpp.runtime.format.program import Op, Program, ProgramError, read, write
from xnorpp.runtime.limits import DEFAULT_LIMITS, Limits
from xnorpp.runtime.model import EngineSettings, PackedModel, ReferenceModel, check_settings
from xnorpp.runtime.predict import Guess, Prediction

__all__ = [
    "Guess",
    "Limits",
    "Op",
    "PackedModel",
    "Prediction",
    "Preprocess",
    "Program",
    "ProgramError",
    "ReferenceModel",
    "load",
    "read",
    "write",
]

if not TYPE_CHECKING:  # a type checker is to refuse names that do not exist
    __getattr__ = names_from(__name__, {})  # names of 0.1.0


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Program,
    threads: int | None = None,
    isa: str | None = None,
    device: str = "cpu",
    limits: Limits = DEFAULT_LIMITS,
) -> PackedModel:
    """Load a packed model and start its engine.

    Args:
        source: A path, the bytes of the file, or a `Program`.
        threads: How many threads one call may use, 1 to 1024. By default the work of the call's images
            decides, up to one per core and 8.
        isa: The CPU kernels; "reference" is plain numpy. By default those of the environment variable
            `XNORPP_ISA`, or the fastest that was built and that this machine has.
        device: "cpu", "cuda", or "cuda:1" for the second GPU.
        limits: What a file may ask for: its bytes, memory, and the work of one image.

    Raises:
        ImportError: The native core, which reads and runs files, is not built.
        ProgramError: The file is damaged, needs more than `limits` allow, or has a pre-processing that is
            wrong or does not fit its input.
        ValueError: An argument is wrong.
        RuntimeError: The system does not start the threads.
        CudaError: There is no GPU that can be used.

    Example:
        >>> from xnorpp.runtime import load
        >>> from xnorpp.shipped import shipped_path
        >>> model = load(shipped_path("cifar10-resnet20"), threads=1)
        >>> model.input_shape, model.labels[0]
        ((3, 32, 32), 'airplane')
    """
    check_settings(EngineSettings(threads, isa, device, limits))  # before a large file is read
    program = source if isinstance(source, Program) else read(source, limits.file_bytes)
    try:
        model = PackedModel(program, threads, isa, device, limits)
    except ProgramError as error:
        if isinstance(source, (str, os.PathLike)):  # `read` names the file in its errors too
            raise ProgramError(f"{os.fspath(source)}: {error}") from None
        raise
    model.start()  # what cannot run here is an error now, not at the first call
    return model
