"""Moves of axes are put off until they meet their inverse: what is computed in between is done before them.

A model that works on (n, h, w, c) or (n, tokens, c) permutes before and after what it does. In a program the
channels come first, so every layer over the last axis is recorded between two permutes. This pass writes

    f(permute(x))                 as  permute(f(x))            f element by element
    f(permute(x), permute(y))     as  permute(f(x, y))         the same axes
    f(reshape(x))                 as  reshape(f(x))            f with constants per channel too
    concat, slice of permute(x)   as  permute of them          and so sums and softmax along axes
    permute(permute(x))           as  one permute, or x        and so for reshape

so that a ConvNeXt block, a transformer's MLP or a network of sequences moves nothing at all. A channel or
pixel shuffle that is written with a reshape, a permute and a reshape becomes the operation of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from xnorpp.packing.graph import F32, Node, Trained, order
from xnorpp.runtime.reference.curves import CURVES

# Element by element, the same for every channel.
_UNARY = frozenset(("relu", "hardtanh", *CURVES))
_BINARY = frozenset(("add", "sub", "mul", "div"))
_ALONG = frozenset(("softmax", "log_softmax"))
_CHANNELS = frozenset(("affine", "prelu"))  # element by element, with constants per channel


def place_moves(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The same graph with fewer moves; the given nodes are left as they are."""
    fresh = count(-2, -1)  # serials that no value of the trained network has
    for _ in range(2):
        new: dict[int, Node] = {}
        for node in order(*outputs):
            copy = replace(node, inputs=[new[id(source)] for source in node.inputs])
            new[id(node)] = _rewritten(copy, lambda: next(fresh))
        outputs = tuple(new[id(output)] for output in outputs)
    return outputs


def _rewritten(node: Node, serial: Callable[[], int]) -> Node:
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return node
    if node.op in ("permute", "reshape"):
        return _composed(node)
    if node.op == first.op == "slice":
        return _one_slice(node, first)
    if first.op == "permute":
        return _through_permute(node, first.attrs["axes"], serial)
    if first.op == "reshape":
        return _through_reshape(node, first, serial)
    return node


def _composed(node: Node) -> Node:
    """A move of a move as one, as none, or as a shuffle."""
    source = node.inputs[0]
    if node.op == "permute":
        axes = node.attrs["axes"]
        if source.op == "permute":
            axes, source = [source.attrs["axes"][axis] for axis in axes], source.inputs[0]
        if axes == sorted(axes):
            return source
        long = [axis for axis in axes if source.shape[axis] > 1]
        if long == sorted(long):  # axes of one element change places with others
            node = replace(node, op="reshape", inputs=[source], attrs={"shape": list(node.shape)})
        else:
            return replace(node, inputs=[source], attrs={"axes": axes})
    while source.op == "reshape":
        source = source.inputs[0]
    if source.shape == node.shape:
        return source
    return _shuffle(replace(node, inputs=[source]))


def _one_slice(node: Node, first: Node) -> Node:
    """Two slices as one, where each axis is cut by one of them at most."""
    parts = []
    for inner, outer in zip(_cuts(first), _cuts(node)):
        if (0, None, 1) not in (inner, outer):
            return node
        parts.append(outer if inner == (0, None, 1) else inner)
    attrs = {key: [part[i] for part in parts] for i, key in enumerate(("start", "stop", "step"))}
    return replace(node, inputs=first.inputs, attrs=attrs)


def _cuts(node: Node) -> list[tuple[Any, ...]]:
    return list(zip(*(node.attrs[key] for key in ("start", "stop", "step"))))


def _shuffle(node: Node) -> Node:
    """reshape(permute(reshape(x))) as the shuffle of channels or pixels that it is."""
    turned = node.inputs[0]
    if turned.op != "permute" or turned.inputs[0].op != "reshape":
        return node
    apart, axes = turned.inputs[0], turned.attrs["axes"]
    source = apart.inputs[0]
    if len(source.shape) != 3 or len(node.shape) != 3:
        return node
    (c, h, w), split = source.shape, apart.shape
    if axes == [1, 0, 2, 3] and node.shape == source.shape and split[2:] == (h, w):
        return replace(node, op="channel_shuffle", inputs=[source], attrs={"groups": split[0]})
    if axes == [0, 3, 1, 4, 2] and split[1] == split[2] and split[3:] == (h, w):
        factor = split[1]
        if node.shape == (c // factor**2, h * factor, w * factor):
            return replace(node, op="pixel_shuffle", inputs=[source], attrs={"factor": factor})
    return node


def _through_permute(node: Node, axes: list[int], serial: Callable[[], int]) -> Node:
    if not all(source.op == "permute" and source.attrs["axes"] == axes for source in node.inputs):
        return node
    if len(node.shape) != len(axes):  # a flattened value, or one more axis
        return node
    inner = [source.inputs[0] for source in node.inputs]
    inverse = [axes.index(i) for i in range(len(axes))]
    shape = tuple(node.shape[i] for i in inverse)
    changes: dict[str, Any] = {}
    if node.op in _CHANNELS:
        same_constants = _for_all_channels(node, shape[0])
        if same_constants is None:
            return node
        changes = same_constants
    elif node.op == "offset":
        changes = {"tensors": {"value": node.tensors["value"].transpose(inverse)}}
    elif node.op == "slice":
        changes = {"attrs": {key: [values[i] for i in inverse] for key, values in node.attrs.items()}}
    elif node.op == "concat" or (node.op in _ALONG and "axis" in node.attrs):
        changes = {"attrs": {"axis": axes[node.attrs["axis"]]}}
    elif node.op == "reduce":
        changes = {"attrs": {**node.attrs, "axes": sorted(axes[axis] for axis in node.attrs["axes"])}}
    elif node.op in _BINARY:
        if any(source.shape != node.shape for source in node.inputs) and not node.attrs.get("broadcast"):
            return node
    elif node.op not in _UNARY:
        return node
    return _composed(_moved_back(node, inner, shape, serial, changes, {"axes": axes}))


def _through_reshape(node: Node, first: Node, serial: Callable[[], int]) -> Node:
    inner = [source.inputs[0] for source in node.inputs if source.op == "reshape"]
    same = all(source.shape == inner[0].shape for source in inner)
    if len(inner) != len(node.inputs) or not same or any(s.shape != first.shape for s in node.inputs):
        return node
    shape = inner[0].shape
    changes: dict[str, Any] = {}
    if node.op in _CHANNELS:
        if shape[0] != node.shape[0] or node.spatial:
            same_constants = _for_all_channels(node, shape[0])
            if same_constants is None:
                return node
            changes = same_constants
    elif node.op not in _UNARY and node.op not in _BINARY:
        return node
    return _composed(_moved_back(node, inner, shape, serial, changes, first.attrs))


def _moved_back(
    node: Node, inner: list[Node], shape: tuple[int, ...], serial: Callable[[], int], changes: Any, attrs: Any
) -> Node:
    """`node` of these inputs, and the move of its result that `attrs` states: `verify` compares both."""
    op = "permute" if "axes" in attrs else "reshape"
    step = (op, tuple(attrs["axes"].index(i) for i in range(len(shape))) if op == "permute" else shape)
    known, steps = node.turned or (node.serial, ())
    moved = replace(
        node, inputs=inner, shape=shape, serial=serial(), turned=(known, (*steps, step)), **changes
    )
    return Node(op, [moved], node.shape, attrs, {}, node.path, node.line, node.serial, turned=node.turned)


def _for_all_channels(node: Node, channels: int) -> dict[str, Any] | None:
    """What changes in an affine or PReLU whose constants are one number for all, for other channels."""
    tensors = {}
    for role, tensor in node.tensors.items():
        if node.spatial or not np.all(tensor == tensor.reshape(-1)[0]):
            return None
        one = tensor.size == 1 and node.op == "prelu"
        tensors[role] = tensor if one else np.full(channels, tensor.reshape(-1)[0])
    size = None if node.size is None else np.max(node.size) * np.ones(channels)
    return {"tensors": tensors, "size": size, "trained": _for_any_channels(node)}


def _for_any_channels(node: Node) -> Trained | None:
    """The trained function of a node, which takes as many channels as the node has, for other channels."""
    own, channels = node.trained, node.shape[0]
    if own is None:
        return None

    def trained(v: F32) -> F32:
        return own(np.repeat(v[..., None], channels, axis=-1))[..., 0]

    return trained
