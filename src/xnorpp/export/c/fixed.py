"""Layers as C functions without any float: stored numbers have 16 or 24 bits, the register has 32.

A number q with the exponent e stands for q / 2^e. Exponents are chosen from the ranges that values have on
example inputs, with room to spare; what still goes beyond saturates. Integer dot products, and thresholds
directly after them, are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from xnorpp.export.c.layers import MOVERS, Layer, extent
from xnorpp.export.c.shared import SharedWriter
from xnorpp.export.c.text import identifier, whole
from xnorpp.export.c.writer import LEAST, MOST, Array
from xnorpp.export.errors import refuse
from xnorpp.runtime.format.bits import packed_width
from xnorpp.runtime.format.program import INPUT, Program
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
from xnorpp.runtime.reference.curves import CURVES

MARGIN = 2.0  # room beyond the largest value of the examples
BITS = 30  # of a register's largest value
ENTRIES = 9  # a curve is a table of 2^9 straight lines
SMOOTH = ("sigmoid", "silu", "tanh", "elu", "softplus", "mish", "gelu", "gelu_tanh", "hardswish", "erf")


def exponent(limit: float, bits: int) -> int:
    """The largest e with `limit * 2^e < 2^bits`."""
    return max(-40, min(50, math.floor(math.log2((2.0**bits - 1) / max(limit, 1e-12)))))


def mantissas(values: Array, bits: int) -> tuple[Array, int]:
    """Numbers as integers of `bits` bits, and their common exponent."""
    wide = values.astype(np.float64)
    e = exponent(float(np.abs(wide).max(initial=0)), bits)
    return np.rint(wide * 2.0**e).astype(np.int64), e


class FixedWriter(SharedWriter):
    """Numbers have 16 or 24 bits; stored dot products, and outputs that nothing reads again, are int32_t."""

    mode = "fixed"
    number = "number"
    output_type = register_type = "int32_t"

    def __init__(
        self,
        program: Program,
        layers: tuple[Layer, ...],
        from_bytes: bool,
        ranges: Mapping[str, float],
        bits: int = 24,
    ) -> None:
        self.bits, self.number_bytes, self.extra = bits, bits // 8, 30 - bits
        self.ranges = {
            name: value * (1.0 if name == INPUT and from_bytes else MARGIN) for name, value in ranges.items()
        }
        self.read = {name for layer in layers for name in layer.reads}
        super().__init__(program, layers, from_bytes)
        self.needs |= {f"number{bits}", f"value{bits}"}
        self.input_type = "uint8_t" if from_bytes else "int16_t"
        self.needed_by_input = frozenset({f"stored{bits}"})
        self.typedef = "int16_t" if bits == 16 else "struct { uint8_t bytes[3]; }"
        self.exponent = 0  # of the register
        self.limit = 1.0  # of what the register stands for

    def _wide(self, name: str) -> bool:
        if self.program.values[name].kind == "int":
            return True
        return name != INPUT and name not in self.read

    def number_size(self, name: str) -> int:
        return 4 if self._wide(name) else self.number_bytes

    def number_type(self, name: str) -> str:
        return "int32_t" if self._wide(name) else "number"

    def exponent_of(self, name: str) -> int:
        """Of a stored value."""
        if self.program.values[name].kind == "int":
            return 0
        if name == INPUT and not self.from_bytes:
            return self.input_exponent + self.bits - 16
        return exponent(self.ranges[name], BITS if self._wide(name) else self.bits - 1)

    @property
    def input_exponent(self) -> int:
        """Of the int16_t that a caller gives where the input is not bytes."""
        return exponent(self.ranges[INPUT], 15)

    def element(self, value: str, index: str) -> str:
        text = super().element(value, index)
        return text if self._wide(value) else f"value_of({text})"

    def shift(self, count: int) -> str:
        """A field with a shift; between registers it lies within -31 and 62."""
        return self.function.take("int32_t", "shift", str(max(-31, min(62, count))))

    def register(self, e: int, limit: float) -> None:
        self.exponent, self.limit = e, limit

    def after(self) -> str:
        """The value that the register is after the current move."""
        return self.layer.moves[self.move].value

    # Producers

    def produce(self) -> None:
        kind = self.layer.kind
        source = self.layer.source
        if kind.startswith("binary_"):
            self.line(f"int32_t v = {self.gather_bits()};")
            self.register(0, self.ranges[self.layer.first])
        elif kind.endswith(("conv2d", "linear")):
            self._filter()
        elif kind in ("max_pool2d", "avg_pool2d", "box_filter"):
            name = kind.removesuffix("2d")
            self.needs.add(name)
            self.line(f"int32_t v = {name}({self.take_pool()}, {self.source()}, y, x, o);")
            self.register(self.exponent_of(source) + self.extra, self.ranges[self.layer.first])
        else:
            self.register(self.exponent_of(source) + self.extra, self.ranges[self.layer.first])
            if kind in MOVERS:
                self.moved()
            else:
                getattr(self, f"_{kind}")()

    def taken(self, value: str, at: str) -> str:
        return f"value_of({at}) * (1 << EXTRA)"

    def shares(self, values: Array) -> Array:
        return np.rint(values.astype(np.float64) * 2.0**30)

    def _concat(self) -> None:
        self.register(exponent(self.ranges[self.layer.first], BITS), self.ranges[self.layer.first])
        super()._concat()

    def joined(self, value: str, at: str) -> str:
        self.needs.add("shifted")
        return f"shifted(value_of({at}), {self.shift(self.exponent_of(value) - self.exponent)})"

    def _filter(self) -> None:
        op = self.layer.op
        assert op is not None
        made = self.ranges[self.layer.first]
        bias = self.program.real(op, "bias")
        if bias is not None:
            made += float(np.abs(bias).max())
        e = exponent(made, BITS)
        if self.whole_filters(self.layer):
            total, scale = self.byte_filters()
            numbers, at = mantissas(scale, 30)
            e = min(e, at)
            self.needs.add("scaled")
            scales = self.per_channel("int32_t", "scale", numbers.astype(np.int32))
            self.line(f"int32_t v = scaled({total}, {scales}, {self.shift(at - e)});")
        else:
            g, _ = self.window(self.layer)
            self.gather_numbers(g)
            self.needs.add("shifted")
            if self.program.is_packed(op):
                weight = self.program.tensors[op.tensors["weight"]]
                field = self.function.take(
                    "const uint8_t *", "weight", self.constant("uint8_t", "weight", weight)
                )
                step = self.function.take("int32_t", "filter", str(weight[0].size))
                size = "l->window.kh * l->window.kw, l->window.channels"
                total, at = f"dot_signed(a, {field} + o * {step}, {size})", 0
                self.needs.add("dot_signed")
            else:
                real = self.program.real(op, "weight")
                assert real is not None
                ctype = "int16_t" if self.bits == 16 else "int32_t"
                numbers, at = mantissas(real if real.ndim == 2 else real.transpose(0, 2, 3, 1), self.bits - 1)
                name = self.constant(ctype, "weight", numbers.astype(ctype.removesuffix("_t")))
                field = self.function.take(f"const {ctype} *", "weight", name)
                total = f"dot_numbers(a, {field} + o * l->window.size, l->window.size)"
                self.needs.add(f"dot_numbers{self.bits}")
            self.line(
                f"int32_t v = shifted({total}, {self.shift(self.exponent_of(self.layer.source) + at - e)});"
            )
        self.register(e, made)
        if bias is not None:
            self._plus(self.per_channel("int32_t", "bias", self.units(bias, e)))

    def units(self, values: Array, e: int) -> Array:
        """Numbers in units of the register."""
        return np.clip(np.rint(values.astype(np.float64) * 2.0**e), LEAST + 2, MOST - 1).astype(np.int32)

    def _plus(self, summand: str) -> None:
        self.needs.add("narrow")
        self.line(f"v = narrow((int64_t)v + {summand});")

    def _pointwise(self) -> None:
        wide = self._wide(self.layer.source)
        if wide:
            self.register(self.exponent_of(self.layer.source), self.limit)
        value = f"{self.source()}[i]"
        self.line(f"int32_t v = {value if wide else f'value_of({value}) * (1 << EXTRA)'};")

    def _signs(self) -> None:
        self.register(20, 1.0)
        width = self.function.take("int32_t", "bytes", str(packed_width(self.layer.extent[0])))
        self.line(
            f"int32_t v = {self.source()}[pixel * {width} + o / 8] >> (o % 8) & 1 ? 1 << 20 : -(1 << 20);"
        )

    def _pad2d(self) -> None:
        assert self.layer.op is not None
        source, given = self.layer.source, float(self.layer.op.attrs["value"])
        as_register = self.taken
        if abs(given) > self.ranges[source]:  # beyond what the register of the source holds
            limit = max(self.ranges[self.layer.first], abs(given))
            self.register(exponent(limit, BITS), limit)
            as_register = self.joined
        filled = self.units(np.asarray([given]), self.exponent)[0]
        value = self.function.take("int32_t", "value", whole(int(filled)))
        test, element = self.inside(self.source())
        self.line(f"int32_t v = {test} ? {as_register(source, element)} : {value};")

    def _softmax(self) -> None:
        self.needs.add("softmax")
        to = self.scratch("int32_t")
        e = self.function.take("int32_t", "exponent", str(self.exponent_of(self.layer.source)))
        self.prepare(f"const int64_t sum = exponentials({self.source()}, l->channels, {e}, {to});")
        self.line(f"int32_t v = (int32_t)({to}[o] * ((int64_t)1 << 30) / sum);")
        self.register(30, 1.0)

    # Moves

    def row_times_column(self, spatial: Spatial) -> str:
        assert spatial.row is not None
        assert spatial.col is not None
        (rows, e), (columns, at) = mantissas(spatial.row, 30), mantissas(spatial.col, 30)
        row = self.function.take(
            "const int32_t *", "row", self.constant("int32_t", "row", rows.astype(np.int32))
        )
        col = self.function.take(
            "const int32_t *", "col", self.constant("int32_t", "col", columns.astype(np.int32))
        )
        return f"scaled({row}[y], {col}[x], {self.shift(e + at - self._factor_exponent(spatial))})"

    def _factor_exponent(self, spatial: Spatial) -> int:
        return exponent(float(np.abs(spatial.dense()).max()), 30)

    def _times_factor(self, spatial: Spatial, name: str) -> tuple[str, int, float]:
        """The C expression of the register times a spatial factor, its exponent and its limit."""
        self.needs.add("scaled")
        at = self._factor_exponent(spatial)
        factor = self.spatial(
            spatial, "int32_t", lambda values: np.rint(values.astype(np.float64) * 2.0**at).astype(np.int32)
        )
        limit = self.limit * float(np.abs(spatial.dense()).max())
        e = min(exponent(limit, BITS), self.exponent + at)
        return f"scaled({name}, {factor}, {self.shift(self.exponent + at - e)})", e, limit

    def affine(self, micro: Affine) -> None:
        if micro.spatial is not None:
            text, e, limit = self._times_factor(micro.spatial, "v")
            self.line(f"v = {text};")
            self.register(e, limit)
        limit = self.ranges[self.after()]
        if micro.add is not None:
            limit += float(np.abs(micro.add).max())
        if micro.mult is not None:
            numbers, at = mantissas(micro.mult, 30)
            e = min(exponent(limit, BITS), self.exponent + at)
            self.needs.add("scaled")
            mult = self.per_channel("int32_t", "mult", numbers.astype(np.int32))
            self.line(f"v = scaled(v, {mult}, {self.shift(self.exponent + at - e)});")
            self.register(e, limit)
        elif micro.add is not None:
            self._align(limit)
        if micro.add is not None:
            self._plus(self.per_channel("int32_t", "add", self.units(micro.add, self.exponent)))
        self.limit = min(self.limit, limit)

    def _align(self, limit: float) -> None:
        """The register with an exponent for numbers up to `limit`."""
        e = exponent(max(limit, self.limit), BITS)
        self.needs.add("shifted")
        self.line(f"v = shifted(v, {self.shift(self.exponent - e)});")
        self.register(e, limit)

    def simple(self, micro: Relu | Prelu | Hardtanh) -> None:
        if isinstance(micro, Relu):
            self.line("v = v < 0 ? 0 : v;")
            return
        if isinstance(micro, Prelu):
            if float(np.abs(micro.slope).max()) > 1:
                self._align(max(self.limit, self.ranges[self.after()]))
            numbers, at = mantissas(micro.slope, 30)
            self.needs.add("scaled")
            slope = self.per_channel("int32_t", "slope", numbers.astype(np.int32))
            self.line(f"v = v > 0 ? v : scaled(v, {slope}, {self.shift(at)});")
            return
        low, high = (
            self.function.take("int32_t", name, whole(int(self.units(np.asarray([value]), self.exponent)[0])))
            for name, value in (("low", micro.low), ("high", micro.high))
        )
        self.line(f"v = v < {low} ? {low} : v > {high} ? {high} : v;")
        self.limit = max(abs(micro.low), abs(micro.high))

    def curve(self, micro: Curve) -> None:
        """By a table over what the register may be, with straight lines between its entries."""
        if micro.function not in SMOOTH:
            reason = f"there is a fixed-point form of {', '.join(SMOOTH)} only; leave --fixed out for float"
            raise refuse(self.layer.name, micro.function, "C", reason)
        reach = max(2, math.ceil(math.log2(max(self.limit, 1e-6))))  # the table goes from -2^reach to 2^reach
        if self.exponent + reach < ENTRIES or self.exponent + reach > BITS:
            self._align(2.0**reach)
        points = np.linspace(-(2.0**reach), 2.0**reach, (1 << ENTRIES) + 1).astype(np.float32)
        extra = [micro.alpha] if micro.function == "elu" else []
        values = CURVES[micro.function](points, *extra)
        limit = float(np.abs(values).max())
        e = exponent(limit, BITS)
        table = self.constant("int32_t", "curve", self.units(values, e))
        field = self.function.take("const int32_t *", "curve", table)
        self.needs.add("curve")
        steps = self.function.take("int32_t", "steps", str(self.exponent + reach + 1 - ENTRIES))
        self.line(f"v = on_curve(v, {field}, {steps});")
        self.register(e, limit)

    def operand(self, function: str, value: str, at: str) -> None:
        other = self.exponent_of(value)
        if not self._wide(value):
            at = f"value_of({at})"
        limit = self.ranges[self.after()]
        if function == "div":
            e = min(exponent(limit, BITS), self.exponent - other + 30)
            self.needs.add("quotient")
            self.line(f"v = quotient(v, {at}, {self.shift(e - self.exponent + other)});")
        elif function == "mul":
            e = min(exponent(limit, BITS), self.exponent + other)
            self.needs.add("shifted")
            self.line(f"v = shifted((int64_t)v * {at}, {self.shift(self.exponent + other - e)});")
        else:
            e = exponent(max(limit, self.limit, self.ranges[value]), BITS)
            mine, its = self.shift(self.exponent - e), self.shift(other - e)
            self.needs |= {"narrow", "shifted"}
            symbol = "+" if function == "add" else "-"
            self.line(f"v = narrow((int64_t)shifted(v, {mine}) {symbol} shifted({at}, {its}));")
        self.register(e, limit)

    def offset(self, constant: tuple[Array, str]) -> None:
        values, index = constant
        self._align(self.ranges[self.after()] + float(np.abs(values).max()))
        units = self.constant("int32_t", "constant", self.units(values, self.exponent))
        field = self.function.take("const int32_t *", "constant", units)
        self._plus(f"{field}[{index}]")

    def store(self, micro: StoreFloat, to: str) -> None:
        e = self.exponent_of(micro.value)
        wide = self._wide(micro.value)
        self.needs.add("shifted" if wide else f"stored{self.bits}")
        self.line(f"{to} = {'shifted' if wide else 'stored'}(v, {self.shift(self.exponent - e)});")

    def threshold(self, micro: StoreBits) -> tuple[str, str]:
        name, e = "v", self.exponent
        if micro.spatial is not None:
            text, e, _ = self._times_factor(micro.spatial, "v")
            name = f"u{self.move}"
            self.line(f"const int32_t {name} = {text};")
        if not micro.threshold.any():
            return name, "0"
        exact = micro.threshold.astype(np.float64) * 2.0**e
        limits = np.clip(np.where(micro.flip != 0, np.ceil(exact), np.floor(exact)), LEAST, MOST).astype(
            np.int32
        )
        return name, self.per_channel("int32_t", "threshold", limits)

    # The input and the header

    def input_lines(self) -> list[str]:
        channels, height, width = extent(self.program.values[INPUT].shape)
        if self.from_bytes:
            self.needs |= {"input_bytes", f"stored{self.bits}"}
            value = f"from_byte(input[i], i % {channels})"
        else:
            self.needs.add(f"stored{self.bits}")
            value = f"stored(input[i % {channels} * {height * width} + i / {channels}], INPUT_DROP)"
        return [
            f"    number *const to = AT(number, {self.memory.offsets[INPUT]});",
            f"    for (int32_t i = 0; i < {channels * height * width}; i++)",
            f"        to[i] = {value};",
        ]

    def input_constants(self) -> dict[str, tuple[str, Array]]:
        e = self.exponent_of(INPUT)
        mean, std = (
            np.asarray(row, np.float32).astype(np.float64) for row in (self.program.mean, self.program.std)
        )
        mult, add = 2.0 ** (e + self.extra) / (255 * std), -mean / std * 2.0 ** (e + self.extra)
        return {
            "mult": ("int32_t", np.rint(mult).astype(np.int32)),
            "add": ("int32_t", np.rint(add).astype(np.int32)),
        }

    def opening_lines(self) -> list[str]:
        return [] if self.from_bytes else [f"#define INPUT_DROP {16 - self.bits}"]

    def header_lines(self, prefix: str) -> list[str]:
        lines = ["", "/* An output q stands for q / 2^SHIFT. */"]
        for name, value in self.program.outputs.items():
            lines.append(f"#define {prefix}_{identifier(name).upper()}_SHIFT {self.exponent_of(value)}")
        if not self.from_bytes:
            lines += [
                "/* And so does an input. */",
                f"#define {prefix}_INPUT_SHIFT {self.input_exponent}",
            ]
        return lines
