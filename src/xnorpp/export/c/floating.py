"""Layers as C functions in float mode: the arithmetic of the reference, in float32."""

from __future__ import annotations

import numpy as np

from xnorpp.export.c.layers import MOVERS, extent
from xnorpp.export.c.shared import SharedWriter
from xnorpp.export.c.text import number
from xnorpp.export.c.writer import LEAST, MOST, Array
from xnorpp.runtime.format.bits import packed_width
from xnorpp.runtime.format.program import INPUT
from xnorpp.runtime.plan import (
    Affine,
    Curve,
    Hardtanh,
    Prelu,
    Relu,
    Spatial,
    StoreBits,
    StoreFloat,
)

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


class FloatWriter(SharedWriter):
    """Numbers are float. A register that only dot products enter and only signs leave is an integer."""

    mode = "float"
    number = typedef = output_type = register_type = "float"
    number_bytes = 4

    def produce(self) -> None:
        kind = self.layer.kind
        if kind.startswith("binary_"):
            dot = self.gather_bits()
            self.line(f"const int32_t v = {dot};" if self.whole() else f"float v = (float){dot};")
        elif kind.endswith(("conv2d", "linear")):
            self._filter()
        elif kind in ("max_pool2d", "avg_pool2d", "box_filter"):
            name = kind.removesuffix("2d")
            self.needs.add(name)
            self.line(f"float v = {name}({self.take_pool()}, {self.source()}, y, x, o);")
        elif kind in MOVERS:
            self.moved()
        else:
            getattr(self, f"_{kind}")()

    def taken(self, value: str, at: str) -> str:
        return at

    joined = taken

    def shares(self, values: Array) -> Array:
        return values

    def whole(self) -> bool:
        """Whether the register is a dot product throughout."""
        micros = [move.micro for move in self.layer.moves]
        return all(isinstance(micro, StoreBits) and micro.integer for micro in micros)

    def _filter(self) -> None:
        op = self.layer.op
        assert op is not None
        if self.whole_filters(self.layer):
            total, scale = self.byte_filters()
            self.line(f"float v = (float){total} * {self.per_channel('float', 'scale', scale)};")
        else:
            g, _ = self.window(self.layer)
            self.gather_numbers(g)
            linear = op.op.endswith("linear")
            if self.program.is_packed(op):
                weight = self.program.tensors[op.tensors["weight"]]
                row = weight[0].size
                field = self.function.take(
                    "const uint8_t *", "weight", self.constant("uint8_t", "weight", weight)
                )
                name = "dot_signed_vector" if linear else "dot_signed"
                size = "l->window.channels" if linear else "l->window.kh * l->window.kw, l->window.channels"
                step = self.function.take("int32_t", "filter", str(row))
                self.line(f"float v = {name}(a, {field} + o * {step}, {size});")
            else:
                real = self.program.real(op, "weight")
                assert real is not None
                name = "dot_vector" if linear else "dot_numbers"
                ordered = real if linear else real.transpose(0, 2, 3, 1)
                field = self.function.take(
                    "const float *", "weight", self.constant("float", "weight", ordered)
                )
                self.line(f"float v = {name}(a, {field} + o * l->window.size, l->window.size);")
            self.needs.add(name)
        bias = self.program.real(op, "bias")
        if bias is not None:
            self.line(f"v += {self.per_channel('float', 'bias', bias)};")

    def _pointwise(self) -> None:
        self.line(f"float v = {self.source()}[i];")

    def _signs(self) -> None:
        width = self.function.take("int32_t", "bytes", str(packed_width(self.layer.extent[0])))
        self.line(f"float v = {self.source()}[pixel * {width} + o / 8] >> (o % 8) & 1 ? 1.0f : -1.0f;")

    def _pad2d(self) -> None:
        assert self.layer.op is not None
        value = self.function.take("float", "value", number(self.layer.op.attrs["value"]))
        test, element = self.inside(self.source())
        self.line(f"float v = {test} ? {element} : {value};")

    def _softmax(self) -> None:
        self.needs.add("softmax")
        to = self.scratch("float")
        self.prepare(f"const float sum = exponentials({self.source()}, l->channels, {to});")
        self.line(f"float v = {to}[o] / sum;")

    def row_times_column(self, spatial: Spatial) -> str:
        assert spatial.row is not None
        assert spatial.col is not None
        row = self.function.take("const float *", "row", self.constant("float", "row", spatial.row))
        col = self.function.take("const float *", "col", self.constant("float", "col", spatial.col))
        return f"{row}[y] * {col}[x]"

    def affine(self, micro: Affine) -> None:
        if micro.spatial is not None:
            self.line(f"v *= {self.spatial(micro.spatial, 'float', lambda values: values)};")
        mult = None if micro.mult is None else self.per_channel("float", "mult", micro.mult)
        add = None if micro.add is None else self.per_channel("float", "add", micro.add)
        if mult and add:
            self.needs.add("fma")
            self.line(f"v = FMA(v, {mult}, {add});")
        elif mult or add:
            self.line(f"v {'*' if mult else '+'}= {mult or add};")

    def simple(self, micro: Relu | Prelu | Hardtanh) -> None:
        if isinstance(micro, Relu):
            self.line("v = v < 0 ? 0 : v;")
        elif isinstance(micro, Prelu):
            self.line(f"v = v > 0 ? v : v * {self.per_channel('float', 'slope', micro.slope)};")
        else:
            low = self.function.take("float", "low", number(micro.low))
            high = self.function.take("float", "high", number(micro.high))
            self.line(f"v = v < {low} ? {low} : v > {high} ? {high} : v;")

    def curve(self, micro: Curve) -> None:
        self.needs.add(f"curve_{micro.function}")
        if micro.function == "elu":
            alpha = self.function.take("float", "alpha", number(micro.alpha))
            self.line(f"v = curve_elu(v, {alpha});")
        else:
            self.line(f"v = curve_{micro.function}(v);")

    def operand(self, function: str, value: str, at: str) -> None:
        self.line(f"v {SYMBOLS[function]}= {at};")

    def offset(self, constant: tuple[Array, str]) -> None:
        values, index = constant
        field = self.function.take("const float *", "constant", self.constant("float", "constant", values))
        self.line(f"v += {field}[{index}];")

    def store(self, micro: StoreFloat, to: str) -> None:
        self.line(f"{to} = v;")

    def threshold(self, micro: StoreBits) -> tuple[str, str]:
        if self.whole() and self.layer.kind.startswith("binary_"):
            return "v", self.per_channel("int32_t", "threshold", whole_thresholds(micro))
        name = "v"
        if micro.spatial is not None:
            factor = self.spatial(micro.spatial, "float", lambda values: values)
            name = f"u{self.move}"
            self.line(f"const float {name} = v * {factor};")
        if not micro.threshold.any():
            return name, "0"
        return name, self.per_channel("float", "threshold", micro.threshold)

    def input_lines(self) -> list[str]:
        channels, height, width = extent(self.program.values[INPUT].shape)
        if self.from_bytes:
            self.needs.add("input_bytes")
            value = f"from_byte(input[i], i % {channels})"
        else:
            value = f"input[i % {channels} * {height * width} + i / {channels}]"
        return [
            f"    float *const to = AT(float, {self.memory.offsets[INPUT]});",
            f"    for (int32_t i = 0; i < {channels * height * width}; i++)",
            f"        to[i] = {value};",
        ]

    def input_constants(self) -> dict[str, tuple[str, Array]]:
        rows = {"mean": self.program.mean, "std": self.program.std}
        return {name: ("float", np.asarray(row, np.float32)) for name, row in rows.items()}


def whole_thresholds(micro: StoreBits) -> Array:
    """Thresholds on integers: `v > t` is `v > floor(t)`, and `v < t` is `v < ceil(t)`."""
    rounded = np.where(micro.flip != 0, np.ceil(micro.threshold), np.floor(micro.threshold)).astype(
        np.float64
    )
    return np.clip(rounded, LEAST, MOST).astype(np.int32)
