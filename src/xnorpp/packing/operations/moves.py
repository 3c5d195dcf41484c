"""Permuting, reshaping, slicing, splitting, joining and repeating."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.places import Place
from xnorpp.packing.moves.views import batches_of, expanded, joined, of_each_image, permuted, reshaped, sliced
from xnorpp.packing.operations.arguments import Handler
from xnorpp.packing.trace import Trace

_BATCH = "leave the batch axis first, and each image to itself"


def _dims(args: Sequence[Any]) -> list[int]:
    return [int(d) for d in (args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args)]


def axis_of(trace: Trace, tensor: Tensor, dim: int) -> int:
    """The axis of a value that a dimension of its tensor is."""
    dim, batch = dim % tensor.dim(), trace.batch_axis(tensor)
    if dim == batch:
        raise trace.fail("is not supported along the batch axis", _BATCH)
    return dim - (dim > batch and not trace.merged(tensor))


def permute(trace: Trace, result: Tensor, input: Tensor, *dims: Any, **kwargs: Any) -> Node:
    order = [d % input.dim() for d in _dims(dims or (kwargs["dims"],))]
    batch = trace.batch_axis(input)
    trace.follow(result, input, order.index(batch))
    axes = [d - (d > batch) for d in order if d != batch]
    if trace.merged(input):  # the axis that goes with the batch
        axes = order
    return permuted(trace, trace.node(input, anywhere=True), axes)


def transpose(trace: Trace, result: Tensor, input: Tensor, dim0: int, dim1: int) -> Node:
    order = list(range(input.dim()))
    first, second = dim0 % input.dim(), dim1 % input.dim()
    order[first], order[second] = second, first
    return permute(trace, result, input, order)


def movedim(trace: Trace, result: Tensor, input: Tensor, source: Any, destination: Any) -> Node:
    sources = [source] if isinstance(source, int) else list(source)
    targets = [destination] if isinstance(destination, int) else list(destination)
    sources, targets = ([d % input.dim() for d in dims] for dims in (sources, targets))
    order = [d for d in range(input.dim()) if d not in sources]
    for target, moved in sorted(zip(targets, sources)):
        order.insert(target, moved)
    return permute(trace, result, input, order)


def reshape(trace: Trace, result: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Node:
    """Any reshaping that leaves the batch axis alone; axes of one element may come and go anywhere."""
    source, place = trace.node(input, anywhere=True), trace.place(input)
    inside = math.prod(input.shape[: place.axis]) * place.outer
    # The images are within the axis of the result that has, with what is before it, as many elements before
    # them; they may be several times in it, and each of them with what follows them.
    for dim, size in enumerate(result.shape):
        outer, rest = divmod(inside, math.prod(result.shape[:dim]))
        if rest or not outer or size % (outer * trace.batch):
            continue
        count = size // trace.batch
        trace.set_place(result, Place(dim, count if count > 1 else 0, outer))
        between = [count] if count > 1 else []
        shape = [*result.shape[:dim], *between, *result.shape[dim + 1 :]]
        return reshaped(trace, source, shape or [1])
    raise trace.fail(
        f"from {tuple(input.shape)} to {tuple(result.shape)} mixes images, which is not supported", _BATCH
    )


def _pieces(trace: Trace, input: Tensor, results: Sequence[Tensor], dim: int) -> list[Node]:
    source, dim = trace.node(input, anywhere=True), dim % input.dim()
    nodes, begin = [], 0
    if len(results) == 1:  # all of it, as of a batch that is no larger than a part
        trace.follow(results[0], input)
        return [source]
    if dim == trace.batch_axis(input):
        for part in results:
            end = begin + part.shape[dim]
            trace.follow(part, input)
            node = batches_of(trace, part, input, source, dim, begin, end)
            shape = [n for i, n in enumerate(node.shape) if i != dim or trace.merged(part)]
            nodes.append(reshaped(trace, node, shape))
            begin = end
        return nodes
    axis = axis_of(trace, input, dim)
    for part in results:
        size = part.shape[dim]
        nodes.append(sliced(trace, source, axis, begin, begin + size))
        trace.follow(part, input)
        begin += size
    return nodes


def split(trace: Trace, result: Any, input: Tensor, *args: Any, dim: int | None = None, **kwargs: Any) -> Any:
    """`split`, `chunk` and `tensor_split`, whose results show the sizes."""
    if dim is None:
        dim = args[1] if len(args) > 1 else 0
    return _pieces(trace, input, result, dim)


def _selected(trace: Trace, result: Tensor, input: Tensor, dim: int, index: int) -> Node:
    source, axis = trace.node(input, anywhere=True), axis_of(trace, input, dim)
    index = index % source.shape[axis]
    batch = trace.batch_axis(input)
    trace.follow(result, input, batch - (dim % input.dim() < batch))
    one = sliced(trace, source, axis, index, index + 1)
    shape = [n for i, n in enumerate(one.shape) if i != axis]
    return reshaped(trace, one, shape or [1])


def unbind(trace: Trace, result: Any, input: Tensor, dim: int = 0) -> Any:
    return [_selected(trace, part, input, dim, index) for index, part in enumerate(result)]


def select(trace: Trace, result: Tensor, input: Tensor, dim: int, index: int) -> Node:
    return _selected(trace, result, input, dim, int(index))


def narrow(trace: Trace, result: Tensor, input: Tensor, dim: int, start: Any, length: int) -> Node:
    trace.follow(result, input)
    source, axis = trace.node(input, anywhere=True), axis_of(trace, input, dim)
    begin = int(start) % source.shape[axis]
    return sliced(trace, source, axis, begin, begin + length)


def _part(trace: Trace, tensor: Tensor, place: Place) -> Node:
    """A value, or a constant that is the same for every image."""
    if trace.is_value(tensor):
        return trace.node(tensor, anywhere=True)
    value = trace.constant(of_each_image(trace, tensor, place)).squeeze(place.axis)
    made = trace.emit("constant", [trace.input], value.shape, None, {"value": value})
    trace.keep(made, None, lambda t: trace.plain_of(tensor, place).movedim(place.axis, 0))
    return made


def _alike(trace: Trace, tensors: Sequence[Tensor]) -> Place:
    """Where the images of all tensors are."""
    values = [t for t in tensors if trace.is_value(t)]
    found = {trace.place(t) for t in values}
    if len(found) > 1:
        raise trace.fail("joins values whose batch axes differ", _BATCH)
    return found.pop()


def _batches(trace: Trace, result: Tensor, tensors: Sequence[Tensor]) -> Node:
    """Batches one after the other: the images of each are one part of a value's new axis."""
    if len(tensors) == 1:
        trace.follow(result, tensors[0])
        return trace.node(tensors[0], anywhere=True)
    places = [trace.place(t) for t in tensors]
    inner = {max(place.count // place.outer, 1) for place in places}
    if len(inner) > 1 or not all(trace.is_value(t) for t in tensors):
        remedy = "put each image's parts beside each other: torch.stack([a, b], 1).flatten(0, 1)"
        raise trace.fail("joins values of different kinds along the batch axis", remedy)
    axis, parts = places[0].axis, []
    for t, place in zip(tensors, places, strict=True):
        node = trace.node(t, anywhere=True)
        lead, rest = node.shape[:axis], node.shape[axis + (place.count > 0) :]
        parts.append(reshaped(trace, node, (*lead, max(place.count, 1), *rest)))
    outer = sum(place.outer for place in places)
    trace.set_place(result, Place(axis, outer * inner.pop(), outer))
    return joined(trace, parts, axis)


def cat(trace: Trace, result: Tensor, tensors: Any, dim: int = 0, **kwargs: Any) -> Node:
    dim %= result.dim()
    tensors = [t for t in tensors if t.numel()]
    if kwargs:
        raise trace.fail(f"with {', '.join(kwargs)} is not supported", "leave it out")
    if {dim} == {trace.batch_axis(t) for t in tensors if trace.is_value(t)}:
        return _batches(trace, result, tensors)
    place = _alike(trace, tensors)
    merged, batch = place.count, place.axis
    trace.set_place(result, place)
    parts = [_part(trace, t, place) for t in tensors]
    if merged or batch:
        return joined(trace, parts, dim - (dim > batch and not merged))
    moved = next((part for part in parts if part.op == "permute"), None)
    if moved is not None:  # constants are moved too, so that what they are joined with need not be
        axes = moved.attrs["axes"]
        inverse = [axes.index(i) for i in range(len(axes))]
        parts = [_moved_constant(trace, p, inverse, axes) if p.op == "constant" else p for p in parts]
    return joined(trace, parts, dim - 1)


def _moved_constant(trace: Trace, node: Node, inverse: list[int], axes: list[int]) -> Node:
    value = node.tensors["value"].transpose(inverse)
    inner = trace.emit("constant", node.inputs, value.shape, None, {"value": value})
    made = trace.emit("permute", [inner], node.shape, {"axes": axes})
    trace.keep(made, node, lambda t: t)
    return made


def stack(trace: Trace, result: Tensor, tensors: Any, dim: int = 0) -> Node:
    dim, place = dim % result.dim(), _alike(trace, tensors)
    before = dim <= place.axis
    axis = dim if before or place.count > 1 else dim - 1
    count = place.count if place.count > 1 else 0
    trace.set_place(result, replace(place, axis=place.axis + before, count=count))
    parts = [_part(trace, t, place) for t in tensors]
    if place.count == 1:  # single numbers, which already have an axis
        return joined(trace, parts, 0)
    parts = [reshaped(trace, p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return joined(trace, parts, axis)


def roll(trace: Trace, result: Tensor, input: Tensor, shifts: Any, dims: Any = None) -> Node:
    if dims is None:
        raise trace.fail("without `dims` is not supported", "name the axes in `dims`")
    node = _in_place(trace, result, input)
    pairs = zip(shifts, dims) if isinstance(shifts, list | tuple) else [(shifts, dims)]
    for shift, dim in pairs:
        axis = axis_of(trace, input, dim[0] if isinstance(dim, list | tuple) else dim)
        shift = shift % node.shape[axis]
        if shift:
            cut = node.shape[axis] - shift
            parts = [sliced(trace, node, axis, cut, None), sliced(trace, node, axis, 0, cut)]
            node = joined(trace, parts, axis)
    return node


def _in_place(trace: Trace, result: Tensor, input: Tensor) -> Node:
    """The value of `input`, whose batch is where that of the result will be."""
    trace.follow(result, input)
    return trace.node(input, anywhere=True)


def flip(trace: Trace, result: Tensor, input: Tensor, *dims: Any, **kwargs: Any) -> Node:
    node = _in_place(trace, result, input)
    for dim in _dims(dims or (kwargs["dims"],)):
        node = trace.emit("flip", [node], node.shape, {"axis": axis_of(trace, input, dim)})
    return node


def expand(trace: Trace, result: Tensor, input: Tensor, *sizes: Any, **kwargs: Any) -> Node:
    """Axes of one element repeated, and new ones before the others."""
    node, merged = trace.node(input, anywhere=True), trace.merged(input)
    added = result.dim() - input.dim()
    batch = trace.batch_axis(input) + added
    trace.follow(result, input, batch)
    shape = [*result.shape[:batch], *[merged] * (merged > 1), *result.shape[batch + 1 :]] or [1]
    inner = (1,) * added if merged == 1 else (1,) * added + node.shape
    return expanded(trace, reshaped(trace, node, inner or (1,)), shape)


def repeat(trace: Trace, result: Tensor, input: Tensor, *sizes: Any) -> Node:
    counts = _dims(sizes)
    if trace.operation.endswith("tile"):  # which repeats the last axes where there are fewer counts
        counts = [1] * (input.dim() - len(counts)) + counts
    if len(counts) != input.dim():
        raise trace.fail("that adds axes is not supported", "use unsqueeze before it")
    node, place = trace.node(input, anywhere=True), trace.place(input)
    times, dim = counts[place.axis], place.axis
    if times > 1 and not place.count:  # the batch as a whole: an axis before that of the images
        node = reshaped(trace, node, (*node.shape[:dim], 1, *node.shape[dim:]))
    elif not place.count:
        del counts[dim]
    for axis, count in enumerate(counts):
        if count > 1 and node.shape[axis] == 1:
            node = expanded(trace, node, (*node.shape[:axis], count, *node.shape[axis + 1 :]))
        elif count > 1:
            node = joined(trace, [node] * count, axis)
    if times > 1:
        place = Place(dim, node.shape[dim], place.outer * times)
    trace.set_place(result, place)
    return node


def repeat_interleave(
    trace: Trace, result: Tensor, input: Tensor, repeats: Any, dim: Any = None, **kwargs: Any
) -> Node:
    if not isinstance(repeats, int) or dim is None:
        raise trace.fail("is supported with one whole number and `dim` only")
    node = trace.node(input)
    if dim % input.dim() == 0:  # each image as many times, one after the other
        trace.set_merged(result, repeats if repeats > 1 else 0)
        wide = expanded(trace, reshaped(trace, node, (1, *node.shape)), (repeats, *node.shape))
        return wide if repeats > 1 else node
    axis = axis_of(trace, input, dim)
    before, after = node.shape[: axis + 1], node.shape[axis + 1 :]
    wide = expanded(trace, reshaped(trace, node, (*before, 1, *after)), (*before, repeats, *after))
    return reshaped(trace, wide, result.shape[1:])


FUNCTIONS: dict[str, Handler] = {
    **dict.fromkeys(("reshape", "view", "view_as", "reshape_as", "flatten", "ravel", "unflatten"), reshape),
    **dict.fromkeys(("squeeze", "unsqueeze", "atleast_1d", "atleast_2d", "atleast_3d"), reshape),
    "permute": permute,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), transpose),
    "t": lambda trace, y, x: transpose(trace, y, x, 0, 1),
    **dict.fromkeys(("adjoint", "mT", "mH"), lambda trace, y, x: transpose(trace, y, x, -2, -1)),
    **dict.fromkeys(("T", "H"), lambda trace, y, x: permute(trace, y, x, *range(x.dim())[::-1])),
    **dict.fromkeys(("movedim", "moveaxis"), movedim),
    **dict.fromkeys(("split", "chunk", "tensor_split", "split_with_sizes"), split),
    "unbind": unbind,
    "select": select,
    "narrow": narrow,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    "stack": stack,
    "roll": roll,
    "flip": flip,
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expand),
    **dict.fromkeys(("repeat", "tile"), repeat),
    "repeat_interleave": repeat_interleave,
}  # fmt: skip
