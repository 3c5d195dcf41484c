"""Linear layers, and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.bits.products import bit_conv, bit_linear
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.places import Place
from xnorpp.packing.moves.views import as_image, expanded, on_last_axis, permuted, reshaped
from xnorpp.packing.operations.arguments import affine, layer_input, of_one, shape_of
from xnorpp.packing.operations.convolution import emit_conv
from xnorpp.packing.trace import Trace


def linear(trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None) -> Node:
    """A product with the last axis; where there are others, a 1x1 convolution over that axis as channels."""
    b = None if bias is None else trace.constant(bias)
    return _linear(trace, layer_input(trace, input), trace.constant(weight), b)


def _linear(trace: Trace, source: Node, w: Array, bias: Array | None) -> Node:
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


def _given(trace: Trace, tensor: Any, rank: int) -> Node:
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
            made = _linear(trace, trace.node(input), weight[None], None)
            return reshaped(trace, made, made.shape[:-1] or (1,))
        if weight.ndim == 2:
            return _linear(trace, trace.node(input), weight.T, None)
    else:
        weight, second = trace.constant(input), trace.node(other)
        if weight.ndim == 2 and len(second.shape) == 2:  # rows of the value are its channels
            image = as_image(trace, second)
            attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
            tensors = {"weight": np.ascontiguousarray(weight[:, :, None, None])}
            made = trace.emit("conv2d", [image], (weight.shape[0], *image.shape[1:]), attrs, tensors)
            return reshaped(trace, made, shape_of(result))
    if weight.ndim < 2:
        raise trace.fail(
            f"with a constant of shape {weight.shape} is not supported",
            "multiply by a matrix, (rows, columns)",
        )
    rank = result.dim() - 1
    return _products(trace, result, _given(trace, input, rank), _given(trace, other, rank))


def _products(trace: Trace, result: Tensor, first: Node, second: Node) -> Node:
    """Matrices of two values, or of a value and a constant; axes before them are those of either."""
    lead = [max(pair) for pair in zip(first.shape[:-2], second.shape[:-2])]
    fit = all(n in (1, m) for own in (first, second) for n, m in zip(own.shape, lead))
    if len(first.shape) != len(second.shape) or len(first.shape) < 2 or not fit:
        raise trace.fail(
            f"of shapes {first.shape} and {second.shape} is not supported",
            "give both values as many axes, equal or 1 before the last two",
        )
    first, second = (expanded(trace, own, (*lead, *own.shape[-2:])) for own in (first, second))
    return trace.emit("matmul", [first, second], shape_of(result))


def attention(
    trace: Trace, result: Tensor, query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    """torch's (.., heads, tokens, channels) as the channels of all heads side by side, (c, tokens)."""
    if dropout_p:
        raise trace.fail("with dropout is active in evaluation too", "pass dropout_p=0.0 in evaluation")
    nodes = [_given(trace, t, result.dim() - 1) for t in (query, key, value)]
    if enable_gqa:
        nodes = [nodes[0], *(_repeated_heads(trace, node, nodes[0].shape[-3]) for node in nodes[1:])]
    factor = float(query.shape[-1]) ** -0.5 if scale is None else float(scale)
    lead = [node.shape[:-2] for node in nodes]
    if attn_mask is None and not is_causal and lead[1] == lead[2]:
        if lead[0] == lead[1]:
            return attend(trace, nodes, factor)
        if math.prod(lead[1]) == 1 and len(lead[0]) == len(lead[1]):  # all queries share one head of keys
            tokens = math.prod(nodes[0].shape[:-1])
            asked = reshaped(trace, nodes[0], (*lead[1], tokens, nodes[0].shape[-1]))
            return reshaped(trace, attend(trace, [asked, *nodes[1:]], factor), shape_of(result))
    if not lead[0] == lead[1] == lead[2]:
        raise trace.fail("with fewer heads of keys than of queries is not supported", "repeat the keys")
    return _masked(trace, nodes, factor, _causal(query, key) if is_causal else attn_mask)


def _repeated_heads(trace: Trace, node: Node, heads: int) -> Node:
    """Each head of keys or values as many times, one after the other, as groups of queries share it."""
    *lead, own, tokens, width = node.shape
    wide = reshaped(trace, node, (*lead, own, 1, tokens, width))
    wide = expanded(trace, wide, (*lead, own, heads // own, tokens, width))
    return reshaped(trace, wide, (*lead, heads, tokens, width))


def _causal(query: Tensor, key: Tensor) -> Array:
    return np.tril(np.ones((query.shape[-2], key.shape[-2]), bool))


def _masked(trace: Trace, nodes: list[Node], scale: float, mask: Any) -> Node:
    """Attention with a summand of its scores; a mask of truth values sums -1e9 where it is false."""
    q, k, v = nodes
    rank = len(q.shape)
    turned = permuted(trace, k, [*range(rank - 2), rank - 1, rank - 2])
    asked = affine(trace, q, np.array([scale]), None)
    shape = (*q.shape[:-1], k.shape[-2])
    scores = trace.emit("matmul", [asked, turned], shape)
    if trace.is_value(mask):
        given = trace.node(mask)
        attrs = None if given.shape == shape else {"broadcast": True}
        scores = trace.emit("add", [scores, given], shape, attrs)
    else:
        if isinstance(mask, Tensor):
            c = trace.constant(mask)
            c = np.where(c != 0, 0.0, -1e9) if mask.dtype == torch.bool else c
        else:
            c = np.where(mask, 0.0, -1e9)
        value = of_one(trace, len(scores.shape), np.maximum(c, -1e9))
        scores = trace.emit("offset", [scores], shape, None, {"value": value})
    weights = trace.emit("softmax", [scores], shape, {"axis": rank - 1})
    return trace.emit("matmul", [weights, v], (*q.shape[:-1], v.shape[-1]))


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


def _mask(trace: Trace, mask: Tensor) -> Tensor:
    """nn.MultiheadAttention hides what is true, scaled_dot_product_attention what is false."""
    if mask.dtype == torch.bool:
        mask = ~mask
        trace.add_constant(mask)
    return mask


def _projected(trace: Trace, tensor: Tensor, place: Place, w: Array, b: Array | None) -> Node:
    """A projection of tokens, (tokens, n, c): of a value, or of a constant, such as learned queries."""
    if trace.is_value(tensor):
        return _linear(trace, trace.node(tensor, anywhere=True), w, b)
    own = trace.constant(trace.of_each_image(tensor, place)).squeeze(1)
    value = np.ascontiguousarray((own @ w.T + (0.0 if b is None else b)).astype(np.float32))
    return trace.emit("constant", [trace.input], value.shape, None, {"value": value})


def multi_head_attention(
    trace: Trace, result: Any, query: Any, key: Any, value: Any, embed_dim: int, num_heads: int,
    in_proj_weight: Any, in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Any, out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None, **kwargs: Any,
) -> list[Node]:  # fmt: skip
    """nn.MultiheadAttention: its output; the weights that it returns too are not packed."""
    if any(t is not None for t in (bias_k, bias_v, key_padding_mask)) or add_zero_attn:
        raise trace.fail("with a mask of keys or added keys is not supported", "leave the mask out")
    if attn_mask is not None and (trace.is_value(attn_mask) or attn_mask.dim() != 2):
        raise trace.fail("with a mask for each image is not supported", "use one mask, (tokens, tokens)")
    if use_separate_proj_weight:
        weights = [trace.constant(t) for t in (q_proj_weight, k_proj_weight, v_proj_weight)]
    else:
        weights = np.split(trace.constant(in_proj_weight), 3)
    biases = [None] * 3 if in_proj_bias is None else np.split(trace.constant(in_proj_bias), 3)
    places = {trace.place(t) for t in (query, key, value) if trace.is_value(t)}
    if any(trace.batch_axis(t) != 1 for t in (query, key, value) if trace.is_value(t)):
        raise trace.fail("attends over the batch, so that it mixes images", "set batch_first=True")
    if len(places) > 1:
        raise trace.fail(
            "of a batch that is merged with another axis, and of another one, is not supported",
            "leave each image to itself",
        )
    heads = []
    for tensor, w, b in zip((query, key, value), weights, biases):
        made = _axis_to_front(trace, _projected(trace, tensor, min(places, key=str), w, b))
        *lead, tokens, width = made.shape
        parts = reshaped(trace, made, (*lead, tokens, num_heads, width // num_heads))
        rank = len(parts.shape)
        heads.append(permuted(trace, parts, [*range(rank - 3), rank - 2, rank - 3, rank - 1]))
    scale = heads[0].shape[-1] ** -0.5
    seen = (
        attend(trace, heads, scale)
        if attn_mask is None
        else _masked(trace, heads, scale, _mask(trace, attn_mask))
    )
    found = permuted(trace, seen, [*range(rank - 3), rank - 2, rank - 3, rank - 1])
    flat = reshaped(trace, found, (*found.shape[:-2], num_heads * heads[2].shape[-1]))
    last = None if out_proj_bias is None else trace.constant(out_proj_bias)
    trace.set_place(result[0], places.pop())
    return [_axis_to_front(trace, _linear(trace, flat, trace.constant(out_proj_weight), last))]


def _axis_to_front(trace: Trace, node: Node) -> Node:
    """(tokens, k, c), where the batch is merged with another axis, as (k, tokens, c), and the way back."""
    return permuted(trace, node, [1, 0, 2]) if len(node.shape) == 3 else node


FUNCTIONS: dict[str, Any] = {
    "linear": linear,
    "softmax": softmax,
    "log_softmax": log_softmax,
    **dict.fromkeys(("matmul", "bmm", "mm"), matmul),
    "rmatmul": lambda trace, result, a, b: matmul(trace, result, b, a),
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
}
