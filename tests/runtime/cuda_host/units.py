"""Every launch against the definition, fed with what the engine itself had before that launch.

A sign that falls the other way changes everything behind it, so end to end only classes and counts can be
compared; launch by launch the comparison is exact: bits bit for bit, floats value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xnorpp.runtime.cuda.build import Builder, Schedule
from xnorpp.runtime.cuda.launch import Launch, extent
from xnorpp.runtime.cuda.memory import image_bytes
from xnorpp.runtime.format.program import INPUT
from xnorpp.runtime.reference import apply

Read = Callable[[int, int], np.ndarray]  # bytes (offset, size) of the working memory


class UnitCheck:
    """`before` and `after` each launch of a schedule; `flips` counts bits of layers with real-valued sums."""

    def __init__(self, builder: Builder, schedule: Schedule, x: np.ndarray, read: Read) -> None:
        self.builder, self.schedule, self.read = builder, schedule, read
        self.program = builder.program
        self.producer = {op.output: op for op in self.program.ops}
        self.x, self.seen, self.bits, self.flips = x, 0, 0, 0
        self.given: dict[str, np.ndarray] = {}

    def value(self, name: str, count: int) -> np.ndarray:
        """A value of the working memory as the definition has it, (n, c, h, w)."""
        place = self.schedule.layout.places[name]
        size = image_bytes(self.program, self.builder.bits, name, self.schedule.halves)
        raw = self.read(place.offset, count * size)
        shape = self.program.values[name].shape
        if name in self.builder.bits:
            signs = self.builder.bits[name][0].unpack(raw, count)
            return np.where(signs, np.int8(1), np.int8(-1)).reshape(count, *shape)
        dtype = np.float16 if name in self.schedule.halves else np.float32
        c, h, w = extent(shape)
        return np.moveaxis(raw.view(dtype).reshape(count, h, w, c), 3, 1).reshape(count, *shape)

    def before(self, launch: Launch) -> None:
        unit = self.schedule.units[launch.unit]
        self.given = {
            name: self.x if name == INPUT else np.asarray(self.value(name, launch.images))
            for name in unit.reads
        }
        self.given = {
            name: v.astype(np.float32) if v.dtype == np.float16 else v for name, v in self.given.items()
        }

    def wanted(self, name: str, known: dict[str, np.ndarray]) -> np.ndarray:
        if name not in known:
            op = self.producer[name]
            known[name] = apply(self.program, op, *(self.wanted(given, known) for given in op.inputs))
        return known[name]

    def after(self, launch: Launch) -> None:
        """Binary layers exactly; layers that sum real numbers within rounding, their flips counted."""
        unit = self.schedule.units[launch.unit]
        exact = unit.kind == "conv"
        known: dict[str, Any] = dict(self.given)
        for name in unit.writes:
            if name == self.program.output:
                continue
            got, want = self.value(name, launch.images), self.wanted(name, known)
            where = f"{unit.name}: {name}"
            if name in self.builder.bits:
                wrong = int((got != want).sum())
                assert not (exact and wrong), f"{where}: {wrong} of {want.size} bits"
                self.bits, self.flips = self.bits + want.size, self.flips + wrong
            elif exact:
                np.testing.assert_array_equal(got, want.astype(got.dtype), where)
            else:
                rough = 2.0**-10 if got.dtype == np.float16 else 2e-5
                taker = self.builder.taker
                first = taker is not None and unit.step.index == taker.index
                part = 1e-4 if first else 2e-5  # 16-bit filters
                np.testing.assert_allclose(
                    got.astype(np.float32), want, rtol=rough, atol=part * float(np.abs(want).max()),
                    err_msg=where,
                )  # fmt: skip
            self.seen += 1
