"""Attention: torch's function for queries, keys and values, and that of nn.MultiheadAttention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.places import Place
from xnorpp.packing.moves.views import expanded, of_each_image, permuted, reshaped
from xnorpp.packing.operations.arguments import affine, of_one, shape_of
from xnorpp.packing.operations.product import attend, emit_linear, given_node
from xnorpp.packing.trace import Trace


def attention(
    trace: Trace, result: Tensor, query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    """torch's (.., heads, tokens, channels) as the channels of all heads side by side, (c, tokens)."""
    if dropout_p:
        raise trace.fail("with dropout is active in evaluation too", "pass dropout_p=0.0 in evaluation")
    nodes = [given_node(trace, t, result.dim() - 1) for t in (query, key, value)]
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


def _masked(trace: Trace, nodes: list[Node], scale: float, *masks: Any) -> Node:
    """Attention with summands of its scores; a mask of truth values sums -1e9 where it is false."""
    q, k, v = nodes
    rank = len(q.shape)
    turned = permuted(trace, k, [*range(rank - 2), rank - 1, rank - 2])
    asked = affine(trace, q, np.array([scale]), None)
    shape = (*q.shape[:-1], k.shape[-2])
    scores = trace.emit("matmul", [asked, turned], shape)
    for mask in masks:
        scores = _hidden(trace, scores, mask)
    weights = trace.emit("softmax", [scores], shape, {"axis": rank - 1})
    return trace.emit("matmul", [weights, v], (*q.shape[:-1], v.shape[-1]))


def _hidden(trace: Trace, scores: Node, mask: Any) -> Node:
    truth = not isinstance(mask, Tensor) or mask.dtype == torch.bool
    if trace.is_value(mask):
        given = trace.node(mask)
        given = reshaped(trace, given, (1,) * (len(scores.shape) - len(given.shape)) + given.shape)
        if truth:
            given = affine(trace, given, np.array([1e9]), np.array([-1e9]))
            hidden = mask.detach().reshape(trace.batch, *given.shape).logical_not().float() * -1e9
            trace.keep(given, None, lambda _: hidden)
        attrs = None if given.shape == scores.shape else {"broadcast": True}
        return trace.emit("add", [scores, given], scores.shape, attrs)
    c = trace.constant(mask) if isinstance(mask, Tensor) else mask
    c = np.where(c != 0, 0.0, -1e9) if truth else c
    value = of_one(trace, len(scores.shape), np.maximum(c, -1e9))
    return trace.emit("offset", [scores], scores.shape, None, {"value": value})


def _masks(trace: Trace, attn_mask: Any, key_padding_mask: Any, lead: tuple[int, ...]) -> list[Tensor]:
    """The masks of nn.MultiheadAttention as those of scores, (n, *lead, queries, keys); `lead` ends with the
    heads."""
    masks = []
    if attn_mask is not None and attn_mask.dim() == 3:  # one for each image and head
        masks.append(_shown(trace, attn_mask, (*lead, *attn_mask.shape[1:])))
    elif attn_mask is not None:
        masks.append(_shown(trace, attn_mask, None))
    if key_padding_mask is not None:
        masks.append(_shown(trace, key_padding_mask, (*lead[:-1], 1, 1, key_padding_mask.shape[-1])))
    return masks


def _shown(trace: Trace, mask: Tensor, shape: Sequence[int] | None) -> Tensor:
    """A mask with these axes for each image. nn.MultiheadAttention hides what is true,
    `scaled_dot_product_attention` what is false."""
    apart = mask.detach() if shape is None else mask.detach().reshape(trace.batch, *shape)
    shown = ~apart if mask.dtype == torch.bool else apart
    if not trace.is_value(mask):
        trace.check_constant(mask)
        trace.add_constant(shown)
        return shown
    node = reshaped(trace, trace.node(mask, anywhere=True), shown.shape[1:])
    shows = mask.dtype == torch.bool
    trace.bind(shown, affine(trace, node, np.array([-1.0]), np.array([1.0])) if shows else node)
    return shown


def _projected(trace: Trace, tensor: Tensor, place: Place, w: Array, b: Array | None) -> Node:
    """A projection of tokens, (tokens, n, c): of a value, or of a constant, such as learned queries."""
    if trace.is_value(tensor):
        return emit_linear(trace, trace.node(tensor, anywhere=True), w, b)
    own = trace.constant(of_each_image(trace, tensor, place)).squeeze(1)
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
    if any(t is not None for t in (bias_k, bias_v)) or add_zero_attn:
        remedy = "leave `add_bias_kv` and `add_zero_attn` out"
        raise trace.fail("with added keys is not supported", remedy)
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
    masks = _masks(trace, attn_mask, key_padding_mask, heads[0].shape[:-2])
    seen = _masked(trace, heads, scale, *masks) if masks else attend(trace, heads, scale)
    found = permuted(trace, seen, [*range(rank - 3), rank - 2, rank - 3, rank - 1])
    flat = reshaped(trace, found, (*found.shape[:-2], num_heads * heads[2].shape[-1]))
    last = None if out_proj_bias is None else trace.constant(out_proj_bias)
    trace.set_place(result[0], places.pop())
    return [_axis_to_front(trace, emit_linear(trace, flat, trace.constant(out_proj_weight), last))]


def _axis_to_front(trace: Trace, node: Node) -> Node:
    """(tokens, k, c), where the batch is merged with another axis, as (k, tokens, c), and the way back."""
    return permuted(trace, node, [1, 0, 2]) if len(node.shape) == 3 else node


FUNCTIONS: dict[str, Any] = {
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
}
