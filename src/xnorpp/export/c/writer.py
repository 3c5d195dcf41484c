"""Layers as C functions: what the float and the fixed-point mode have in common."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export.c.layers import FILTERS, KINDS, MOVE_WORDS, Layer, bits_bytes, extent, reads_image
from xnorpp.export.c.memory import Memory, plan_memory
from xnorpp.export.c.text import Constants, Function, identifier
from xnorpp.runtime.format.bits import packed_width
from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.plan import (
    AddValue,
    Affine,
    Combine,
    Curve,
    Hardtanh,
    MulValue,
    Offset,
    Prelu,
    Relu,
    Spatial,
    StoreBits,
    StoreFloat,
)

Array = npt.NDArray[Any]
MOST, LEAST = (1 << 31) - 1, -(1 << 31)


class Writer(abc.ABC):
    """Turns each layer into a `Function`; collects constants and the parts that functions call.

    A function computes one number `v` for each element, in the order of rows, columns and channels: the
    producer sets it, the moves change and store it.
    """

    mode: str
    number: str  # the C type of a stored number, and what it is
    typedef: str
    needed_by_input: frozenset[str] = frozenset()  # parts that reading the input calls
    input_type: str  # of what the caller gives, and of what it gets
    output_type: str
    number_bytes: int

    def __init__(self, program: Program, layers: tuple[Layer, ...], from_bytes: bool) -> None:
        self.program, self.layers, self.from_bytes = program, layers, from_bytes
        self.input_type = "uint8_t" if from_bytes else self.number
        self.constants = Constants()
        self.needs: set[str] = set()
        self.direct = reads_image(program, layers)  # the input is read where the caller has it
        scratch = [self.scratch_bytes(layer) for layer in layers]
        self.memory: Memory = plan_memory(program, layers, self.size_of, scratch)
        self.function: Function
        self.layer: Layer
        self.index = 0

    # What differs between the modes.

    @abc.abstractmethod
    def produce(self) -> None:
        """Add the code that sets `v`."""

    @abc.abstractmethod
    def affine(self, micro: Affine) -> None: ...

    @abc.abstractmethod
    def simple(self, micro: Relu | Prelu | Hardtanh) -> None: ...

    @abc.abstractmethod
    def curve(self, micro: Curve) -> None: ...

    @abc.abstractmethod
    def operand(self, function: str, value: str, at: str) -> None:
        """add, sub, mul or div with the element `at` of another value."""

    @abc.abstractmethod
    def offset(self, constant: tuple[Array, str]) -> None:
        """Plus a constant: its elements, and the index of the one to add."""

    @abc.abstractmethod
    def store(self, micro: StoreFloat, to: str) -> None: ...

    @abc.abstractmethod
    def threshold(self, micro: StoreBits) -> tuple[str, str]:
        """The C expressions of the number that is compared and of its threshold."""

    @abc.abstractmethod
    def input_lines(self) -> list[str]:
        """Statements that copy the caller's input into the arena."""

    @abc.abstractmethod
    def input_constants(self) -> dict[str, tuple[str, Array]]:
        """What turns the bytes of a channel into numbers: C types and values by name."""

    # What they share.

    def opening_lines(self) -> list[str]:
        """Further lines before all functions."""
        return []

    def header_lines(self, prefix: str) -> list[str]:
        """Further lines of the header."""
        return []

    def size_of(self, name: str, value: Value) -> int:
        """Bytes that a value takes in the arena."""
        if name == INPUT and self.direct:
            return 0
        return bits_bytes(value) if value.kind == "bits" else self.number_size(name) * value.elements

    def number_size(self, name: str) -> int:
        return self.number_bytes

    def number_type(self, name: str) -> str:
        return self.number

    def make(self, index: int) -> Function:
        """The function of one layer."""
        layer = self.layers[index]
        self.layer, self.index = layer, index
        self.function = Function(self.title(layer))
        channels, rows, columns = layer.extent
        for name, size in (("rows", rows), ("columns", columns), ("channels", channels)):
            self.function.take("int32_t", name, str(size))
        self.produce()
        for number, move in enumerate(layer.moves):
            micro = move.micro
            self.move = number
            if isinstance(micro, Affine):
                self.affine(micro)
            elif isinstance(micro, (AddValue, MulValue, Combine)):
                function, spread = _combined(micro)
                pointer = self.place(micro.value)
                field = self.function.take(f"const {self.number_type(micro.value)} *", "other", pointer)
                self.operand(function, micro.value, f"{field}[{INDEX[spread]}]")
            elif isinstance(micro, Curve):
                self.curve(micro)
            elif isinstance(micro, Offset):
                self.offset(self._spread(micro))
            elif isinstance(micro, StoreFloat):
                field = self.function.take(
                    f"{self.number_type(micro.value)} *", "out", self.place(micro.value)
                )
                self.store(micro, f"{field}[i]")
            elif isinstance(micro, StoreBits):
                self.store_bits(micro)
            elif isinstance(micro, (Relu, Prelu, Hardtanh)):  # `make_layers` refuses what else there is
                self.simple(micro)
        return self.function

    def _spread(self, micro: Offset) -> tuple[Array, str]:
        """A constant in the order of the code, and the C index into it."""
        if micro.constant.size == 1:
            return micro.constant.reshape(-1), "0"
        if micro.constant.size == micro.constant.shape[0] == self.layer.extent[0]:
            return micro.constant.reshape(-1), "o"
        full = np.broadcast_to(micro.constant, micro.shape).reshape(self.layer.extent)
        return np.moveaxis(full, 0, -1), "i"

    def place(self, value: str) -> str:
        """The address of a value in the arena."""
        kind = "uint8_t" if self.program.values[value].kind == "bits" else self.number_type(value)
        return f"AT({kind}, {self.memory.offsets[value]})"

    def element(self, value: str, index: str) -> str:
        """The C expression of one element of an output."""
        return f"{self.place(value)}[{index}]"

    def constant(self, ctype: str, role: str, values: Array) -> str:
        """A constant array of this layer."""
        return self.constants.add(ctype, f"{identifier(self.layer.name)}_{role}", values)

    def per_channel(self, ctype: str, role: str, values: Array) -> str:
        """The C expression of a constant with one element for each channel."""
        return f"{self.function.take(f'const {ctype} *', role, self.constant(ctype, role, values))}[o]"

    def source(self) -> str:
        """The C expression of the memory that the producer reads."""
        if self.layer.source == INPUT and self.direct:
            return "input"
        kind = (
            "uint8_t"
            if self.program.values[self.layer.source].kind == "bits"
            else self.number_type(self.layer.source)
        )
        return self.function.take(f"const {kind} *", "in", self.place(self.layer.source))

    def scratch(self, ctype: str) -> str:
        return self.function.take(f"{ctype} *", "scratch", f"AT({ctype}, {self.memory.scratch[self.index]})")

    def line(self, text: str) -> None:
        self.function.per_channel.append(text)

    def prepare(self, text: str) -> None:
        self.function.per_pixel.append(text)

    def spatial(self, spatial: Spatial, ctype: str, convert: Any) -> str:
        """The C expression of a factor for each pixel, or for each element."""
        if spatial.full is not None:
            values = np.moveaxis(spatial.full, 0, -1)
            name = self.constant(ctype, "full", convert(values))
            return f"{self.function.take(f'const {ctype} *', 'full', name)}[i]"
        name = "factor" if self.move == 0 else f"factor{self.move}"
        if spatial.map is not None:
            field = self.function.take(
                f"const {ctype} *", "map", self.constant(ctype, "map", convert(spatial.map))
            )
            self.prepare(f"const {ctype} {name} = {field}[pixel];")
        else:
            self.prepare(f"const {ctype} {name} = {self.row_times_column(spatial)};")
        return name

    @abc.abstractmethod
    def row_times_column(self, spatial: Spatial) -> str: ...

    def store_bits(self, micro: StoreBits) -> None:
        """Compare, collect eight bits, write a byte."""
        number, limit = self.threshold(micro)
        to = self.function.take("uint8_t *", "bits", self.place(micro.value))
        byte = "byte" if self.move == 0 else f"byte{self.move}"
        self.prepare(f"uint8_t {byte} = 0;")
        if micro.flip.any():
            flip = self.per_channel("uint8_t", "flip", micro.flip.astype(np.uint8))
            test = f"({flip} ? {number} < {limit} : {number} > {limit})"
        else:
            test = f"({number} > {limit})"
        self.line(f"{byte} = (uint8_t)({byte} | {test} << (o & 7));")
        self.line("if ((o & 7) == 7 || o + 1 == l->channels) {")
        self.line(f"    {to}[pixel * ((l->channels + 7) / 8) + o / 8] = {byte};")
        self.line(f"    {byte} = 0;")
        self.line("}")

    def geometry(self, layer: Layer) -> dict[str, int]:
        """The window of a convolution; a linear layer is a 1x1 window on a 1x1 image."""
        assert layer.op is not None
        channels, height, width = extent(self.program.values[layer.source].shape)
        attrs = layer.op.attrs
        kh, kw = self.program.window(layer.op)
        pairs = {
            key: attrs.get(key, (0, 0) if key == "padding" else (1, 1))
            for key in ("stride", "padding", "dilation")
        }
        groups = attrs.get("groups", 1)
        keys = ("sh", "sw", "ph", "pw", "dh", "dw")
        numbers = (size for pair in pairs.values() for size in pair)
        of_image = {"height": height, "width": width, "stride": channels, "channels": channels // groups}
        return {**of_image, "kh": kh, "kw": kw, **dict(zip(keys, numbers, strict=True)), "groups": groups}

    def window(self, layer: Layer) -> tuple[dict[str, int], int]:
        """The geometry with its size in words or numbers, and the bytes of its scratch."""
        g = self.geometry(layer)
        taps = g["kh"] * g["kw"]
        if layer.kind.startswith("binary_"):
            g["stride"] = packed_width(g["stride"])
            g["size"] = (taps * packed_width(g["channels"]) + 3) // 4
            return g, 8 * g["size"]
        if self.whole_filters(layer):
            g["size"] = taps * (g["channels"] + 1)
            return g, g["size"]
        g["size"] = taps * g["channels"]
        plain = taps == 1 and g["groups"] == 1 and g["ph"] == g["pw"] == 0
        if plain and not (layer.source == INPUT and self.direct):
            return g, 0
        return g, self.number_bytes * g["size"]

    def whole_filters(self, layer: Layer) -> bool:
        """Whether a convolution uses the file's whole-numbered filters for the bytes of an image."""
        direct = layer.source == INPUT and self.direct and self.from_bytes
        return direct and layer.op is not None and "byte_weight" in layer.op.tensors

    def scratch_bytes(self, layer: Layer) -> int:
        if layer.kind in FILTERS:
            return (self.window(layer)[1] + 3) // 4 * 4
        return 4 * layer.extent[0] if layer.kind == "softmax" else 0

    def take_window(self, g: dict[str, int]) -> str:
        keys = (
            "height",
            "width",
            "stride",
            "channels",
            "kh",
            "kw",
            "sh",
            "sw",
            "ph",
            "pw",
            "dh",
            "dw",
            "size",
        )
        self.needs.add("window")
        return "&" + self.function.take(
            "struct window", "window", "{" + ", ".join(str(g[key]) for key in keys) + "}"
        )

    def take_pool(self) -> str:
        assert self.layer.op is not None
        channels, height, width = extent(self.program.values[self.layer.source].shape)
        attrs = self.layer.op.attrs
        dilation = attrs.get("dilation", (1, 1))
        numbers = [height, width, channels, *attrs["kernel"], *attrs["stride"], *attrs["padding"], *dilation]
        numbers.append(int(attrs.get("count_include_pad", False)))
        return "&" + self.function.take("struct pool", "pool", "{" + ", ".join(map(str, numbers)) + "}")

    def inside(self, source: str) -> tuple[str, str]:
        """Of padding: the C expressions of whether an element comes from inside, and of that element."""
        assert self.layer.op is not None
        channels, height, width = extent(self.program.values[self.layer.source].shape)
        front, _, top, _, left, _ = self.layer.op.attrs["padding"]
        take = self.function.take
        c, r, w = (
            f"({axis} - {take('int32_t', name, str(start))})"
            for axis, name, start in (("o", "front", front), ("y", "top", top), ("x", "left", left))
        )
        size, tall, wide = (
            take("int32_t", name, str(n))
            for name, n in (("size", channels), ("height", height), ("width", width))
        )
        test = " && ".join(f"{at} >= 0 && {at} < {n}" for at, n in ((c, size), (r, tall), (w, wide)))
        self.line(f"const int inside = {test};")
        return "inside", f"{source}[({r} * {wide} + {w}) * {size} + {c}]"

    def gather_bits(self) -> str:
        """Collect the bits of a window; the C expression of the dot product with filter `o`."""
        assert self.layer.op is not None
        g, _ = self.window(self.layer)
        per_group = self.layer.extent[0] // g["groups"]
        weight = self.program.tensors[self.layer.op.tensors["weight"]]
        rows = weight.reshape(weight.shape[0], -1)
        padded = np.zeros((rows.shape[0], 4 * g["size"]), np.uint8)
        padded[:, : rows.shape[1]] = rows
        self.needs.add("dot_bits")
        field = self.function.take
        filters = field("const uint32_t *", "weight", self.constant("uint32_t", "weight", padded.view("<u4")))
        window, source = self.take_window(g), self.source()
        bits = self.scratch("uint32_t")
        mask = field("uint32_t *", "mask", f"AT(uint32_t, {self.memory.scratch[self.index] + 4 * g['size']})")
        pad = field("int32_t", "pad", str(self.layer.op.attrs.get("pad_value", 0)))
        full = "l->window.kh * l->window.kw * l->window.channels"
        if g["groups"] == 1:
            self.needs.add("gather_bits")
            self.prepare(f"const int32_t n = gather_bits({window}, {source}, {pad}, y, x, {bits}, {mask});")
            self.prepare(f"const uint32_t *const mask = n == {full} ? 0 : {mask};")
        else:
            self.needs.add("gather_group")
            size = field("int32_t", "group", str(per_group))
            first = f"o / {size} * l->window.channels"
            self.prepare("int32_t n = 0;")
            self.line(f"if (o % {size} == 0)")
            self.line(f"    n = gather_group({window}, {source}, {pad}, {first}, y, x, {bits}, {mask});")
            self.line(f"const uint32_t *const mask = n == {full} ? 0 : {mask};")
        return f"dot_bits({bits}, {filters} + o * l->window.size, mask, l->window.size, n)"

    def gather_numbers(self, g: dict[str, int]) -> None:
        """Point `a` to the numbers under the window."""
        window, source = self.take_window(g), self.source()
        ctype = self.number
        if not self.window(self.layer)[1]:
            place = "(y * l->window.sh * l->window.width + x * l->window.sw) * l->window.stride"
            self.prepare(f"const {ctype} *const a = {source} + {place};")
            return
        name = "gather"
        if source == "input":
            name = "gather_input"
            self.needs.add("gather_input_bytes" if self.from_bytes else "gather_input_planes")
            self.needs |= self.needed_by_input
        else:
            self.needs.add("numbers")
        to = self.scratch(ctype)
        if g["groups"] == 1:
            self.prepare(f"const {ctype} *const a = {name}({window}, {source}, 0, y, x, {to});")
            return
        size = self.function.take("int32_t", "group", str(self.layer.extent[0] // g["groups"]))
        self.prepare(f"const {ctype} *a = 0;")
        self.line(f"if (o % {size} == 0)")
        self.line(f"    a = {name}({window}, {source}, o / {size} * l->window.channels, y, x, {to});")

    def byte_filters(self) -> tuple[str, Array]:
        """Collect the bytes of a window; the C expression of their exact sum, and the filters' scales."""
        op = self.layer.op
        assert op is not None
        g, _ = self.window(self.layer)
        tensors = {role: self.program.tensors[name] for role, name in op.tensors.items()}
        scale = self.program.real(op, "byte_scale")
        assert scale is not None
        filters = np.concatenate([tensors["byte_weight"], tensors["byte_mean"][:, None]], axis=1)
        self.needs.add("byte_sums")
        window, source = self.take_window(g), self.source()
        weight = self.constant("int16_t", "byte_weight", filters.transpose(0, 2, 3, 1).astype(np.int16))
        field = self.function.take("const int16_t *", "weight", weight)
        self.prepare(
            f"const uint8_t *const a = gather_bytes({window}, {source}, y, x, {self.scratch('uint8_t')});"
        )
        rest = self.per_channel("int32_t", "rest", tensors["byte_rest"])
        return f"sum_bytes(a, {field} + o * l->window.size, l->window.size, {rest})", scale

    def title(self, layer: Layer) -> str:
        """The structure of a layer in words."""
        words = [KINDS.get(layer.kind, layer.kind.replace("_", " "))]
        for move in layer.moves:
            micro = move.micro
            spatial = getattr(micro, "spatial", None) is not None
            if isinstance(micro, Affine):
                given = ["times a factor per pixel"] * spatial
                given += ["times mult"] * (micro.mult is not None) + ["plus add"] * (micro.add is not None)
                words.append(" ".join(given) or "as a number")
            elif isinstance(micro, (StoreBits, StoreFloat)):
                words.append("stored" if isinstance(micro, StoreFloat) else "its signs stored")
            elif isinstance(micro, Curve):
                words.append(micro.function)
            else:
                words.append(MOVE_WORDS[type(micro)])
        return ", ".join(words)


def _combined(micro: AddValue | MulValue | Combine) -> tuple[str, str]:
    """The function of an operand, and how it lies on the register."""
    if isinstance(micro, Combine):
        return micro.function, micro.spread
    if isinstance(micro, AddValue):
        return "add", "each"
    return "mul", "pixel" if micro.per_pixel else "each"


INDEX = {"each": "i", "pixel": "pixel", "channel": "o", "one": "0"}
