"""Values of any rank: nodes that move numbers without changing them, written so that they vanish in pairs.

A torch model permutes and reshapes where a program need not: a linear layer over the last axis of (h, w, c)
is a 1x1 convolution on (c, h, w). So a move of a move is recorded as one, and as nothing where it is undone;
`layout.py` moves what is computed in between to the other side of a move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.places import Place
from xnorpp.packing.trace import Trace


def permuted(trace: Trace, node: Node, axes: Sequence[int]) -> Node:
    """Axis i of the result is axis `axes[i]` of the value; none is the batch."""
    axes = list(axes)
    source = node
    if node.op == "permute":
        source, axes = node.inputs[0], [node.attrs["axes"][axis] for axis in axes]
    if axes == sorted(axes):
        return source
    shape = tuple(source.shape[axis] for axis in axes)
    long = [axis for axis in axes if source.shape[axis] > 1]
    if long == sorted(long):  # axes of one element alone change places
        return reshaped(trace, source, shape)
    made = trace.emit("permute", [source], shape, {"axes": axes})
    trace.keep(made, source, lambda t: t.permute(0, *(axis + 1 for axis in axes)))
    return made


def reshaped(trace: Trace, node: Node, shape: Sequence[int]) -> Node:
    """The same numbers in the same order."""
    shape = tuple(shape)
    source = node
    while source.op in ("reshape", "flatten") and source.shape != shape:
        source = source.inputs[0]
    if source.shape == shape:
        return source
    if len(shape) == 1:
        made = trace.emit("flatten", [source], shape)
    else:
        made = trace.emit("reshape", [source], shape, {"shape": list(shape)})
    trace.keep(made, source, lambda t: t.reshape(t.shape[0], *shape))
    return made


def channels_first(trace: Trace, node: Node, axis: int) -> Node:
    """The value with one axis moved to the front."""
    return permuted(trace, node, [axis, *(i for i in range(len(node.shape)) if i != axis)])


def channels_back(trace: Trace, node: Node, axis: int) -> Node:
    """The value with its first axis moved to a place: the inverse of `channels_first`."""
    order = list(range(1, len(node.shape)))
    return permuted(trace, node, [*order[:axis], 0, *order[axis:]])


def as_image(trace: Trace, node: Node) -> Node:
    """A value as (c, h, w): its first axis stays, and the last one where there are several more."""
    if len(node.shape) == 3:
        return node
    if len(node.shape) == 1:
        return reshaped(trace, node, (node.shape[0], 1, 1))
    return reshaped(trace, node, (node.shape[0], math.prod(node.shape[1:-1]), node.shape[-1]))


def on_last_axis(trace: Trace, node: Node, layer: Callable[[Node], Node]) -> Node:
    """A layer over the channels of an image, applied to the last axis of a value of two axes or more."""
    first = channels_first(trace, node, len(node.shape) - 1)
    image = as_image(trace, first)
    trace.keep(image, node, lambda t: t.movedim(-1, 1).reshape(len(t), *image.shape))
    made = layer(image)
    back = reshaped(trace, made, (made.shape[0], *first.shape[1:]))
    return channels_back(trace, back, len(node.shape) - 1)


def sliced(trace: Trace, node: Node, axis: int, begin: int, end: int | None, step: int = 1) -> Node:
    """Numbers `begin`, `begin + step`, ... before `end` along an axis; below 0 it counts from the last."""
    size = node.shape[axis]
    stop = size if end is None else end + size if end < 0 else min(end, size)
    if begin == 0 and stop == size and step == 1:
        return node
    rank = len(node.shape)
    attrs: dict[str, Any] = {"start": [0] * rank, "stop": [None] * rank, "step": [1] * rank}
    attrs["start"][axis], attrs["step"][axis] = begin, step
    attrs["stop"][axis] = end if end is not None and (end < 0 or stop < size) else None
    shape = list(node.shape)
    shape[axis] = -((stop - begin) // -step)
    made = trace.emit("slice", [node], tuple(shape), attrs)
    trace.keep(made, node, lambda t: t[(slice(None),) * (axis + 1) + (slice(begin, end, step),)])
    return made


def batches_of(
    trace: Trace, result: Tensor, input: Tensor, node: Node, axis: int, begin: int, end: int
) -> Node:
    """Whole batches of those that a tensor has one after the other; `axis` is where the value has them. Where
    one is left, the axis has one element."""
    place = trace.place(input)
    each, inner = input.shape[place.axis] // place.outer, place.count // place.outer
    if place.outer == 1 or begin % each or end % each or end <= begin:
        remedy = "leave the batch axis first, and each image to itself"
        raise trace.fail("chooses among images, which is not supported", remedy)
    first, last = begin // each, end // each
    trace.follow(result, input, trace.batch_axis(result))
    left = replace(trace.place(result), count=(last - first) * inner, outer=last - first)
    trace.set_place(result, left)
    return sliced(trace, node, axis, first * inner, last * inner)


def joined(trace: Trace, parts: Sequence[Node], axis: int) -> Node:
    """Values one after the other along an axis.

    The values of a longer row that begins as a shorter one did are joined to what that made: the features of
    a dense block are then one growing value. At most four are joined at a time.
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if first.op == "permute" and all(part.op == "permute" and part.attrs == first.attrs for part in parts):
        axes = first.attrs["axes"]
        inner = joined(trace, [part.inputs[0] for part in parts], axes[axis])
        return permuted(trace, inner, axes)
    key = (axis, *map(id, parts))
    known = trace.joined.get(key)
    if known is not None:
        return known
    for count in range(len(parts) - 1, 1, -1):
        begun = trace.joined.get((axis, *map(id, parts[:count])))
        if begun is not None:
            made = joined(trace, [begun, *parts[count:]], axis)
            break
    else:
        if len(parts) > 4:
            made = joined(trace, [joined(trace, parts[:-3], axis), *parts[-3:]], axis)
        else:
            shape = list(first.shape)
            shape[axis] = sum(part.shape[axis] for part in parts)
            made = trace.emit("concat", parts, tuple(shape), {"axis": axis})
    trace.joined[key] = made
    trace.alive.extend(parts)
    return made


def value_of(tensor: Tensor, batch: int) -> Tensor:
    """A tensor with its batch axis first."""
    return tensor.movedim(batch, 0) if batch else tensor


def expanded(trace: Trace, node: Node, shape: Sequence[int]) -> Node:
    """A value with its axes of one element repeated."""
    shape = tuple(shape)
    if shape == node.shape:
        return node
    return trace.emit("expand", [node], shape, {"shape": list(shape)})


def of_each_image(trace: Trace, tensor: Tensor, place: Place) -> Tensor:
    """A constant that was repeated for every image, for one: its images, where `place` has them, are an
    axis of one element, and what they were merged with is an axis of its own."""
    trace.check_constant(tensor)
    with torch._C.DisableTorchFunction():
        apart = trace.plain_of(tensor, place)
        first = apart.narrow(place.axis, 0, 1)
        if apart.shape[place.axis] not in (1, trace.batch) or not torch.equal(first.expand_as(apart), apart):
            raise trace.fail("has a constant that differs from image to image", "give every image the same")
    trace.add_constant(first)
    return first
