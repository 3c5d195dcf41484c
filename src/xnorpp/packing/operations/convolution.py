"""Convolutions of images and of sequences, which are images of one row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xnorpp.packing.bits.levels import layer_input
from xnorpp.packing.bits.products import bit_conv, bit_transposed
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.transposed import transposed
from xnorpp.packing.moves.views import reshaped
from xnorpp.packing.operations.arguments import Handler, affine, check_image, pair, shape_of
from xnorpp.packing.trace import Trace


def conv2d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Node:  # fmt: skip
    source, w = check_image(trace, layer_input(trace, input)), trace.constant(weight)
    geometry = (pair(stride), padding if isinstance(padding, str) else pair(padding), pair(dilation))
    return _conv(trace, source, w, bias, *geometry, int(groups), shape_of(result))


def conv1d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Node:  # fmt: skip
    image, w = sequence(trace, layer_input(trace, input)), trace.constant(weight)[:, :, None]
    border = padding if isinstance(padding, str) else [0, _one(padding)]
    geometry = ([1, _one(stride)], border, [1, _one(dilation)])
    shape = (result.shape[1], 1, result.shape[2])
    return reshaped(trace, _conv(trace, image, w, bias, *geometry, int(groups), shape), shape_of(result))


def sequence(trace: Trace, node: Node) -> Node:
    """A sequence (c, length) as an image of one row."""
    if len(node.shape) != 2:
        raise trace.fail(
            f"is applied to shape (n, {', '.join(map(str, node.shape))}); (n, c, length) is needed",
            "give it sequences, (n, c, length)",
        )
    return reshaped(trace, node, (node.shape[0], 1, node.shape[1]))


def _one(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


def _conv(
    trace: Trace, source: Node, w: Array, bias: Any, stride: list[int], padding: Any, dilation: list[int],
    groups: int, shape: tuple[int, ...],
) -> Node:  # fmt: skip
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
        if padding == "same" and any(r % 2 for r in reach):  # torch puts the odd one at the end
            top, left = (r // 2 for r in reach)
            edges = [0, 0, top, reach[0] - top, left, reach[1] - left]
            wide = (source.shape[0], source.shape[1] + reach[0], source.shape[2] + reach[1])
            source = trace.emit("pad2d", [source], wide, {"padding": edges, "value": 0.0})
            padding = "valid"
        padding = [r // 2 for r in reach] if padding == "same" else [0, 0]
    attrs: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    b = None if bias is None else trace.constant(bias)
    return bit_conv(trace, source, w, b, attrs, shape) or emit_conv(trace, source, w, b, attrs, shape)


def emit_conv(
    trace: Trace, source: Node, weight: Array, bias: Array | None, attrs: dict[str, Any],
    shape: tuple[int, ...],
) -> Node:  # fmt: skip
    tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return trace.emit("conv2d", [source], shape, attrs, tensors)


def conv_transpose2d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Node:  # fmt: skip
    source, w = check_image(trace, layer_input(trace, input)), trace.constant(weight)
    geometry = (pair(stride), pair(padding), pair(dilation), int(groups))
    made = _transposed(trace, source, w, *geometry, shape_of(result))
    return made if bias is None else affine(trace, made, None, trace.constant(bias))


def conv_transpose1d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Node:  # fmt: skip
    image, w = sequence(trace, layer_input(trace, input)), trace.constant(weight)[:, :, None]
    geometry = ([1, _one(stride)], [0, _one(padding)], [1, _one(dilation)], int(groups))
    made = _transposed(trace, image, w, *geometry, (result.shape[1], 1, result.shape[2]))
    made = reshaped(trace, made, shape_of(result))
    return made if bias is None else affine(trace, made, None, trace.constant(bias))


def _transposed(
    trace: Trace, source: Node, w: Array, stride: list[int], padding: list[int], dilation: list[int],
    groups: int, shape: tuple[int, ...],
) -> Node:  # fmt: skip
    given = (trace, source, w, stride, padding, dilation, groups, shape)
    return bit_transposed(*given) or transposed(*given, binary=False)


FUNCTIONS: dict[str, Handler] = {
    "conv2d": conv2d,
    "conv1d": conv1d,
    "conv_transpose2d": conv_transpose2d,
    "conv_transpose1d": conv_transpose1d,
}
