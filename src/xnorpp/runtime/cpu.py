"""The CPU engine: a plan's steps handed to the native core, which runs them.

All arithmetic is in `csrc/`; this file only says what each step is. Layouts of the core: a float value is
`(h, w, c)` with the channels of a pixel rounded up to 16, a bit value has 32-bit words a pixel.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight, window_of
from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import INPUT, Program, ProgramError
from xnorpp.runtime.limits import DEFAULT_LIMITS, Limits, check_limits, check_memory
from xnorpp.runtime.plan import (
    AddValue,
    Affine,
    Hardtanh,
    MicroOp,
    MulValue,
    Plan,
    Prelu,
    Relu,
    Spatial,
    Step,
    StoreBits,
    StoreFloat,
    make_steps,
    plan_memory,
)
from xnorpp.runtime.reference import byte_values, check_input
from xnorpp.runtime.stem import byte_step, filters_of, only_convolutions_read_the_picture
from xnorpp.runtime.work import check_threads, threads_worth

_core: Any = importlib.import_module("xnorpp.runtime._core")  # ImportError where it is not built

__all__ = ["CpuModel", "available_isas", "isa_table"]

Array = npt.NDArray[Any]
Stage = dict[str, Any]

_BITS = ("binary_conv2d", "binary_linear")
_CONVS = (*_BITS, "conv2d", "linear", "bitweight_conv2d", "bitweight_linear")
# Contiguous and aligned: a tensor of a file may begin at any byte.
_PLAIN: tuple[Literal["C"], Literal["A"]] = ("C", "A")
MOST_THREADS = 8  # that a call takes by itself
_POOLS = ("max_pool2d", "avg_pool2d", "box_filter")


def available_isas() -> list[str]:
    """The instruction sets that were built and that this machine has, best first."""
    return list(_core.available_isas())


def isa_table() -> list[tuple[str, bool, bool]]:
    """Every row of the dispatch table: (name, built, detected)."""
    return [tuple(row) for row in _core.isa_table()]


class CpuModel:
    """A program on the native core. Safe to call from several threads.

    Every call uses the `threads` that are given. Without them it uses as many as its pictures' work is worth
    (work.py), at most one a core and 8; `threads` then says how many one picture gets.

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
        check_limits(program, limits)
        self.program = program
        steps = make_steps(program)
        memory = limits.memory_bytes
        if threads is not None:
            self.threads = threads
            self._engine = _core.Engine(isa or "", threads, memory=memory)
        else:
            most, worth = min(len(os.sched_getaffinity(0)), MOST_THREADS), threads_worth(program, steps)
            self.threads = max(1, min(most, int(worth)))
            self._engine = _core.Engine(isa or "", most, worth, memory)
        self.isa: str = self._engine.isa
        try:
            _build(self._engine, program, steps, limits)
        except ProgramError:
            raise
        except (ValueError, RuntimeError, MemoryError) as error:
            raise ProgramError(f"this program cannot be run here: {error}") from None
        self._engine.start()
        self._output = program.values[program.output].shape

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.program.labels

    @property
    def preprocess(self) -> Mapping[str, Any] | None:
        return self.program.preprocess

    @property
    def memory(self) -> int:
        """Bytes the core holds: weights, constants and working memory."""
        return int(self._engine.memory)

    def __call__(self, x: Array) -> npt.NDArray[np.float32]:
        x = np.require(check_input(self.program, x), requirements=_PLAIN)
        y = np.empty((x.shape[0], *self._output), np.float32)
        if x.shape[0]:
            self._engine.run(x, y)
        return y

    def step_seconds(self, x: Array, repeats: int = 20) -> list[tuple[str, float]]:
        """(name, seconds) of each fused step for one picture on one thread: the least of `repeats` runs.

        The name is the producer's module path, or "pointwise". A convolution that runs together with the max
        pool behind it carries the time of both.
        """
        x = np.require(check_input(self.program, x)[:1], requirements=_PLAIN)
        least = np.min([self._engine.step_seconds(x) for _ in range(repeats)], axis=0)
        names = [step.kind if step.op is None else step.op.name for step in make_steps(self.program)]
        return list(zip(names, least.tolist(), strict=True))


def _extent(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)


def _stride(value: Value) -> int:
    """Floats of a pixel, or bytes of a pixel for bits."""
    channels = value.shape[0]
    return (channels + 31) // 32 * 4 if value.kind == "bits" else (channels + 15) // 16 * 16


def _build(engine: Any, program: Program, steps: tuple[Step, ...], limits: Limits) -> None:
    # A picture that only convolutions read keeps no padding channels: a row is then one run of numbers.
    tight = only_convolutions_read_the_picture(program, steps)
    taker = byte_step(program, steps)
    plan = plan_memory(program, _joined(steps), _sizes(program, steps, tight))
    check_memory(plan.arena, limits)
    ids: dict[str, int] = {}
    for name, offset in plan.offsets.items():
        value = program.values[name]
        stride = program.input_shape[0] if name == INPUT and tight else _stride(value)
        ids[name] = engine.add_value(value.kind == "bits", *_extent(value.shape), stride, offset)
    for step in plan.steps:
        _add(engine, plan, step, ids, taker is not None and step.index == taker.index)
    table = byte_values(program).ravel() if taker is None else np.zeros(0, np.float32)
    engine.finish(ids[INPUT], ids[program.output], plan.arena, table)


def _pool_behind(steps: tuple[Step, ...], index: int) -> bool:
    """Whether the core runs this convolution and the max pool behind it as one, row by row.

    Its epilogue must be the straight line that the core keeps in registers, and the pool may not write where
    the convolution still reads.
    """
    step = steps[index]
    if not step.feeds_pool or step.kind not in _CONVS:
        return False
    pool = steps[index + 1]
    line: list[tuple[type, ...]] = [
        (Affine,),
        (Relu, Prelu, Hardtanh),
        (AddValue,),
        (Relu, Prelu, Hardtanh),
        (StoreFloat,),
    ]
    for micro in step.epilogue:
        while line and not isinstance(micro, line[0]):
            line.pop(0)
        if not line or (
            isinstance(micro, Affine) and micro.spatial is not None and micro.spatial.full is not None
        ):
            return False
        line.pop(0)
    added = {micro.value for micro in pool.epilogue if isinstance(micro, AddValue)}
    return pool.op is not None and pool.op.attrs["kernel"][0] <= 8 and not added & set(step.reads)


def _joined(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """What a convolution reads must outlive the pool that runs with it."""
    joined = list(steps)
    for first, second in pairwise(steps):
        if _pool_behind(steps, first.index):
            joined[second.index] = replace(second, reads=tuple(dict.fromkeys(second.reads + first.reads)))
    return tuple(joined)


def _sizes(program: Program, steps: tuple[Step, ...], tight: bool) -> Callable[[Value], int]:
    """Bytes of a value; the input without padding, and next to nothing for what goes straight into a pool."""
    stored = [INPUT, *(name for step in steps for name in step.writes)]
    small = {INPUT: _size(program.values[INPUT], program.input_shape[0])} if tight else {}
    small |= {step.writes[0]: 64 for step in steps if _pool_behind(steps, step.index)}
    owners = Counter(id(program.values[name]) for name in stored)  # two names may share one description
    special = {id(program.values[n]): size for n, size in small.items() if owners[id(program.values[n])] == 1}
    return lambda value: special.get(id(value), _size(value, _stride(value)))


def _size(value: Value, stride: int) -> int:
    _, h, w = _extent(value.shape)
    return h * w * stride * (1 if value.kind == "bits" else 4)


def _add(engine: Any, plan: Plan, step: Step, ids: dict[str, int], direct: bool) -> None:
    program = plan.program
    stages = [stage for micro in step.epilogue for stage in _stages(micro, step, ids)]
    source = program.values[step.source]
    if step.kind not in _CONVS:
        numbers, value = _numbers(step)
        engine.add_step(step.kind, ids[step.source], _extent(step.shape), numbers, value, stages)
        return
    weight = _weight(step, source.shape[0])
    c, h, w = _extent(source.shape)
    picture = None
    if direct:
        filters = filters_of(program, step)
        picture = (filters.taps, filters.mean, filters.rest, filters.step)
    engine.add_conv(
        step.kind in _BITS,
        ids[step.source],
        [c, h, w, step.shape[0], *_window(step)],
        weight,
        step.bias if step.bias is None else np.ascontiguousarray(step.bias, np.float32),
        picture,
        stages,
        _pool_behind(plan.steps, step.index),
    )


def _weight(step: Step, channels: int) -> Array:
    weight = step.weight
    assert weight is not None
    assert step.op is not None
    if step.kind == "bitweight_conv2d":
        weight = unpack_conv_weight(weight, channels // step.op.attrs["groups"])
    elif step.kind == "bitweight_linear":
        weight = unpack_bits(weight, channels)
    return np.require(weight, np.uint8 if step.kind in _BITS else np.float32, _PLAIN)


def _window(step: Step) -> list[int]:
    """kh, kw, sh, sw, ph, pw, dh, dw, groups, pad_value; a linear layer is a 1x1 window on a 1x1 picture."""
    assert step.op is not None
    assert step.weight is not None
    if step.kind.endswith("linear"):
        return [1, 1, 1, 1, 0, 0, 1, 1, 1, 0]
    attrs = step.op.attrs
    kernel = window_of(step.weight)
    window = [*kernel, *attrs["stride"], *attrs["padding"], *attrs["dilation"]]
    return [*window, attrs["groups"], attrs.get("pad_value", 0)]


def _numbers(step: Step) -> tuple[list[int], float]:
    if step.op is None:
        return [], 0.0
    attrs = step.op.attrs
    if step.kind in _POOLS:
        dilation = attrs.get("dilation", [1, 1])
        include = int(attrs.get("count_include_pad", False))
        return [*attrs["kernel"], *attrs["stride"], *attrs["padding"], *dilation, include], 0.0
    if step.kind == "pad2d":
        return list(attrs["padding"]), float(attrs["value"])
    return [], 0.0


def _factor(spatial: Spatial, shape: tuple[int, ...]) -> tuple[str, Array]:
    """("map", one number a pixel) or ("full", one a pixel and channel, in the layout of a float value)."""
    dense = spatial.dense()
    if dense.ndim == 2:
        return "map", np.ascontiguousarray(dense, np.float32).ravel()
    c, h, w = _extent(shape)
    full = np.zeros((h, w, (c + 15) // 16 * 16), np.float32)
    full[:, :, :c] = dense.transpose(1, 2, 0)
    return "full", full.ravel()


def _stages(micro: MicroOp, step: Step, ids: dict[str, int]) -> list[Stage]:
    """The core's stages for one micro-operation."""
    c = step.shape[0]
    if isinstance(micro, Affine):
        stages: list[Stage] = []
        if micro.spatial is not None:
            kind, factor = _factor(micro.spatial, step.shape)
            stages.append({"kind": kind, "a": factor})
        if micro.mult is not None or micro.add is not None:
            mult = np.ones(c, np.float32) if micro.mult is None else micro.mult
            add = np.zeros(c, np.float32) if micro.add is None else micro.add
            rows = {key: np.ascontiguousarray(row, np.float32) for key, row in (("a", mult), ("b", add))}
            stages.append({"kind": "affine", **rows})
        return stages
    if isinstance(micro, Relu):
        return [{"kind": "relu"}]
    if isinstance(micro, Prelu):
        return [{"kind": "prelu", "a": np.ascontiguousarray(micro.slope, np.float32)}]
    if isinstance(micro, Hardtanh):
        return [{"kind": "hardtanh", "lo": micro.low, "hi": micro.high}]
    if isinstance(micro, AddValue):
        return [{"kind": "add_value", "value": ids[micro.value]}]
    if isinstance(micro, MulValue):
        return [{"kind": "mul_pixel" if micro.per_pixel else "mul_value", "value": ids[micro.value]}]
    if isinstance(micro, StoreFloat):
        return [{"kind": "store", "value": ids[micro.value]}]
    return [_sign(micro, step, ids)]


def _sign(micro: StoreBits, step: Step, ids: dict[str, int]) -> Stage:
    """A flipped channel compares `-v > -t`: the core xors `flip` into v; the threshold is negated here."""
    flipped = micro.flip != 0
    threshold = np.where(flipped, -micro.threshold, micro.threshold).astype(np.float32)
    flip = np.where(flipped, np.uint32(0x80000000), np.uint32(0)).astype(np.uint32).view(np.float32)
    stage: Stage = {"kind": "sign", "a": threshold, "flip": flip, "value": ids[micro.value]}
    if micro.spatial is not None:
        kind, factor = _factor(micro.spatial, step.shape)
        stage[kind] = factor
    return stage
