"""Producers that are the same in both modes: means, images of another size, and layers that move numbers and
change none.

Where such a layer takes each number from is worked out once, here, by running the reference's operation on
the numbers' places. For nearly all of them the place is a sum of a part for the channel, one for the row and
one for the column: a step, or a small table where there is no one step.
"""

from __future__ import annotations

import abc

import numpy as np

from xnorpp.export.c.layers import extent
from xnorpp.export.c.writer import Array, Writer
from xnorpp.export.errors import refuse
from xnorpp.runtime.reference.moves import taps, windows
from xnorpp.runtime.reference.rows import apply

AXES = {"y": 0, "x": 1, "o": 2}  # of the order in which numbers lie: rows, columns, channels


def places_of(shape: tuple[int, ...]) -> Array:
    """Where each number of a value lies in the arena, in the value's own shape."""
    channels, rows, columns = extent(shape)
    lying = np.arange(channels * rows * columns, dtype=np.int64).reshape(rows, columns, channels)
    return np.moveaxis(lying, -1, 0).reshape(shape)


class SharedWriter(Writer):
    """What a producer of both modes needs to know of a mode."""

    register_type: str  # the C type of `v`

    @abc.abstractmethod
    def taken(self, value: str, at: str) -> str:
        """The C expression of a stored number `at` of a value as what the register holds."""

    @abc.abstractmethod
    def shares(self, values: Array) -> Array:
        """Numbers from 0 to 1 as the register's type has them."""

    @abc.abstractmethod
    def joined(self, value: str, at: str) -> str:
        """The same in the exponent of the layer's result."""

    def _global_avg_pool(self) -> None:
        _, height, width = extent(self.program.values[self.layer.source].shape)
        self.needs.add("global_mean")
        pixels = self.function.take("int32_t", "pixels", str(height * width))
        self.line(f"{self.register_type} v = global_mean({self.source()}, {pixels}, l->channels, o);")

    def _abs_mean(self) -> None:
        self.needs.add("abs_mean")
        size = self.function.take("int32_t", "size", str(self.program.values[self.layer.source].shape[0]))
        self.line(f"{self.register_type} v = abs_mean({self.source()} + pixel * {size}, {size});")

    def _flatten(self) -> None:
        channels, height, width = extent(self.program.values[self.layer.source].shape)
        pixels = self.function.take("int32_t", "pixels", str(height * width))
        size = self.function.take("int32_t", "size", str(channels))
        place = f"o % {pixels} * {size} + o / {pixels}"
        self.line(f"{self.register_type} v = {self.taken(self.layer.source, f'{self.source()}[{place}]')};")

    def _bilinear2d(self) -> None:
        """For each row (and column) the first of the two around it and the weight of the second."""
        op = self.layer.op
        assert op is not None
        image, source, given = self._image(), self.source(), []
        for axis, name in enumerate(("y", "x")):
            first, _, _, high = taps(op, self.program.values[self.layer.source].shape[axis + 1], axis)
            weight = self._table(f"{name}_weight", self.shares(np.asarray(high)), self.register_type)
            given += [f"{self._table(f'{name}_place', first)}[{name}]", f"{weight}[{name}]"]
        self.needs.add("bilinear")
        self.line(f"{self.register_type} v = bilinear({image}, {source}, {', '.join(given)}, o);")

    def _adaptive_avg_pool2d(self) -> None:
        self._adaptive("adaptive_avg_pool")

    def _adaptive_max_pool2d(self) -> None:
        self._adaptive("adaptive_max_pool")

    def _adaptive(self, function: str) -> None:
        """For each row (and column) of the result where its window begins and ends."""
        sizes, results = self.program.values[self.layer.source].shape[1:], self.layer.shape[1:]
        image, source, given = self._image(), self.source(), []
        for name, size, out in zip(("y", "x"), sizes, results, strict=True):
            window = self._table(f"{name}_window", np.asarray(windows(size, out)))
            given.append(f"{window} + 2 * {name}")
        self.needs.add(function)
        self.line(f"{self.register_type} v = {function}({image}, {source}, {', '.join(given)}, o);")

    def _image(self) -> str:
        """The C expression of the size of the image that the producer reads."""
        channels, height, width = extent(self.program.values[self.layer.source].shape)
        return "&" + self.function.take("struct image", "image", f"{{{height}, {width}, {channels}}}")

    def moved(self) -> None:
        """A layer that takes each number from another place."""
        op, source = self.layer.op, self.layer.source
        assert op is not None
        origin = places_of(self.program.values[source].shape)
        found = apply(self.program, op, origin[None].astype(np.float64))[0]
        channels, rows, columns = self.layer.extent
        lying = np.moveaxis(found.reshape(channels, rows, columns), 0, -1).astype(np.int64)
        place = self._index(lying)
        self.line(f"{self.register_type} v = {self.taken(source, f'{self.source()}[{place}]')};")

    def _index(self, lying: Array) -> str:
        """The C expression of a place that depends on the row, the column and the channel."""
        parts, total = [], np.full((1, 1, 1), lying[0, 0, 0])
        for name, axis in AXES.items():
            line = np.moveaxis(lying, axis, 0)[:, 0, 0] - lying[0, 0, 0]
            total = total + line.reshape([-1 if other == axis else 1 for other in range(3)])
            if line.size > 1:
                parts.append(self._part(name, line))
        if not np.array_equal(total, lying):
            return f"{self._table('place', lying)}[i]"
        if lying[0, 0, 0]:
            parts.append(self.function.take("int32_t", "first", str(lying[0, 0, 0])))
        return " + ".join(parts) or "0"

    def _part(self, name: str, line: Array) -> str:
        step = int(line[1])
        if np.array_equal(line, step * np.arange(line.size)):
            return f"{name} * {self.function.take('int32_t', f'{name}_step', str(step))}"
        return f"{self._table(f'{name}_place', line)}[{name}]"

    def _table(self, name: str, values: Array, ctype: str = "int32_t") -> str:
        constant = self.constant(ctype, name, values.astype(np.float32 if ctype == "float" else np.int32))
        return self.function.take(f"const {ctype} *", name, constant)

    def _concat(self) -> None:
        op = self.layer.op
        assert op is not None
        rank, axis = len(self.layer.shape), int(op.attrs["axis"])
        names = {rank - 1: "x", 0: "o", **({1: "y"} if rank == 3 else {})}
        if axis not in names:
            reason = f"generated C joins along the first or last of {rank} axes, not along axis {axis}"
            raise refuse(self.layer.name, op.op, "C", reason)
        along, begin = names[axis], 0
        self.line(f"{self.register_type} v;")
        for number, value in enumerate(op.inputs):
            shape = self.program.values[value].shape
            channels, _, columns = extent(shape)
            at = {name: name for name in AXES}
            if begin:
                at[along] = f"({along} - {self.function.take('int32_t', 'begin', str(begin))})"
            size, wide = (
                self.function.take("int32_t", name, str(n))
                for name, n in (("size", channels), ("wide", columns))
            )
            begin += shape[axis]
            test = ""
            if number + 1 < len(op.inputs):
                test = f"if ({along} < {self.function.take('int32_t', 'end', str(begin))})"
            if len(op.inputs) > 1:
                self.line(f"else {test}".strip() if number else test)
            memory = self.function.take(f"const {self.number_type(value)} *", "part", self.place(value))
            place = f"{memory}[({at['y']} * {wide} + {at['x']}) * {size} + {at['o']}]"
            self.line(f"    v = {self.joined(value, place)};")
