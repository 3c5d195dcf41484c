"""Every operation of a packed program in standard ONNX operators.

Values have the batch axis first, then channels; bits are the numbers -1 and +1, dot products are float32. To
add an operation, write its function and its row in `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export.errors import refuse
from xnorpp.export.one_size import for_one_size
from xnorpp.export.onnx.graph import DOMAIN, Graph
from xnorpp.export.onnx.operations2 import OPERATIONS as SET_2
from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.ops import pooled_size
from xnorpp.runtime.format.program import Op, Program

Array = npt.NDArray[Any]


class Translator:
    """One program on its way to a graph: `names` are the results of values that were made."""

    target = "onnx"

    def __init__(self, program: Program, graph: Graph, layout: str = "bits") -> None:
        self.program = program if program.variable else for_one_size(program)
        self.graph, self.layout = graph, layout
        self.names: dict[str, str] = {}

    def run(self) -> None:
        """Translate all operations; one that is not known is refused by name."""
        for op in self.program.ops:
            if op.op not in OPERATIONS:
                raise refuse(op.name, op.op, self.target, "this export does not have the operation yet")
            self.names[op.output] = OPERATIONS[op.op](self, op, *(self.names[name] for name in op.inputs))

    def rank(self, value: str) -> int:
        return len(self.program.values[value].shape)

    def real(self, op: Op, role: str, shape: tuple[int, ...] | None = None) -> str | None:
        """A real tensor as float32; one stored in 16 bits, or as scaled integers, stays so in the file."""
        stored = self.program.stored(op, role)
        if stored is None:
            return None
        given = self._float(op.tensors[role], stored.shape if shape is None else shape)
        scale = self.program.scales.get(op.tensors[role])
        if scale is None:
            return given
        made = f"{given}.scaled"
        if made not in self.names:
            factor = self._float(scale, (-1, *[1] * (len(stored.shape if shape is None else shape) - 1)))
            self.names[made] = self.graph.node("Mul", given, factor, to=made)
        return made

    def _float(self, tensor: str, shape: tuple[int, ...]) -> str:
        """A stored tensor with another shape, converted where it is not float32."""
        stored = self.program.tensors[tensor]
        name = f"{tensor}.{'x'.join(map(str, shape))}"
        given = self.graph.constant(name, stored.reshape(shape))
        if stored.dtype == np.float32:
            return given
        made = f"{name}.float32"
        if made not in self.names:
            self.names[made] = self.cast(given, made, self.graph.onnx.TensorProto.FLOAT)
        return made

    def cast(self, name: str, to: str, kind: int) -> str:
        node = self.graph.onnx.helper.make_node("Cast", [name], [to], name=to, to=kind)
        self.graph.nodes.append(node)
        return to

    def per_channel(self, op: Op, role: str) -> str | None:
        """A real tensor with one number for each channel, shaped to broadcast over a batch."""
        return self.real(op, role, (-1, *[1] * (self.rank(op.output) - 1)))

    def signs(self, op: Op, source: str) -> Array:
        """One-bit weights as -1 and +1."""
        packed = self.program.tensors[op.tensors["weight"]]
        channels = self.program.values[op.inputs[0]].shape[0]
        if packed.ndim == 2:
            return unpack_bits(packed, channels)
        return unpack_conv_weight(packed, channels // op.attrs["groups"])

    def scaled(self, op: Op, x: str) -> str:
        """Times the spatial factor, if there is one."""
        if "row" in op.tensors:
            row, col = self.real(op, "row", (-1, 1)), self.real(op, "col", (1, -1))
            assert row is not None
            assert col is not None
            return self.graph.node("Mul", x, self.graph.node("Mul", row, col))
        for role in ("map", "full"):
            factor = self.real(op, role)
            if factor is not None:
                return self.graph.node("Mul", x, factor)
        return x

    def sign(self, op: Op, x: str) -> str:
        """+1 where x > threshold, else -1: `Sign` would give 0 at 0."""
        v, threshold = self.compared(op, x)
        return self.graph.node(
            "Where", self.graph.node("Greater", v, threshold), *map(self.graph.scalar, (1.0, -1.0))
        )

    def from_bits(self, x: str) -> str:
        """Bits as numbers, which they are already."""
        return self.graph.node("Identity", x)

    def compared(self, op: Op, x: str) -> tuple[str, str]:
        """The number that is compared and its threshold; a flipped channel compares -v > -t."""
        v = self.scaled(op, x)
        flip, threshold = self.program.stored(op, "flip"), self.per_channel(op, "threshold")
        limit = self.graph.scalar(0.0) if threshold is None else threshold
        if flip is None or not flip.any():
            return v, limit
        shape = (-1, *[1] * (self.rank(op.output) - 1))
        factors = np.where(flip != 0, np.float32(-1), np.float32(1)).reshape(shape)
        turn = self.graph.constant(f"{op.tensors['flip']}.turn", factors)
        return self.graph.node("Mul", v, turn), self.graph.node("Mul", limit, turn)

    def window(self, op: Op) -> dict[str, Any]:
        """The attributes of a convolution."""
        pads = [*op.attrs["padding"], *op.attrs["padding"]]
        return {
            "strides": list(op.attrs["stride"]),
            "pads": pads,
            "dilations": list(op.attrs["dilation"]),
            "group": op.attrs["groups"],
        }

    def padded(self, x: str, window: dict[str, Any], value: float) -> str:
        """The image with a border that is not 0, which `Conv` cannot add; `window` has none then."""
        top, left, bottom, right = window["pads"]
        window["pads"] = [0, 0, 0, 0]
        if not any((top, left, bottom, right)):
            return x
        pads = self.graph.numbers(0, 0, top, left, 0, 0, bottom, right)
        return self.graph.node("Pad", x, pads, self.graph.scalar(value))

    def one_bit(self, op: Op, x: str) -> str:
        """A layer with one-bit weights."""
        window = self.window(op) if "stride" in op.attrs else {}
        if op.attrs.get("pad_value", 0):
            x = self.padded(x, window, float(op.attrs["pad_value"]))
        conv = bool(window)
        if self.layout == "qdq":
            return self.quantised(op, x, window)
        channels = self.program.values[op.inputs[0]].shape[0] // op.attrs.get("groups", 1)
        weight = self.graph.constant(op.tensors["weight"], self.program.tensors[op.tensors["weight"]])
        name = "BinaryConv2d" if conv else "BinaryLinear"
        return self.graph.node(name, x, weight, domain=DOMAIN, channels=[channels], **window)

    def quantised(self, op: Op, x: str, window: dict[str, Any]) -> str:
        """Weights, and activations that are -1 and +1, as 8-bit integers between Q and DQ."""
        graph = self.graph
        zero = graph.constant("int8.0", np.asarray(0, np.int8))
        one = graph.scalar(1.0)
        if op.op.startswith("binary_"):
            x = graph.node("DequantizeLinear", graph.node("QuantizeLinear", x, one, zero), one, zero)
        weight = graph.constant(f"{op.tensors['weight']}.int8", self.signs(op, x).astype(np.int8))
        filters = graph.node("DequantizeLinear", weight, one, zero)
        if window:
            return graph.node("Conv", x, filters, **window)
        return graph.node("Gemm", x, filters, transB=1)


def _conv2d(t: Translator, op: Op, x: str) -> str:
    return t.graph.node("Conv", x, *_with_bias(t, op), **t.window(op))


def _int_conv2d(t: Translator, op: Op, x: str) -> str:
    """A convolution of the input rounded to whole steps; the sum is float32, near the exact one."""
    graph, steps, limit = t.graph, float(op.attrs["steps"]), float(op.attrs["limit"])
    clipped = graph.node(
        "Clip", graph.node("Mul", x, graph.scalar(steps)), graph.scalar(-limit), graph.scalar(limit)
    )
    return _conv2d(t, op, graph.node("Div", graph.node("Round", clipped), graph.scalar(steps)))


def _linear(t: Translator, op: Op, x: str) -> str:
    return t.graph.node("Gemm", x, *_with_bias(t, op), transB=1)


def _with_bias(t: Translator, op: Op) -> list[str]:
    weight, bias = t.real(op, "weight"), t.real(op, "bias")
    assert weight is not None
    return [weight] if bias is None else [weight, bias]


def _affine(t: Translator, op: Op, x: str) -> str:
    x = t.scaled(op, x)
    for role, name in (("mult", "Mul"), ("add", "Add")):
        factor = t.per_channel(op, role)
        if factor is not None:
            x = t.graph.node(name, x, factor)
    return x


def _prelu(t: Translator, op: Op, x: str) -> str:
    slope = t.per_channel(op, "slope")
    assert slope is not None
    return t.graph.node("PRelu", x, slope)


def _hardtanh(t: Translator, op: Op, x: str) -> str:
    return t.graph.node("Clip", x, t.graph.scalar(op.attrs["min"]), t.graph.scalar(op.attrs["max"]))


def _pool_window(t: Translator, op: Op) -> tuple[dict[str, Any], list[int], list[int]]:
    """A pool's attributes with explicit pads, its output size, and what `ceil_mode` reads beyond."""
    kernel, stride, padding = (list(op.attrs[key]) for key in ("kernel", "stride", "padding"))
    if t.program.variable and op.attrs["ceil_mode"]:
        reason = "with `ceil_mode` its padding depends on the size of the image; export one size with --size"
        raise refuse(op.name, op.op, t.target, reason)
    sizes = t.program.values[op.inputs[0]].shape[1:]
    out = [
        pooled_size(n, kernel[i], stride[i], padding[i], op.attrs["ceil_mode"]) for i, n in enumerate(sizes)
    ]
    needed = [(o - 1) * stride[i] + kernel[i] for i, o in enumerate(out)]
    beyond = [0, 0]
    if not t.program.variable:
        beyond = [max(0, needed[i] - n - 2 * padding[i]) for i, n in enumerate(sizes)]
    pads = [*padding, *(padding[i] + beyond[i] for i in range(2))]
    return {"kernel_shape": kernel, "strides": stride, "pads": pads}, out, beyond


def _max_pool2d(t: Translator, op: Op, x: str) -> str:
    return t.graph.node("MaxPool", x, **_pool_window(t, op)[0])


def _avg_pool2d(t: Translator, op: Op, x: str) -> str:
    window, out, beyond = _pool_window(t, op)
    if not op.attrs["count_include_pad"] or not any(window["pads"]):
        return t.graph.node("AveragePool", x, **window, count_include_pad=0)
    mean = t.graph.node("AveragePool", x, **window, count_include_pad=1)
    if not any(beyond):
        return mean
    # What `ceil_mode` reads beyond the padding is counted by the operator, and must not be.
    counts = []
    for axis in range(2):
        kernel, stride, padding = window["kernel_shape"][axis], window["strides"][axis], window["pads"][axis]
        end = t.program.values[op.inputs[0]].shape[1 + axis] + padding
        first = np.arange(out[axis]) * stride - padding
        counts.append(kernel / np.minimum(kernel, end - first))
    factor = (counts[0][:, None] * counts[1][None, :]).astype(np.float32)
    return t.graph.node("Mul", mean, t.graph.constant(f"{op.output}.counted", factor))


def _abs_mean(t: Translator, op: Op, x: str) -> str:
    """Summed in float64 and rounded once, as everywhere."""
    kinds = t.graph.onnx.TensorProto
    wide = t.cast(t.graph.node("Abs", x), f"{op.output}.float64", kinds.DOUBLE)
    mean = t.graph.node("ReduceMean", wide, t.graph.numbers(1), keepdims=1)
    return t.cast(mean, f"{op.output}.mean", kinds.FLOAT)


def _box_filter(t: Translator, op: Op, x: str) -> str:
    channels = t.program.values[op.inputs[0]].shape[0]
    kh, kw = op.attrs["kernel"]
    ones = t.graph.constant(f"{op.output}.ones", np.ones((channels, 1, kh, kw), np.float32))
    total = t.graph.node("Conv", x, ones, **t.window(Op(op.op, "", (), "", {**op.attrs, "groups": channels})))
    return t.graph.node("Div", total, t.graph.scalar(float(kh * kw)))


def _pad2d(t: Translator, op: Op, x: str) -> str:
    front, back, top, bottom, left, right = op.attrs["padding"]
    pads = t.graph.numbers(0, front, top, left, 0, back, bottom, right)
    return t.graph.node("Pad", x, pads, t.graph.scalar(op.attrs["value"]))


OPERATIONS: dict[str, Callable[..., str]] = {
    "conv2d": _conv2d,
    "int_conv2d": _int_conv2d,
    "linear": _linear,
    "binary_conv2d": lambda t, op, x: t.one_bit(op, x),
    "binary_linear": lambda t, op, x: t.one_bit(op, x),
    "bitweight_conv2d": lambda t, op, x: t.one_bit(op, x),
    "bitweight_linear": lambda t, op, x: t.one_bit(op, x),
    "sign": lambda t, op, x: t.sign(op, x),
    "affine": _affine,
    "relu": lambda t, op, x: t.graph.node("Relu", x),
    "prelu": _prelu,
    "hardtanh": _hardtanh,
    "add": lambda t, op, a, b: t.graph.node("Add", a, b),
    "mul": lambda t, op, a, b: t.graph.node("Mul", a, b),
    "softmax": lambda t, op, x: t.graph.node("Softmax", x, axis=1),
    "flatten": lambda t, op, x: t.graph.node("Flatten", x, axis=1),
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "global_avg_pool": lambda t, op, x: t.graph.node("GlobalAveragePool", x),
    "abs_mean": _abs_mean,
    "box_filter": _box_filter,
    "pad2d": _pad2d,
    "signs": lambda t, op, x: t.from_bits(x),
    **SET_2,
}
