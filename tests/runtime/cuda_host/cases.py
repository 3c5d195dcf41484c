"""What the CUDA engine is tested on, with and without a GPU: listed networks, and programs of every
operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.packing import pack_program as pack
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.program import Op, Program

METHOD_SCALES = (
    ("real", None), ("binaryconnect", None), ("bnn", None), ("xnor", "alpha"), ("xnor", "alpha_k"),
    ("xnor++", "channel"), ("xnor++", "dense"), ("xnor++", "channel_spatial"),
    ("xnor++", "channel_height_width"),
)  # fmt: skip
SIZES = {"alexnet": 67, "small": 16, "resnet20": 12, "resnet18": 16, "resnet34": 16, "reactnet-a": 16}
NORMALISE = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}


def unsettle(model: nn.Module, seed: int = 3) -> None:
    """Make a fresh network look trained, and worse: negative scales, batch-norm weights and slopes."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if "running_mean" in name:
                tensor.normal_(0, 0.5, generator=g)
            elif "running_var" in name:
                tensor.uniform_(0.5, 2, generator=g)
            elif "scale" in name:
                negative = torch.rand(tensor.shape, generator=g) < 0.3
                tensor.mul_(torch.where(negative, -1.0, 1.0) * (0.5 + torch.rand(tensor.shape, generator=g)))
            elif tensor.ndim == 1 or "shift" in name:
                tensor.normal_(0, 0.7, generator=g)


def network(name: str, method: str, scale: str | None, size: int | None = None, **options: Any) -> Program:
    """A packed network with unsettled weights; the paper's block where `options` name no other."""
    torch.manual_seed(1)
    size = size or SIZES.get(name, 24)
    if name == "reactnet-a":  # its own block, and narrow
        options = {"width": 0.125, **options}
    else:
        options = {**PAPER_BLOCK, **options}
    model = create_model(name, method=method, scale=scale, input_size=size, num_classes=10, **options)
    if method == "binaryconnect":  # its sums grow by sqrt(n) a layer; batch statistics keep them finite
        with torch.no_grad():
            model.train()(torch.randn(4, 3, size, size))
    else:
        unsettle(model)
    return pack(model.eval(), size, preprocess=NORMALISE)


def tamed_stem(program: Program) -> Program:
    """The same program with rising slopes behind its first convolution, so that stem.cu takes it."""
    tensors = dict(program.tensors)
    for op in program.ops[:3]:
        if op.op == "prelu":
            tensors[op.tensors["slope"]] = np.abs(tensors[op.tensors["slope"]])
    return Program(
        program.input_shape,
        program.ops,
        program.output,
        tensors,
        program.mean,
        program.std,
        program.preprocess,
    )


class Writer:
    """Writes a program operation by operation."""

    def __init__(self, shape: tuple[int, int, int], seed: int = 0) -> None:
        self.shape, self.ops, self.tensors = shape, [], {}
        self.rng = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, attrs: dict[str, Any] | None = None, **tensors: np.ndarray) -> str:
        output = f"v{len(self.ops)}"
        names = {role: f"{output}.{role}" for role in tensors}
        self.tensors |= {names[role]: tensor for role, tensor in tensors.items()}
        self.ops.append(Op(kind, output, inputs, output, attrs or {}, names))
        return output

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)

    def signs(self, *shape: int) -> np.ndarray:
        weight = self.rng.normal(size=shape)
        return pack_conv_weight(weight) if len(shape) == 4 else pack_linear_weight(weight)

    def bits(self, value: str, channels: int, *, flip: bool = True) -> str:
        threshold = self.normal(channels)
        threshold[0] = np.inf
        threshold[-1] = -np.inf
        more = {"flip": (self.rng.random(channels) < 0.5).astype(np.uint8)} if flip else {}
        return self.op("sign", value, threshold=threshold, **more)

    def program(self, output: str) -> Program:
        return Program(
            self.shape, tuple(self.ops), output, self.tensors, (0.4,) * self.shape[0], (0.3,) * self.shape[0]
        )


def window(
    stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1, **more: Any
) -> dict[str, Any]:
    return {
        "stride": [stride] * 2, "padding": [padding] * 2, "dilation": [dilation] * 2,
        "groups": groups, **more,
    }  # fmt: skip


def zoo() -> Program:
    """Every operation and the odd forms of each: groups, dilation, paddings, flips, infinite thresholds,
    pools."""
    w = Writer((6, 13, 11))
    a = w.op("conv2d", "input", attrs=window(1, 1, groups=2), weight=w.normal(36, 3, 3, 3), bias=w.normal(36))
    a = w.op("prelu", a, slope=w.normal(36))
    bits = w.bits(a, 36)
    d = w.op("binary_conv2d", bits, attrs=window(1, 2, 2, 3, pad_value=0), weight=w.signs(30, 12, 3, 3))
    row, col = w.normal(13), w.normal(11)
    d = w.op("affine", d, mult=w.normal(30), add=w.normal(30), row=row, col=col)
    d = w.op("hardtanh", d, attrs={"min": -2.0, "max": 1.5})
    e = w.op(
        "max_pool2d", d, attrs={"kernel": [3, 2], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True}
    )
    bits = w.bits(e, 30)
    e = w.op("binary_conv2d", bits, attrs=window(1, 1, 1, 1, pad_value=1), weight=w.signs(70, 30, 3, 3))
    shape = (7, 6)
    e = w.op("affine", e, full=w.normal(70, *shape), mult=w.normal(70))
    signed = w.op("signs", w.bits(e, 70))
    f = w.op("add", e, signed)
    k = w.op("box_filter", w.op("abs_mean", f), attrs={
        "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]})  # fmt: skip
    bits = w.bits(f, 70, flip=False)
    g = w.op("binary_conv2d", bits, attrs=window(1, 1, 1, 1, pad_value=-1), weight=w.signs(70, 70, 3, 3))
    g = w.op("mul", g, k)
    g = w.op("mul", g, f)
    g = w.op("affine", g, mult=w.normal(70) / 100)
    g = w.op("avg_pool2d", g, attrs={
        "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True,
        "count_include_pad": False})  # fmt: skip
    h = w.op("bitweight_conv2d", g, attrs=window(2, 1, 1, 2), weight=w.signs(16, 35, 3, 3))
    h = w.op("relu", w.op("affine", h, mult=w.normal(16) / 10, add=w.normal(16)))
    h = w.op("pad2d", h, attrs={"padding": [1, 2, 0, 1, 1, 0], "value": 0.25})
    h = w.op("avg_pool2d", h, attrs={
        "kernel": [2, 2], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True,
        "count_include_pad": True})  # fmt: skip
    values = w.program(h).values[h].shape
    flat = w.op("flatten", h)
    count = int(np.prod(values))
    i = w.op("binary_linear", w.bits(flat, count), weight=w.signs(33, count))
    i = w.op("affine", i, mult=w.normal(33) / 8)
    i = w.op("bitweight_linear", i, weight=w.signs(20, 33))
    i = w.op("affine", i, mult=w.normal(20) / 8)
    return w.program(w.op("softmax", w.op("linear", i, weight=w.normal(10, 20), bias=w.normal(10))))


def fast_shapes() -> Program:
    """Layers for the one-bit tensor cores, one after the other: tails, dilation, paddings, a stored raw dot
    product, two signs of one value, a wide linear layer; and the caller's image as an operand."""
    w = Writer((32, 9, 10), seed=1)
    first = w.bits(w.op("add", w.op("relu", "input"), "input"), 32)
    a = w.op("binary_conv2d", first, attrs=window(1, 1, pad_value=0), weight=w.signs(96, 32, 3, 3))
    a = w.op("affine", a, map=w.normal(9, 10), mult=w.normal(96), add=w.normal(96))
    plus, minus = w.bits(a, 96), w.bits(a, 96)
    b = w.op("binary_conv2d", plus, attrs=window(1, 2, 2, pad_value=1), weight=w.signs(64, 96, 3, 3))
    c = w.op("binary_conv2d", minus, attrs=window(1, 1, pad_value=-1), weight=w.signs(64, 96, 3, 3))
    c = w.op("affine", c, mult=w.normal(64), full=w.normal(64, 9, 10))
    c = w.op("add", w.op("affine", b), c)
    d = w.op("binary_conv2d", w.bits(c, 64), attrs=window(2, 1, pad_value=0), weight=w.signs(160, 64, 5, 3))
    d = w.op("hardtanh", w.op("affine", d, mult=w.normal(160) / 9), attrs={"min": -1.0, "max": 1.0})
    values = w.program(d).values[d].shape
    flat, count = w.op("flatten", d), int(np.prod(values))
    e = w.op("binary_linear", w.bits(flat, count), weight=w.signs(64, count))
    return w.program(w.op("affine", e, mult=w.normal(64)))


# (channels, height, width), filters, kernel, window, images: the first layers of ResNets and AlexNet, 1x1
# shortcuts; channels of several pieces; filters that fill no four, byte and unit; pixels around a block.
REAL_LAYERS: dict[str, tuple[Any, ...]] = {
    "7x7 / 2": ((3, 25, 22), 64, (7, 7), window(2, 3), 2),
    "3x3": ((3, 9, 16), 70, (3, 3), window(1, 1), 2),
    "11x11 / 4": ((3, 39, 35), 20, (11, 11), window(4, 2), 3),
    "1x1": ((64, 4, 8), 128, (1, 1), window(), 4),
    "1x1 / 2": ((36, 9, 7), 65, (1, 1), window(2), 7),
    "3x3 of 40": ((40, 6, 5), 66, (3, 3), window(1, 1), 2),
    "5x3 dilated": ((8, 11, 13), 7, (5, 3), window(1, 3, 2), 1),
    "a window wider than the image": ((10, 3, 2), 33, (5, 5), window(1, 4), 3),
}


def real_layer(name: str, *, stream: bool = False) -> Program:
    """One of `REAL_LAYERS` with what follows it, on the image itself or on a stream of floats."""
    shape, filters, kernel, attrs, _ = REAL_LAYERS[name]
    w = Writer(shape, seed=filters)
    value = w.op("relu", "input") if stream else "input"
    bias = {"bias": w.normal(filters)} if filters % 2 else {}
    value = w.op("conv2d", value, attrs=attrs, weight=w.normal(filters, shape[0], *kernel), **bias)
    value = w.op("affine", value, mult=w.normal(filters), add=w.normal(filters))
    return w.program(w.op("prelu", value, slope=w.normal(filters)))
