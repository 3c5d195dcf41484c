"""Values of another size in standard ONNX operators: images enlarged, reduced, padded and cut, reshaping.

Rows and columns are picked by number, with the definition's weights: `Resize` of an engine rounds otherwise.
Where the size of an image is free, these numbers and weights are computed in the graph, each step as the
definition has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export.errors import refuse
from xnorpp.runtime.format.program import Op
from xnorpp.runtime.reference.moves import chosen, cubic_taps, taps, windows

Make = Callable[..., str]
Pairs = list[tuple[str, str]]  # rows (or columns) by number, and their weights
_CUBIC = -0.75


class _Axis:
    """What a row or column of the result is made of, along one axis of an image of any size."""

    def __init__(self, t: Any, x: str, axis: int, out: str) -> None:
        self.g, self.axis, self.out = t.graph, axis, out
        self.size = self.g.node("Shape", x, start=axis, end=axis + 1)

    def _count(self, out: str) -> str:
        zero, one = (self.g.constant(f"int.{n}", np.asarray(n, np.int64)) for n in (0, 1))
        return str(self.g.node("Range", zero, self.g.node("Squeeze", out), one))

    def _real(self, x: str) -> str:
        return str(self.g.cast(x, self.g.onnx.TensorProto.FLOAT))

    def _whole(self, x: str) -> str:
        return str(self.g.cast(x, self.g.onnx.TensorProto.INT64))

    def _last(self) -> str:
        return str(self.g.node("Sub", self.size, self.g.numbers(1)))

    def _inside(self, x: str) -> str:
        return str(self.g.node("Max", self.g.node("Min", x, self._last()), self.g.numbers(0)))

    def ratio(self, op: Op) -> str:
        g = self.g
        if op.attrs["align_corners"]:
            steps = g.node("Max", g.node("Sub", self.out, g.numbers(1)), g.numbers(1))
            return str(g.node("Div", self._real(self._last()), self._real(steps)))
        scale = op.attrs.get("scale")
        if scale is not None:
            return str(g.scalar(float(np.float32(1.0 / scale[self.axis - 2]))))
        return str(g.node("Div", self._real(self.size), self._real(self.out)))

    def place(self, op: Op) -> str:
        g = self.g
        index, ratio = self._real(self._count(self.out)), self.ratio(op)
        if op.attrs["align_corners"]:
            return str(g.node("Mul", ratio, index))
        half = g.scalar(0.5)
        return str(g.node("Sub", g.node("Mul", ratio, g.node("Add", index, half)), half))

    def nearest(self, op: Op) -> str:
        g = self.g
        index = self._real(self._count(self.out))
        if op.attrs["mode"] == "nearest-exact":
            index = g.node("Add", index, g.scalar(0.5))
        return self._inside(self._whole(g.node("Floor", g.node("Mul", index, self.ratio(op)))))

    def pairs(self, op: Op) -> Pairs:
        g = self.g
        place = self.place(op)
        if op.attrs["mode"] == "bicubic":
            return self._cubic(place)
        place = g.node("Max", place, g.scalar(0.0))
        first = self._inside(self._whole(g.node("Floor", place)))
        above = g.node("Sub", place, self._real(first))
        high = g.node("Min", g.node("Max", above, g.scalar(0.0)), g.scalar(1.0))
        second = self._inside(g.node("Add", first, g.numbers(1)))
        return [(first, g.node("Sub", g.scalar(1.0), high)), (second, high)]

    def _cubic(self, place: str) -> Pairs:
        g, a = self.g, _CUBIC
        kinds = g.onnx.TensorProto
        whole = g.node("Floor", place)
        t = g.cast(g.node("Sub", place, whole), kinds.DOUBLE)

        def number(value: float) -> str:
            return str(g.constant(f"double.{value!r}", np.asarray(value)))

        def polynomial(d: str, *factors: float) -> str:
            """((f0*d + f1)*d + f2)*d + f3."""
            value = number(factors[0])
            for factor in factors[1:]:
                value = g.node("Add", g.node("Mul", value, d), number(factor))
            return value

        def near(d: str) -> str:
            return polynomial(d, a + 2, -(a + 3), 0.0, 1.0)

        def far(d: str) -> str:
            return polynomial(d, a, -5 * a, 8 * a, -4 * a)

        one, two = number(1.0), number(2.0)
        before, after = g.node("Add", t, one), g.node("Sub", one, t)
        weights = [far(before), near(t), near(after), far(g.node("Sub", two, t))]
        first = self._whole(whole)
        rows = [self._inside(g.node("Add", first, g.numbers(k))) for k in (-1, 0, 1, 2)]
        return [(row, self._real(weight)) for row, weight in zip(rows, weights, strict=True)]

    def means(self) -> str:
        """A matrix (out, size) whose rows are the windows of an adaptive pool."""
        g = self.g
        rows = g.node("Unsqueeze", self._count(self.out), g.numbers(1))
        columns, one = self._count(self.size), g.numbers(1)
        first = g.node("Div", g.node("Mul", rows, self.size), self.out)
        end = g.node("Mul", g.node("Add", rows, one), self.size)
        end = g.node("Div", g.node("Add", end, g.node("Sub", self.out, one)), self.out)
        inside = g.node("And", g.node("GreaterOrEqual", columns, first), g.node("Less", columns, end))
        return str(g.node("Div", self._real(inside), self._real(g.node("Sub", end, first))))


class _Fixed:
    """The same for an image whose size is known."""

    def __init__(self, t: Any, op: Op, axis: int) -> None:
        self.g, self.axis = t.graph, axis
        self.size = t.program.values[op.inputs[0]].shape[axis - 1]
        self.out = t.program.values[op.output].shape[axis - 1]

    def _numbers(self, values: npt.NDArray[Any], kind: type) -> str:
        return str(self.g.constant(f"taps.{len(self.g.constants)}", np.asarray(values, kind)))

    def nearest(self, op: Op) -> str:
        return self._numbers(chosen(op, self.size, self.axis - 2), np.int64)

    def pairs(self, op: Op) -> Pairs:
        if op.attrs["mode"] == "bicubic":
            places, weights = cubic_taps(op, self.size, self.axis - 2)
            found = list(zip(places, weights, strict=True))
        else:
            first, second, low, high = taps(op, self.size, self.axis - 2)
            found = [(first, low), (second, high)]
        return [(self._numbers(rows, np.int64), self._numbers(weight, np.float32)) for rows, weight in found]

    def means(self) -> str:
        matrix = np.zeros((self.out, self.size), np.float32)
        for row, (first, end) in zip(matrix, windows(self.size, self.out), strict=True):
            row[first:end] = 1 / (end - first)
        return self._numbers(matrix, np.float32)


def _axes(t: Any, op: Op, x: str, sizes: list[str] | None = None) -> list[_Axis | _Fixed]:
    if not t.program.variable:
        return [_Fixed(t, op, axis) for axis in (2, 3)]
    return [_Axis(t, x, axis, out) for axis, out in zip((2, 3), sizes or _given_sizes(t, op, x), strict=True)]


def _given_sizes(t: Any, op: Op, x: str) -> list[str]:
    g = t.graph
    if op.attrs["size"] is not None:
        return [g.numbers(size) for size in op.attrs["size"]]
    found = []
    for axis, scale in zip((2, 3), op.attrs["scale"], strict=True):
        size = g.cast(g.node("Shape", x, start=axis, end=axis + 1), g.onnx.TensorProto.DOUBLE)
        factor = g.constant(f"double.{float(scale)!r}", np.asarray(float(scale)))
        wide = g.node("Floor", g.node("Mul", size, factor))
        found.append(g.cast(wide, g.onnx.TensorProto.INT64))
    return found


def _resampled(t: Any, op: Op, x: str, axes: list[_Axis | _Fixed]) -> str:
    g = t.graph
    rows, columns = axes
    if op.attrs["mode"] not in ("bilinear", "bicubic"):
        return str(
            g.node("Gather", g.node("Gather", x, rows.nearest(op), axis=2), columns.nearest(op), axis=3)
        )

    def weighted(source: str, pairs: Pairs, axis: int) -> str:
        total = ""
        for places, weight in pairs:
            if axis == 2:
                weight = g.node("Unsqueeze", weight, g.numbers(1))
            part = g.node("Mul", g.node("Gather", source, places, axis=axis), weight)
            total = g.node("Add", total, part) if total else part
        return total

    return weighted(weighted(x, columns.pairs(op), 3), rows.pairs(op), 2)


def upsample2d(t: Any, op: Op, x: str) -> str:
    return _resampled(t, op, x, _axes(t, op, x))


def _means(t: Any, x: str, axes: list[_Axis | _Fixed]) -> str:
    """Means as two products with matrices: windows of an adaptive pool have different sizes."""
    g = t.graph
    rows, columns = (axis.means() for axis in axes)
    return str(g.node("MatMul", g.node("MatMul", rows, x), g.node("Transpose", columns, perm=[1, 0])))


def adaptive_avg_pool2d(t: Any, op: Op, x: str) -> str:
    return _means(t, x, _axes(t, op, x))


def adaptive_max_pool2d(t: Any, op: Op, x: str) -> str:
    if list(op.attrs["size"]) == [1, 1]:
        return str(t.graph.node("GlobalMaxPool", x))
    if t.program.variable:
        reason = "its windows depend on the size of the image, which is free; export one size with --size"
        raise refuse(op.name, op.op, t.target, reason)
    sizes = t.program.values[op.inputs[0]].shape[1:]
    kernel = [size // out for size, out in zip(sizes, op.attrs["size"], strict=True)]
    if any(size % out for size, out in zip(sizes, op.attrs["size"], strict=True)):
        raise refuse(op.name, op.op, t.target, "its windows have different sizes, and MaxPool has one size")
    return str(t.graph.node("MaxPool", x, kernel_shape=kernel, strides=kernel))


def _by_rule(g: Any, size: str, rule: Sequence[int]) -> str:
    steps = (("Add", rule[0], 0), ("Div", rule[1], 1), ("Mul", rule[2], 1), ("Add", rule[3], 0))
    for operator, number, neutral in steps:
        size = size if number == neutral else g.node(operator, size, g.numbers(number))
    return size


def _sizes_by_rule(t: Any, op: Op, x: str, other: str) -> list[str]:
    """Rows and columns that the rules of an operation give."""
    g, found = t.graph, []
    for axis, rule in zip((2, 3), op.attrs["size"], strict=True):
        size = g.node("Shape", x if rule is None else other, start=axis, end=axis + 1)
        found.append(size if rule is None else _by_rule(g, size, rule))
    return found


def resize2d(t: Any, op: Op, x: str, other: str) -> str:
    """Of an image of any size; `for_one_size` has replaced it elsewhere."""
    if op.attrs["mode"] == "max":
        reason = "its windows depend on the size of the image, which is free; export one size with --size"
        raise refuse(op.name, op.op, t.target, reason)
    axes = _axes(t, op, x, _sizes_by_rule(t, op, x, other))
    return _means(t, x, axes) if op.attrs["mode"] == "mean" else _resampled(t, op, x, axes)


def reshape_to(t: Any, op: Op, x: str, other: str) -> str:
    g, parts = t.graph, [t.graph.numbers(0)]
    for item in op.attrs["shape"]:
        if isinstance(item, int):
            parts.append(g.numbers(item))
        else:
            parts.append(_by_rule(g, g.node("Shape", other, start=item[0] + 1, end=item[0] + 2), item[1:]))
    return str(g.node("Reshape", x, g.node("Concat", *parts, axis=0)))


def fit2d(t: Any, op: Op, x: str, other: str) -> str:
    """Likewise: a padding by numbers that may be below 0, which cut."""
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if op.attrs["mode"] not in modes:
        raise refuse(op.name, op.op, t.target, f"opset 18 has no {op.attrs['mode']} padding")
    g = t.graph
    firsts, lasts = [], []
    for axis, size, place in zip((2, 3), _sizes_by_rule(t, op, x, other), op.attrs["before"], strict=True):
        total = g.node("Sub", size, g.node("Shape", x, start=axis, end=axis + 1))
        if isinstance(place, int):
            first = g.numbers(place)
        elif place == "all":
            first = total
        else:  # integers are divided towards 0, so from above 0
            far = 1 << 32
            moved = g.node("Add", total, g.numbers(far + (place == "half_up")))
            first = g.node("Div", moved, g.numbers(2))
            if place == "half_even":  # one more where an odd number has an odd half
                odd = g.node("Mul", g.node("Mod", moved, g.numbers(2)), g.node("Mod", first, g.numbers(2)))
                first = g.node("Add", first, odd)
            first = g.node("Sub", first, g.numbers(far // 2))
        firsts.append(first)
        lasts.append(g.node("Sub", total, first))
    pads = g.node("Concat", g.numbers(0, 0), *firsts, g.numbers(0, 0), *lasts, axis=0)
    return str(g.node("Pad", x, pads, g.scalar(float(op.attrs["value"])), mode=modes[op.attrs["mode"]]))


OPERATIONS: dict[str, Make] = {
    "upsample2d": upsample2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "adaptive_max_pool2d": adaptive_max_pool2d,
    "resize2d": resize2d,
    "fit2d": fit2d,
    "reshape_to": reshape_to,
}
