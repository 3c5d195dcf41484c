"""What a BinaryConv2d or BinaryLinear means as nodes: sign, dot product, XNOR-Net's K, scale and bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xnorpp.nn import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLayer, BinaryLinear
from xnorpp.nn.quantizers import hard_sign
from xnorpp.packing.bits.products import with_sums
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.transposed import transposed
from xnorpp.packing.moves.views import joined, on_last_axis, permuted, reshaped, sliced
from xnorpp.packing.operations.arguments import affine, check_image
from xnorpp.packing.operations.convolution import sequence
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight

_MOST_PARTS = 64  # copies of a convolution, for images that the batch is merged with


def record_layer(trace: Trace, layer: nn.Module, x: Any, result: Tensor) -> Node:
    """The nodes of a BinaryConv2d or BinaryLinear: sign, dot product, K, scale and bias."""
    if not trace.is_value(x):
        raise trace.fail("has a constant input")
    assert isinstance(layer, BinaryLayer)
    _check_quantizers(trace, layer)
    source, shape = trace.node(x), tuple(result.shape[1:])
    if isinstance(layer, BinaryLinear):
        return _binary_linear(trace, layer, source, shape)
    if len(source.shape) == layer.weight.dim():  # an axis that the batch was merged with comes first
        return _for_each(trace, layer, source, shape)
    return _convolution(trace, layer, source, shape)


def _convolution(trace: Trace, layer: BinaryLayer, source: Node, shape: tuple[int, ...]) -> Node:
    if isinstance(layer, BinaryConv1d):
        made = _binary_conv2d(trace, layer, sequence(trace, source), (shape[0], 1, shape[1]))
        return reshaped(trace, made, shape)
    if isinstance(layer, BinaryConv2d):
        return _binary_conv2d(trace, layer, check_image(trace, source), shape)
    assert isinstance(layer, BinaryConvTranspose2d)
    return _binary_transposed(trace, layer, check_image(trace, source), shape)


def _for_each(trace: Trace, layer: BinaryLayer, source: Node, shape: tuple[int, ...]) -> Node:
    """A convolution of each part of a value, (k, c, ...): frames of a video, or views of a thing."""
    if _is_pointwise(layer):
        return _rows_of_parts(trace, layer, source, shape)
    if shape[0] > _MOST_PARTS:
        raise trace.fail(
            f"runs on {shape[0]} images for each image of the batch; up to {_MOST_PARTS} are supported",
            "pack the module for one of them, and run it on each",
        )
    made = []
    for place in range(shape[0]):
        part = reshaped(trace, sliced(trace, source, 0, place, place + 1), source.shape[1:])
        made.append(reshaped(trace, _convolution(trace, layer, part, shape[1:]), (1, *shape[1:])))
    return joined(trace, made, 0)


def _rows_of_parts(trace: Trace, layer: BinaryLayer, source: Node, shape: tuple[int, ...]) -> Node:
    """The same of a layer of single pixels: the parts are rows of one image."""
    parts, inputs, *size = source.shape
    turned = [1, 0, *range(2, len(source.shape))]
    rows = reshaped(trace, permuted(trace, source, turned), (inputs, parts * size[0], *size[1:]))
    done = _convolution(trace, layer, rows, (shape[1], parts * size[0], *size[1:]))
    return permuted(trace, reshaped(trace, done, (shape[1], parts, *size)), turned)


def _is_pointwise(layer: BinaryLayer) -> bool:
    """Whether a layer treats every pixel alike and by itself."""
    if not isinstance(layer, BinaryConv2d | BinaryConv1d) or (
        layer.scale is not None and layer.scale.spatial
    ):
        return False
    kernel, stride, padding, _ = layer._window()
    return {*kernel, *stride} == {1} and not any(padding)


def _check_quantizers(trace: Trace, layer: BinaryLayer) -> None:
    """A quantizer of the user's own packs as one bit only if it is Eq. 1, whatever it declares."""
    config = layer.binarization
    for side, quantizer in (("inputs", config.inputs), ("weights", config.weights)):
        if quantizer.encoding not in (None, "sign"):
            raise trace.fail(
                f"quantizes its {side} by {str(quantizer)!r} with the encoding {quantizer.encoding!r}, "
                "which is not supported; 'sign' and None are"
            )
    if config.binarizes_input:
        probe = torch.tensor([-3.0, -1.0, -0.5, -1e-30, 0.0, 1e-30, 0.5, 1.0, 3.0])
        if not torch.equal(config.inputs(probe, layer.progress.to(probe)), hard_sign(probe)):
            raise trace.fail(
                f"quantizes its inputs by {str(config.inputs)!r}, which is not +1 if x > 0 else -1; "
                "put a shift before the layer instead"
            )
    if layer.weights_are_binary and not bool((layer.binary_weight().abs() == 1).all()):
        raise trace.fail(f"has weights from {str(config.weights)!r} that are neither +1 nor -1")


def _array(tensor: Tensor) -> Array:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return np.array(tensor.detach().to("cpu", wide).numpy())


def _real_weight(layer: BinaryLayer) -> Array:
    """What stands for sign(W) in the first of two stages, when weights are still real."""
    return _array(_as_image(layer.working_weight()[0]))


def _as_image(weight: Tensor) -> Tensor:
    """The filters of a sequence as those of images of one row."""
    return weight.unsqueeze(2) if weight.dim() == 3 else weight


def _binary_conv2d(
    trace: Trace, layer: BinaryConv2d | BinaryConv1d, source: Node, shape: tuple[int, ...]
) -> Node:
    _, stride, (left, right, top, bottom), dilation = layer._window()
    if left != right or top != bottom:
        return _padded_evenly(trace, layer, source, shape)
    attrs: dict[str, Any] = {
        "stride": list(stride),
        "padding": [top, left],
        "dilation": list(dilation),
        "groups": layer.groups,
    }
    if not layer.binarizes_input:
        weight = layer.binary_weight() if layer.weights_are_binary else None
        if weight is None:
            y = trace.emit("conv2d", [source], shape, attrs, {"weight": _real_weight(layer)})
        else:
            packed = pack_conv_weight(_array(_as_image(weight)))
            y = trace.emit("bitweight_conv2d", [source], shape, attrs, {"weight": packed})
        return _scaled(trace, layer, y, None)
    k = _input_scale(trace, layer, source, shape, attrs) if _uses_input(layer) else None
    bits = trace.emit_sign(_from_middle(trace, layer, source))
    window = {**attrs, "pad_value": layer.padding_value}
    total = _window_sums(trace, layer, bits, shape, window, layer._window()[0])
    if layer.weights_are_binary:
        packed = pack_conv_weight(_array(_as_image(layer.binary_weight())))
        dot = trace.emit("binary_conv2d", [bits], shape, window, {"weight": packed})
        return _scaled(trace, layer, dot, k, total)
    signs = trace.emit("signs", [bits], source.shape)
    if layer.padding_value and any(attrs["padding"]):
        padded = (source.shape[0], source.shape[1] + 2 * top, source.shape[2] + 2 * left)
        around = {"padding": [0, 0, top, top, left, left], "value": float(layer.padding_value)}
        signs = trace.emit("pad2d", [signs], padded, around)
        attrs["padding"] = [0, 0]
    dot = trace.emit("conv2d", [signs], shape, attrs, {"weight": _real_weight(layer)})
    return _scaled(trace, layer, dot, k, total)


def _from_middle(trace: Trace, layer: BinaryLayer, source: Node) -> Node:
    """What the sign is taken of: with `adaptive_sets` the distance from the middle of the input's set."""
    if layer.sets is None:
        return source
    middle = layer.sets.middle.detach()
    made = affine(trace, source, None, np.repeat(-_array(middle), source.shape[0]))
    trace.keep(made, source, lambda x: x - middle)
    return made


def _window_sums(
    trace: Trace,
    layer: BinaryConv2d | BinaryConv1d | BinaryLinear,
    bits: Node,
    shape: tuple[int, ...],
    window: dict[str, Any],
    kernel: tuple[int, int],
) -> Node | None:
    """With `adaptive_sets`, the sum of the signs under each window: a filter of ones for each group."""
    if layer.sets is None:
        return None
    groups = int(window["groups"])
    ones = pack_conv_weight(np.ones((groups, bits.shape[0] // groups, *kernel), np.float32))
    counted = trace.emit("binary_conv2d", [bits], (groups, *shape[1:]), window, {"weight": ones})
    return affine(trace, counted, None, None)


def _padded_evenly(
    trace: Trace, layer: BinaryConv2d | BinaryConv1d, source: Node, shape: tuple[int, ...]
) -> Node:
    """'same' with an even kernel, whose borders differ: the wider one on both sides, and the rest cut off."""
    _, _, (left, right, top, bottom), _ = layer._window()
    attrs: dict[str, Any] = {"stride": [1, 1], "dilation": list(layer._window()[3]), "groups": layer.groups}
    attrs["padding"] = [max(top, bottom), max(left, right)]
    both = layer.binarizes_input and layer.weights_are_binary
    if not both or _uses_input(layer) or layer.sets is not None:
        raise trace.fail(
            f"with padding={layer.padding!r} pads unevenly here, which is supported for binary inputs and "
            "weights alone, without adaptive sets",
            "use an odd kernel size",
        )
    attrs["pad_value"] = layer.padding_value
    more = (shape[1] + abs(bottom - top), shape[2] + abs(right - left))
    packed = pack_conv_weight(_array(_as_image(layer.binary_weight())))
    dot = trace.emit("binary_conv2d", [trace.emit_sign(source)], (shape[0], *more), attrs, {"weight": packed})
    made = affine(trace, dot, None, None)
    for axis, (before, after) in ((1, (top, bottom)), (2, (left, right))):
        begin = max(0, after - before)
        made = sliced(trace, made, axis, begin, begin + shape[axis])
    return _scaled(trace, layer, made, None)


def _binary_transposed(
    trace: Trace, layer: BinaryConvTranspose2d, source: Node, shape: tuple[int, ...]
) -> Node:
    stride, padding, dilation = ([int(n) for n in m] for m in (layer.stride, layer.padding, layer.dilation))
    both = layer.binarizes_input and layer.weights_are_binary
    if layer.binarizes_input:
        source = trace.emit_sign(source)
        if not both:
            source = trace.emit("signs", [source], source.shape)
    weight = _array(layer.binary_weight()) if layer.weights_are_binary else _real_weight(layer)
    geometry = (stride, padding, dilation, layer.groups)
    made = transposed(trace, source, weight, *geometry, shape, binary=both)
    return _scaled(trace, layer, made, None)


def _binary_linear(trace: Trace, layer: BinaryLinear, source: Node, shape: tuple[int, ...]) -> Node:
    if len(source.shape) != 1:
        return on_last_axis(trace, source, lambda image: _pixelwise(trace, layer, image))
    k = trace.emit("abs_mean", [source], (1,)) if _uses_input(layer) else None
    total = None
    if layer.binarizes_input:
        source = trace.emit_sign(_from_middle(trace, layer, source))
    if layer.sets is not None:
        ones = pack_linear_weight(np.ones((1, layer.in_features), np.float32))
        counted = trace.emit("binary_linear", [source], (1,), None, {"weight": ones})
        total = affine(trace, counted, None, None)
    if layer.weights_are_binary:
        op = "binary_linear" if layer.binarizes_input else "bitweight_linear"
        y = trace.emit(
            op, [source], shape, None, {"weight": pack_linear_weight(_array(layer.binary_weight()))}
        )
    else:
        if layer.binarizes_input:
            source = trace.emit("signs", [source], source.shape)
        y = trace.emit("linear", [source], shape, None, {"weight": _real_weight(layer)})
    return _scaled(trace, layer, y, k, total)


def _pixelwise(trace: Trace, layer: BinaryLinear, image: Node) -> Node:
    """A linear layer over the channels of each pixel: a 1x1 convolution."""
    k = trace.emit("abs_mean", [image], (1, *image.shape[1:])) if _uses_input(layer) else None
    attrs: dict[str, Any] = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    shape = (layer.out_features, *image.shape[1:])
    total = None
    if layer.binarizes_input:
        image = trace.emit_sign(_from_middle(trace, layer, image))
        total = _window_sums(trace, layer, image, shape, {**attrs, "pad_value": 0}, (1, 1))
    if not layer.weights_are_binary:
        if layer.binarizes_input:
            image = trace.emit("signs", [image], image.shape)
        weight = _real_weight(layer)[:, :, None, None]
        dot = trace.emit("conv2d", [image], shape, attrs, {"weight": weight})
        return _scaled(trace, layer, dot, k, total)
    packed = pack_conv_weight(_array(layer.binary_weight())[:, :, None, None])
    op = "bitweight_conv2d"
    if layer.binarizes_input:
        op, attrs["pad_value"] = "binary_conv2d", 0
    return _scaled(trace, layer, trace.emit(op, [image], shape, attrs, {"weight": packed}), k, total)


def _uses_input(layer: BinaryLayer) -> bool:
    return layer.scale is not None and layer.scale.uses_input


def _input_scale(
    trace: Trace,
    layer: BinaryConv2d | BinaryConv1d,
    source: Node,
    shape: tuple[int, ...],
    attrs: dict[str, Any],
) -> Node:
    """XNOR-Net's K. With groups each has its own: a real convolution of |x| with a box filter gives them."""
    kernel = list(layer._window()[0])
    if layer.groups == 1:
        window = {"kernel": kernel, **{key: attrs[key] for key in ("stride", "padding", "dilation")}}
        mean = trace.emit("abs_mean", [source], (1, *source.shape[1:]))
        return trace.emit("box_filter", [mean], (1, *shape[1:]), window)
    magnitude = trace.emit("prelu", [source], source.shape, None, {"slope": np.array([-1.0], np.float32)})
    fan = source.shape[0] // layer.groups
    box = np.full((shape[0], fan, *kernel), 1.0 / (fan * kernel[0] * kernel[1]))
    return trace.emit("conv2d", [magnitude], shape, dict(attrs), {"weight": box})


def _scaled(trace: Trace, layer: BinaryLayer, y: Node, k: Node | None, total: Node | None = None) -> Node:
    """`y*K*Gamma + bias`: the channel factor and bias as vectors, the rest of Gamma as the spatial factor.

    `total` are the sums of signs that `adaptive_sets` add to the products.
    """
    if k is not None:
        y = trace.emit("mul", [y, k], y.shape)
    if total is not None:
        y = with_sums(trace, y, total, *(_array(one).astype(np.float64) for one in layer.set_factors()))
    spatial = {role: _array(part) for role, part in layer.packed_scale().items()}
    mult = spatial.pop("mult", None)
    bias = None if layer.bias is None else _array(layer.bias)
    if mult is None and bias is None and not spatial and y.op not in ("binary_conv2d", "binary_linear"):
        return y
    return affine(trace, y, mult, bias, spatial)
