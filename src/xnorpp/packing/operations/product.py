"""Linear layers, and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.bits.levels import layer_input, two_numbers
from xnorpp.packing.bits.products import bit_conv, bit_linear, filters_of
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import as_image, expanded, on_last_axis, permuted, reshaped
from xnorpp.packing.operations.arguments import of_one, shape_of
from xnorpp.packing.operations.convolution import emit_conv
from xnorpp.packing.trace import Trace

_HEAD = 64  # channels of a head that has no more tokens


def linear(trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None) -> Node:
    """A product with the last axis; where there are others, a 1x1 convolution over that axis as channels."""
    b = None if bias is None else trace.constant(bias)
    return emit_linear(trace, layer_input(trace, input), trace.constant(weight), b)


def emit_linear(trace: Trace, source: Node, w: Array, bias: Array | None) -> Node:
    if len(source.shape) != 1:

        def conv(image: Node) -> Node:
            attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
            given = (image, w[:, :, None, None], bias, attrs, (w.shape[0], *image.shape[1:]))
            return bit_conv(trace, *given) or emit_conv(trace, *given)

        return on_last_axis(trace, source, conv)
    made = bit_linear(trace, source, w, bias)
    if made is not None:
        return made
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": bias}
    return trace.emit("linear", [source], (w.shape[0],), None, tensors)


def softmax(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> Node:
    return _soft(trace, "softmax", input, dim, dtype)


def log_softmax(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> Node:
    return _soft(trace, "log_softmax", input, dim, dtype)


def _soft(trace: Trace, name: str, input: Any, dim: Any, dtype: Any) -> Node:
    source = trace.node(input)
    rank = len(source.shape)
    if dim is None:
        dim = 0 if rank in (0, 2) else 1  # as torch chooses, with a warning
    axis = int(dim) % (rank + 1) - 1
    if axis < 0 or dtype not in (None, torch.float32, torch.float64):
        raise trace.fail(f"over dim={dim} is not supported", "use an axis of each image, and float32")
    if rank == 1 and name == "softmax":
        return trace.emit("softmax", [source], source.shape)
    return trace.emit(name, [source], source.shape, {"axis": axis})


def given_node(trace: Trace, tensor: Any, rank: int) -> Node:
    """A value, or a constant that is the same for every image, with this many axes."""
    if trace.is_value(tensor):
        return trace.node(tensor)
    value = of_one(trace, rank, trace.constant(tensor))
    value = np.ascontiguousarray(value.astype(np.float32))
    return trace.emit("constant", [trace.input], value.shape, None, {"value": value})


def matmul(trace: Trace, result: Tensor, input: Any, other: Any, **kwargs: Any) -> Node:
    places = [trace.batch_axis(t) for t in (input, other) if trace.is_value(t)]
    if places == [0, 1] and input.dim() == other.dim() == 2:
        raise trace.fail(
            f"of shapes {tuple(input.shape)} and {tuple(other.shape)} multiplies each image by every other "
            "one, which is not supported",
            "give each image a matrix of its own: x.unsqueeze(-1) @ y.unsqueeze(-2)",
        )
    if trace.is_value(input) and trace.is_value(other):
        return _products(trace, result, trace.node(input), trace.node(other))
    if trace.is_value(input):
        weight = trace.constant(other)
        if weight.ndim == 1:
            made = emit_linear(trace, layer_input(trace, input), weight[None], None)
            return reshaped(trace, made, made.shape[:-1] or (1,))
        if weight.ndim == 2:
            return emit_linear(trace, layer_input(trace, input), weight.T, None)
    else:
        weight, second = trace.constant(input), trace.node(other)
        if weight.ndim == 2 and len(second.shape) == 2:  # rows of the value are its channels
            layer_input(trace, other)
            image = as_image(trace, second)
            attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
            filters = np.ascontiguousarray(weight[:, :, None, None])
            given = (image, filters, None, attrs, (weight.shape[0], *image.shape[1:]))
            return reshaped(trace, bit_conv(trace, *given) or emit_conv(trace, *given), shape_of(result))
    if weight.ndim < 2:
        raise trace.fail(
            f"with a constant of shape {weight.shape} is not supported",
            "multiply by a matrix, (rows, columns)",
        )
    rank = result.dim() - 1
    return _products(trace, result, given_node(trace, input, rank), given_node(trace, other, rank))


def _products(trace: Trace, result: Tensor, first: Node, second: Node) -> Node:
    """Matrices of two values, or of a value and a constant; axes before them are those of either."""
    lead = [max(pair) for pair in zip(first.shape[:-2], second.shape[:-2])]
    fit = all(n in (1, m) for own in (first, second) for n, m in zip(own.shape, lead))
    if len(first.shape) != len(second.shape) or len(first.shape) < 2 or not fit:
        raise trace.fail(
            f"of shapes {first.shape} and {second.shape} is not supported",
            "give both values as many axes, equal or 1 before the last two",
        )
    made = bit_product(trace, first, second) or weighed_values(trace, first, second)
    if made is not None:
        return made
    first, second = (expanded(trace, own, (*lead, *own.shape[-2:])) for own in (first, second))
    return trace.emit("matmul", [first, second], shape_of(result))


def bit_product(trace: Trace, first: Node, second: Node) -> Node | None:
    """The product of a value with a constant matrix, from either side, counted in bits; None where it is not
    of two numbers."""
    rank = len(first.shape)
    turned = [*range(rank - 2), rank - 1, rank - 2]
    for left, value, other in ((False, first, second), (True, second, first)):
        matrix = _constant_matrix(other)
        if matrix is None:
            continue
        filters = matrix if left else matrix.T
        source = permuted(trace, value, turned) if left else value
        if filters_of(filters) is not None and two_numbers(trace, source) is not None:
            made = emit_linear(trace, source, filters, None)
            return permuted(trace, made, turned) if left else made
    return None


def weighed_values(trace: Trace, weights: Node, values: Node) -> Node | None:
    """softmax(scale * q @ k.T) @ v as attention, as models write it out; None where it is not that.

    Where the tokens are channels, and the numbers of each are pixels, products of matrices are faster.
    """
    rank = len(weights.shape)
    if trace.any_size or weights.op != "softmax" or weights.attrs.get("axis") != rank - 1:
        return None
    (scores,), scale = weights.inputs, 1.0
    if scores.op == "affine":
        factors = scores.tensors.get("mult")
        if factors is None or scores.spatial or "add" in scores.tensors or (factors != factors[0]).any():
            return None
        (scores,), scale = scores.inputs, float(factors[0])
    if scores.op != "matmul":
        return None
    queries, keys = scores.inputs
    tokens, width = queries.shape[-2:]
    if queries.shape[:-2] != values.shape[:-2] or width > max(tokens, _HEAD):
        return None
    turned = permuted(trace, keys, [*range(rank - 2), rank - 1, rank - 2])
    return attend(trace, [queries, turned, values], scale)


def attend(trace: Trace, nodes: list[Node], scale: float) -> Node:
    rank = len(nodes[0].shape)
    heads = math.prod(nodes[0].shape[:-2])
    flat = []
    for node in nodes:
        moved = permuted(trace, node, [*range(rank - 2), rank - 1, rank - 2])
        flat.append(reshaped(trace, moved, (heads * node.shape[-1], node.shape[-2])))
    shape = (flat[2].shape[0], flat[0].shape[1])
    made = trace.emit("attention", flat, shape, {"heads": heads, "scale": float(np.float32(scale))})
    apart = reshaped(trace, made, (*nodes[0].shape[:-2], nodes[2].shape[-1], nodes[0].shape[-2]))
    return permuted(trace, apart, [*range(rank - 2), rank - 1, rank - 2])


def _constant_matrix(node: Node) -> Array | None:
    """The numbers of a constant matrix that is the same for every axis before its own two."""
    source = node
    while source.op == "reshape":
        source = source.inputs[0]
    if source.op != "constant" or any(n > 1 for n in node.shape[:-2]):
        return None
    return np.asarray(source.tensors["value"].reshape(node.shape[-2:]))


FUNCTIONS: dict[str, Any] = {
    "linear": linear,
    "softmax": softmax,
    "log_softmax": log_softmax,
    **dict.fromkeys(("matmul", "bmm", "mm"), matmul),
    "rmatmul": lambda trace, result, a, b: matmul(trace, result, b, a),
}
