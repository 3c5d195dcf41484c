"""`export_openvino`: a packed model for OpenVINO, its binary layers as real `BinaryConvolution` operations.

OpenVINO's CPU plugin computes these on bits (`jit_avx2_u1`, `jit_avx512_u1`) where the activations come from
a `FakeQuantize` of two levels, 0 and 1: it gives 0 where x <= threshold, so sign(0) = -1 holds. A padding
of 0 leaves taps out, as ours does. The plugin needs fixed shapes, one group, and input channels in eights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export.errors import ExportError, refuse
from xnorpp.export.one_size import check_program, for_one_size
from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.ops import pooled_size
from xnorpp.runtime.format.program import INPUT, Op, Program

Array = npt.NDArray[Any]


def export_openvino(program: Program, *, batch: int = 1) -> Any:
    """A program as an `openvino.Model` for normalised float32 images `(batch, c, h, w)`.

    Args:
        program: what to export; one with free sizes is exported for its `input_shape`.
        batch: the number of images of a call; it is fixed.

    Returns:
        The model; `openvino.save_model(model, path, compress_to_fp16=False)` writes it.

    Raises:
        ExportError: a layer that cannot be expressed, or the package openvino is missing.

    Example:
        >>> import xnorpp
        >>> from xnorpp.export import export_openvino
        >>> model = export_openvino(xnorpp.load("cifar10-resnet20").program)
        >>> list(model.input(0).shape)
        [1, 3, 32, 32]
    """
    check_program(program)
    if not isinstance(batch, int) or batch < 1:
        raise ExportError(f"`batch` (={batch!r}) must be a whole number of at least 1")
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise ExportError(
            "this export needs the package openvino; install it with `pip install 'xnorpp[openvino]'`"
        ) from error
    return _Translator(for_one_size(program), openvino, batch).model()


class _Translator:
    def __init__(self, program: Program, openvino: Any, batch: int) -> None:
        self.program, self.ov, self.batch = program, openvino, batch
        self.ops = openvino.opset8
        self.made: dict[str, Any] = {}

    def model(self) -> Any:
        source = self.ops.parameter([self.batch, *self.program.input_shape], np.float32, name=INPUT)
        source.output(0).get_tensor().set_names({INPUT})
        self.made[INPUT] = source
        for op in self.program.ops:
            if op.op not in OPERATIONS:
                raise refuse(op.name, op.op, "openvino", "this export does not have the operation yet")
            node = OPERATIONS[op.op](self, op, *(self.made[name] for name in op.inputs))
            node.set_friendly_name(f"{op.name}/{op.op}/{op.output}")
            self.made[op.output] = node
        results = []
        for name, value in self.program.outputs.items():
            result = self.ops.result(self.made[value])
            result.output(0).get_tensor().add_names({name})
            results.append(result)
        return self.ov.Model(results, [source], "xnorpp")

    def refuse(self, op: Op, reason: str) -> ExportError:
        return refuse(op.name, op.op, "openvino", reason)

    def constant(self, values: Array) -> Any:
        """A constant; one stored in 16 bits is converted where it is used."""
        if values.dtype == np.float16:
            return self.ops.convert(self.ops.constant(np.require(values, requirements="C")), "f32")
        return self.ops.constant(np.require(values, requirements="C"))

    def stored(self, op: Op, role: str) -> Array | None:
        """A real tensor as stored in 16 or 32 bits; scaled integers become float32."""
        scaled = op.tensors.get(role) in self.program.scales
        return self.program.real(op, role) if scaled else self.program.stored(op, role)

    def per_channel(self, op: Op, role: str) -> Any:
        stored = self.stored(op, role)
        if stored is None:
            return None
        return self.constant(stored.reshape(1, -1, *[1] * (len(self.program.values[op.output].shape) - 1)))

    def scaled(self, op: Op, x: Any) -> Any:
        """Times the spatial factor, if there is one."""
        if "row" in op.tensors:
            row, col = (self.stored(op, role) for role in ("row", "col"))
            assert row is not None
            assert col is not None
            return self.ops.multiply(
                x, self.ops.multiply(self.constant(row[:, None]), self.constant(col[None]))
            )
        for role in ("map", "full"):
            factor = self.stored(op, role)
            if factor is not None:
                return self.ops.multiply(x, self.constant(factor))
        return x

    def sign(self, op: Op, x: Any) -> Any:
        """1 where x > threshold, else 0."""
        rank = len(self.program.values[op.output].shape)
        shape = (1, -1, *[1] * (rank - 1))
        channels = self.program.values[op.output].shape[0]
        given, flip = self.program.real(op, "threshold"), self.program.stored(op, "flip")
        threshold = np.zeros(channels, np.float32) if given is None else given
        v = self.scaled(op, x)
        if flip is not None and flip.any():  # -v > -t
            turn = np.where(flip != 0, np.float32(-1), np.float32(1))
            v, threshold = self.ops.multiply(v, self.constant(turn.reshape(shape))), threshold * turn
        if rank != 3:  # the plugin binarizes images alone
            v = self.ops.reshape(v, self.constant(np.asarray([self.batch, channels, -1, 1])), False)
        limit = self.constant(threshold.reshape(1, -1, 1, 1).astype(np.float32))
        low, high = (self.constant(np.full((1, 1, 1, 1), level, np.float32)) for level in (0, 1))
        return self.ops.fake_quantize(v, limit, limit, low, high, levels=2)

    def binary(self, op: Op, x: Any) -> Any:
        """Bits and one-bit filters: a linear layer is a 1x1 window on a 1x1 image."""
        channels = self.program.values[op.inputs[0]].shape[0]
        outputs = self.program.values[op.output].shape[0]
        if op.attrs.get("groups", 1) != 1:
            raise self.refuse(op, f"BinaryConvolution has no groups, and this layer has {op.attrs['groups']}")
        if channels % 8:
            raise self.refuse(op, f"OpenVINO needs input channels in eights, and this layer has {channels}")
        packed = self.program.tensors[op.tensors["weight"]]
        linear = packed.ndim == 2
        if linear:
            x = self.ops.reshape(
                x, self.constant(np.asarray([self.batch, channels, 1, 1])), special_zero=False
            )
            packed = packed[:, None, None, :]
        signs = unpack_conv_weight(packed, channels)
        bits = self.ov.Tensor(self.ov.Type.u1, self.ov.Shape(list(signs.shape)))
        bits.data[...] = np.packbits((signs > 0).reshape(-1), bitorder="little")
        padding, stride, dilation = (
            list(op.attrs.get(key, default))
            for key, default in (("padding", (0, 0)), ("stride", (1, 1)), ("dilation", (1, 1)))
        )
        y = self.ov.opset1.binary_convolution(
            *(x, self.ov.op.Constant(bits), stride, padding, padding, dilation),
            mode="xnor-popcount",
            pad_value=float(op.attrs.get("pad_value", 0)),
        )
        return (
            self.ops.reshape(y, self.constant(np.asarray([self.batch, outputs])), special_zero=False)
            if linear
            else y
        )

    def convolution(self, op: Op, x: Any, weight: Any, shape: tuple[int, ...]) -> Any:
        groups = op.attrs["groups"]
        window = [list(op.attrs[key]) for key in ("stride", "padding", "padding", "dilation")]
        if groups == 1:
            return self.ops.convolution(x, weight, *window)
        split = np.asarray([groups, shape[0] // groups, *shape[1:]])
        return self.ops.group_convolution(x, self.ops.reshape(weight, self.constant(split), False), *window)

    def biased(self, op: Op, y: Any) -> Any:
        bias = self.per_channel(op, "bias")
        return y if bias is None else self.ops.add(y, bias)

    def one_bit_weight(self, op: Op) -> tuple[Any, tuple[int, ...]]:
        """-1 and +1 as 8-bit integers, converted in the graph."""
        packed = self.program.tensors[op.tensors["weight"]]
        channels = self.program.values[op.inputs[0]].shape[0]
        if packed.ndim == 2:
            signs = unpack_bits(packed, channels)
        else:
            signs = unpack_conv_weight(packed, channels // op.attrs["groups"])
        return self.ops.convert(self.constant(signs), "f32"), signs.shape


def _conv2d(t: _Translator, op: Op, x: Any) -> Any:
    weight = t.stored(op, "weight")
    assert weight is not None
    return t.biased(op, t.convolution(op, x, t.constant(weight), weight.shape))


def _int_conv2d(t: _Translator, op: Op, x: Any) -> Any:
    """A convolution of the input rounded to whole steps; the sum is float32, near the exact one."""
    steps, limit = np.float32(op.attrs["steps"]), float(op.attrs["limit"])
    clipped = t.ops.clamp(t.ops.multiply(x, t.constant(steps)), -limit, limit)
    return _conv2d(t, op, t.ops.divide(t.ops.round(clipped, "half_to_even"), t.constant(steps)))


def _linear(t: _Translator, op: Op, x: Any) -> Any:
    weight = t.stored(op, "weight")
    assert weight is not None
    return t.biased(op, t.ops.matmul(x, t.constant(weight), False, True))


def _bitweight_linear(t: _Translator, op: Op, x: Any) -> Any:
    return t.ops.matmul(x, t.one_bit_weight(op)[0], False, True)


def _affine(t: _Translator, op: Op, x: Any) -> Any:
    x = t.scaled(op, x)
    mult, add = t.per_channel(op, "mult"), t.per_channel(op, "add")
    if mult is not None:
        x = t.ops.multiply(x, mult)
    if add is not None:
        x = t.ops.add(x, add)
    return t.ops.convert(x, "f32") if x is t.made[op.inputs[0]] else x


def _prelu(t: _Translator, op: Op, x: Any) -> Any:
    slope = t.stored(op, "slope")
    assert slope is not None
    return t.ops.prelu(x, t.constant(slope))


def _pool(t: _Translator, op: Op) -> tuple[list[list[int]], list[int]]:
    """Strides, begins, ends and kernel with the format's output size; and what lies beyond the padding."""
    kernel, stride, padding = (list(op.attrs[key]) for key in ("kernel", "stride", "padding"))
    beyond = []
    for axis, size in enumerate(t.program.values[op.inputs[0]].shape[1:]):
        k, s, p = kernel[axis], stride[axis], padding[axis]
        out = pooled_size(size, k, s, p, op.attrs["ceil_mode"])
        beyond.append(max(0, (out - 1) * s + k - size - 2 * p))
    return [stride, padding, [p + b for p, b in zip(padding, beyond, strict=True)], kernel], beyond


def _max_pool2d(t: _Translator, op: Op, x: Any) -> Any:
    window, _ = _pool(t, op)
    return t.ov.opset1.max_pool(x, *window, "floor", "explicit")


def _avg_pool2d(t: _Translator, op: Op, x: Any) -> Any:
    window, beyond = _pool(t, op)
    counted = bool(op.attrs["count_include_pad"])
    if counted and any(beyond):
        raise t.refuse(
            op, "its windows reach beyond a padding that counts (`ceil_mode` with `count_include_pad`)"
        )
    return t.ops.avg_pool(x, *window, not counted, "floor", "explicit")


def _mean(t: _Translator, x: Any, *axes: int) -> Any:
    return t.ops.reduce_mean(x, t.constant(np.asarray(axes)), True)


def _box_filter(t: _Translator, op: Op, x: Any) -> Any:
    channels = t.program.values[op.inputs[0]].shape[0]
    kh, kw = op.attrs["kernel"]
    ones = np.ones((channels, 1, kh, kw), np.float32)
    grouped = Op(op.op, op.name, (), "", {**op.attrs, "groups": channels})
    total = t.convolution(grouped, x, t.constant(ones), ones.shape)
    return t.ops.divide(total, t.constant(np.asarray(kh * kw, np.float32)))


def _pad2d(t: _Translator, op: Op, x: Any) -> Any:
    front, back, top, bottom, left, right = op.attrs["padding"]
    begin, end = (t.constant(np.asarray(row)) for row in ((0, front, top, left), (0, back, bottom, right)))
    return t.ops.pad(x, begin, end, "constant", t.constant(np.asarray(op.attrs["value"], np.float32)))


def _flatten(t: _Translator, op: Op, x: Any) -> Any:
    return t.ops.reshape(x, t.constant(np.asarray([t.batch, t.program.values[op.output].shape[0]])), False)


def _signs(t: _Translator, op: Op, x: Any) -> Any:
    two, one = (t.constant(np.asarray(v, np.float32)) for v in (2, 1))
    y = t.ops.subtract(t.ops.multiply(x, two), one)
    shape = t.program.values[op.output].shape
    return y if len(shape) == 3 else t.ops.reshape(y, t.constant(np.asarray([t.batch, *shape])), False)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "conv2d": _conv2d,
    "int_conv2d": _int_conv2d,
    "linear": _linear,
    "binary_conv2d": lambda t, op, x: t.binary(op, x),
    "binary_linear": lambda t, op, x: t.binary(op, x),
    "bitweight_conv2d": lambda t, op, x: t.convolution(op, x, *t.one_bit_weight(op)),
    "bitweight_linear": _bitweight_linear,
    "sign": lambda t, op, x: t.sign(op, x),
    "affine": _affine,
    "relu": lambda t, op, x: t.ops.relu(x),
    "prelu": _prelu,
    "hardtanh": lambda t, op, x: t.ops.clamp(x, float(op.attrs["min"]), float(op.attrs["max"])),
    "add": lambda t, op, a, b: t.ops.add(a, b),
    "mul": lambda t, op, a, b: t.ops.multiply(a, b),
    "concat": lambda t, op, *parts: t.ops.concat(list(parts), int(op.attrs["axis"]) + 1),
    "softmax": lambda t, op, x: t.ops.softmax(x, 1),
    "flatten": _flatten,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "global_avg_pool": lambda t, op, x: _mean(t, x, 2, 3),
    "abs_mean": lambda t, op, x: _mean(t, t.ops.abs(x), 1),
    "box_filter": _box_filter,
    "pad2d": _pad2d,
    "signs": _signs,
}
