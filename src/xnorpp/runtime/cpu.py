"""The CPU engine: the native core reads, plans and runs a program; all arithmetic is in `csrc/`."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.batch import check_input, shape_of_batch
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.limits import DEFAULT_LIMITS, Limits, check_threads, threads_worth
from xnorpp.runtime.machine import available_cores
from xnorpp.runtime.native import core

_core: Any = core()  # ImportError where it is not built

__all__ = ["CpuModel", "available_isas", "isa_table"]

Array = npt.NDArray[Any]

# Contiguous and aligned: a caller's array may begin at any byte.
_PLAIN: tuple[Literal["C"], Literal["A"]] = ("C", "A")
MOST_THREADS = 8  # that a call takes by itself
SIZES = 4  # input sizes of a program of any size whose engines are ready at the same time


def available_isas() -> list[str]:
    """The instruction sets that were built and that this machine has, in the order of choice."""
    return list(_core.available_isas())


def isa_table() -> list[tuple[str, bool, bool]]:
    """Every row of the dispatch table: (name, built, detected)."""
    return [tuple(row) for row in _core.isa_table()]


class CpuModel:
    """A program on the native core. Safe to call from several threads.

    Every call uses the `threads` that are given. Without them it uses as many as its images' work is worth
    (limits.py), at most one per core and 8; `threads` then is how many one image gets. A program of any
    input size is planned again for each size; the last few sizes stay ready.

    Raises:
        ProgramError: the program needs more than `limits` allow, or this machine has.
        RuntimeError: the system does not start the threads.
    """

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        isa: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        check_threads(threads)
        self.program = program
        if threads is not None:
            self.threads = threads
            self._options = (isa or "", threads, math.inf, limits.numbers)
        else:
            most, worth = min(available_cores(), MOST_THREADS), threads_worth(program)
            self.threads = max(1, min(most, int(worth)))
            self._options = (isa or "", most, worth, limits.numbers)
        self._engine = _core.Engine(program.native, *self._options)
        self.isa: str = self._engine.isa
        self._output = program.values[program.output].shape
        self._single = not program.variable and not program.more_outputs
        self._sizes: OrderedDict[tuple[int, ...], tuple[Any, Program]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def memory(self) -> int:
        """Bytes the core holds: weights, constants and working memory."""
        with self._lock:
            return int(self._engine.memory) + sum(int(engine.memory) for engine, _ in self._sizes.values())

    def __call__(self, x: Array) -> Any:
        """float32 outputs for a batch; a dict by name where the program has several outputs."""
        x = np.require(check_input(self.program, x), requirements=_PLAIN)
        if self._single:
            y = np.empty((x.shape[0], *self._output), np.float32)
            if x.shape[0]:
                self._engine.run(x, y)
            return y
        engine, program = self._for(x)
        outputs = {
            name: np.empty((x.shape[0], *program.values[value].shape), np.float32)
            for name, value in program.outputs.items()
        }
        if x.shape[0]:
            engine.run_all(x, list(outputs.values()))
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    def _for(self, x: Array) -> tuple[Any, Program]:
        """The engine for the size of a batch."""
        shape = shape_of_batch(x)
        if shape == self.program.input_shape:
            return self._engine, self.program
        with self._lock:
            ready = self._sizes.pop(shape, None)
            if ready is None:
                program = self.program.for_input(shape)
                ready = (_core.Engine(program.native, *self._options), program)
            self._sizes[shape] = ready  # the newest last
            if len(self._sizes) > SIZES:
                self._sizes.popitem(last=False)
        return ready

    def step_seconds(self, x: Array, repeats: int = 20) -> list[tuple[str, float]]:
        """(name, seconds) of each fused step for one image on one thread: the least of `repeats` runs.

        The name is the producer's module path, or "pointwise". A convolution that runs together with the max
        pool after it carries the time of both.
        """
        from xnorpp.runtime.plan import make_steps

        x = np.require(check_input(self.program, x)[:1], requirements=_PLAIN)
        engine, _ = self._for(x)
        least = np.min([engine.step_seconds(x) for _ in range(repeats)], axis=0)
        names = [step.kind if step.op is None else step.op.name for step in make_steps(self.program)]
        return list(zip(names, least.tolist(), strict=True))
