"""Packed models on numpy alone: `load(path)` gives a callable from a batch of pictures to a batch of outputs.

>>> from xnorpp.runtime import load
>>> model = load("model.xnor")                        # doctest: +SKIP
>>> model(pictures)                                   # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from xnorpp.runtime.format.program import Op, Program, ProgramError, read, write
from xnorpp.runtime.limits import DEFAULT_LIMITS, Limits, check_limits, check_memory, reference_bytes
from xnorpp.runtime.work import check_threads

__all__ = ["Limits", "Model", "Op", "Program", "ProgramError", "ReferenceModel", "load", "read", "write"]

Array = npt.NDArray[Any]


class Model(Protocol):
    """A loaded model. Calling it is safe from several threads."""

    program: Program
    isa: str
    threads: int

    def __call__(self, x: Array) -> Any:
        """uint8 `(n, h, w, c)` images or normalised float32 `(n, c, h, w)` -> float32 outputs, any `n`; a
        dict by name where the program has several outputs."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the outputs, where the file has them."""

    @property
    def preprocess(self) -> Mapping[str, Any] | None:
        """How a picture becomes an input, where the file says it."""

    @property
    def memory(self) -> int:
        """Bytes the model holds."""


class ReferenceModel:
    """The definition in plain numpy as a model: right everywhere, fast nowhere."""

    isa = "reference"
    threads = 1

    def __init__(self, program: Program, limits: Limits = DEFAULT_LIMITS) -> None:
        check_limits(program, limits)
        check_memory(reference_bytes(program), limits)
        self.program = program

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.program.labels

    @property
    def preprocess(self) -> Mapping[str, Any] | None:
        return self.program.preprocess

    @property
    def memory(self) -> int:
        """Bytes of the weights and constants, as the file has them."""
        return sum(tensor.nbytes for tensor in self.program.tensors.values())

    def __call__(self, x: Array) -> Any:
        from xnorpp.runtime.reference import run

        return run(self.program, x)


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Program,
    threads: int | None = None,
    isa: str | None = None,
    device: str = "cpu",
    limits: Limits = DEFAULT_LIMITS,
) -> Model:
    """Load a packed model (a path, its bytes, or a `Program`).

    `isa` names the CPU kernels ("reference" is plain numpy); without it the environment variable `XNORPP_ISA`
    does, and without that the fastest that was built and this machine has is taken. `threads` is how many one
    call may use, at most 1024; without it the work of the call's pictures decides, up to one a core and 8.
    `device` is "cpu" or "cuda" ("cuda:1" for the second). `limits` bound what a file may ask for: its bytes,
    memory, and the work of one image.

    Raises:
        ImportError: the native core, which reads and runs files, is not built; the message says how to.
        ProgramError: the file is damaged, or needs more than `limits` allow.
        RuntimeError: the system does not start the threads.
    """
    check_threads(threads)
    program = source if isinstance(source, Program) else read(source, limits.file_bytes)
    if device != "cpu" and device.split(":")[0] != "cuda":
        raise ValueError(f"`device` (={device!r}) must be 'cpu', 'cuda' or 'cuda:N'")
    if device != "cpu":
        from xnorpp.runtime.cuda.model import CudaModel

        check_limits(program, limits)
        return CudaModel(program, device=device)
    chosen = isa or os.environ.get("XNORPP_ISA") or None
    if chosen == "reference":
        return ReferenceModel(program, limits)
    from xnorpp.runtime.cpu import CpuModel

    try:
        return CpuModel(program, threads, chosen, limits)
    except ValueError as error:
        if str(error).startswith("`isa`"):  # it ends with the core's own kernels
            raise ValueError(f"{error}, reference") from None
        raise
