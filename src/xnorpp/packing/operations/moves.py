"""Permuting, reshaping, slicing, splitting, joining and repeating."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import expanded, joined, permuted, reshaped, sliced
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
    trace.set_batch_axis(result, order.index(batch))
    trace.set_merged(result, trace.merged(input))
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
    source, before = trace.node(input, anywhere=True), trace.batch_axis(input)
    inside = int(np.prod(input.shape[:before], dtype=np.int64))
    # The batch axis of the result is the one of its size with as many elements before it; or it is images and
    # what follows them as one axis.
    for dim, size in enumerate(result.shape):
        if size % trace.batch or int(np.prod(result.shape[:dim], dtype=np.int64)) != inside:
            continue
        count = size // trace.batch
        trace.set_batch_axis(result, dim)
        trace.set_merged(result, count if count > 1 else 0)
        between = [count] if count > 1 else []
        shape = [*result.shape[:dim], *between, *result.shape[dim + 1 :]]
        return reshaped(trace, source, shape or [1])
    raise trace.fail(
        f"from {tuple(input.shape)} to {tuple(result.shape)} mixes images, which is not supported", _BATCH
    )


def _pieces(trace: Trace, input: Tensor, results: Sequence[Tensor], dim: int) -> list[Node]:
    source, axis = trace.node(input, anywhere=True), axis_of(trace, input, dim)
    nodes, begin = [], 0
    for part in results:
        size = part.shape[dim % input.dim()]
        nodes.append(sliced(trace, source, axis, begin, begin + size))
        trace.set_batch_axis(part, trace.batch_axis(input))
        trace.set_merged(part, trace.merged(input))
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
    trace.set_batch_axis(result, batch - (dim % input.dim() < batch))
    trace.set_merged(result, trace.merged(input))
    one = sliced(trace, source, axis, index, index + 1)
    shape = [n for i, n in enumerate(one.shape) if i != axis]
    return reshaped(trace, one, shape or [1])


def unbind(trace: Trace, result: Any, input: Tensor, dim: int = 0) -> Any:
    return [_selected(trace, part, input, dim, index) for index, part in enumerate(result)]


def select(trace: Trace, result: Tensor, input: Tensor, dim: int, index: int) -> Node:
    return _selected(trace, result, input, dim, int(index))


def narrow(trace: Trace, result: Tensor, input: Tensor, dim: int, start: Any, length: int) -> Node:
    trace.set_batch_axis(result, trace.batch_axis(input))
    trace.set_merged(result, trace.merged(input))
    source, axis = trace.node(input, anywhere=True), axis_of(trace, input, dim)
    begin = int(start) % source.shape[axis]
    return sliced(trace, source, axis, begin, begin + length)


def _part(trace: Trace, tensor: Tensor, merged: int = 0, batch: int = 0) -> Node:
    """A value, or a constant that is the same for every image, with the batch where the values have it."""
    if trace.is_value(tensor):
        return trace.node(tensor, anywhere=True)
    trace.check_constant(tensor)
    tensor = tensor.detach()
    if merged and tensor.shape[batch] == trace.batch * merged:
        tensor = tensor.reshape(*tensor.shape[:batch], trace.batch, merged, *tensor.shape[batch + 1 :])
    tensor = tensor.movedim(batch, 0)
    trace.add_constant(tensor)
    constant = trace.constant(tensor)
    if constant.shape[0] != trace.batch or (constant != constant[:1]).any():
        raise trace.fail("joins a constant that differs from image to image", "give every image the same")
    made = trace.emit("constant", [trace.input], constant.shape[1:], None, {"value": constant[0]})
    trace.keep(made, None, lambda t: tensor)
    return made


def _alike(trace: Trace, tensors: Sequence[Tensor]) -> tuple[int, int]:
    """What the batch of all tensors is merged with, and which axis it is."""
    values = [t for t in tensors if trace.is_value(t)]
    found = {(trace.merged(t), trace.batch_axis(t)) for t in values}
    if len(found) > 1:
        raise trace.fail("joins values whose batch axes differ", _BATCH)
    return found.pop()


def cat(trace: Trace, result: Tensor, tensors: Any, dim: int = 0, **kwargs: Any) -> Node:
    dim %= result.dim()
    tensors = [t for t in tensors if t.numel()]
    merged, batch = _alike(trace, tensors)
    if dim == batch or kwargs:
        remedy = "put each image's parts beside each other: torch.stack([a, b], 1).flatten(0, 1)"
        raise trace.fail("is not supported along the batch axis", remedy)
    trace.set_batch_axis(result, batch)
    trace.set_merged(result, merged)
    parts = [_part(trace, t, merged, batch) for t in tensors]
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
    dim = dim % result.dim()
    axis = max(dim - 1, 0)
    alike = _alike(trace, tensors)
    if alike not in ((0, 0), (1, 0)):
        raise trace.fail("stacks values whose batch is not their first axis alone", _BATCH)
    trace.set_batch_axis(result, 0 if dim else 1)
    parts = [_part(trace, t, alike[0]) for t in tensors]
    if alike == (1, 0):  # single numbers, which already have an axis
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
    trace.set_batch_axis(result, trace.batch_axis(input))
    trace.set_merged(result, trace.merged(input))
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
    trace.set_batch_axis(result, batch)
    trace.set_merged(result, merged)
    shape = [*result.shape[:batch], *[merged] * (merged > 1), *result.shape[batch + 1 :]] or [1]
    inner = (1,) * added if merged == 1 else (1,) * added + node.shape
    return expanded(trace, reshaped(trace, node, inner or (1,)), shape)


def repeat(trace: Trace, result: Tensor, input: Tensor, *sizes: Any) -> Node:
    counts = _dims(sizes)
    if trace.operation.endswith("tile"):  # which repeats the last axes where there are fewer counts
        counts = [1] * (input.dim() - len(counts)) + counts
    if len(counts) != input.dim():
        raise trace.fail("that adds axes is not supported", "use unsqueeze before it")
    if counts[0] != 1:
        raise trace.fail(
            "repeats the whole batch, so that what follows mixes images, which is not supported",
            "repeat each image by itself: x.repeat_interleave(times, 0), or an axis of its own with expand",
        )
    node = trace.node(input)
    for axis, count in enumerate(counts[1:]):
        if count > 1 and node.shape[axis] == 1:
            node = expanded(trace, node, (*node.shape[:axis], count, *node.shape[axis + 1 :]))
        elif count > 1:
            node = joined(trace, [node] * count, axis)
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
    **dict.fromkeys(("squeeze", "unsqueeze"), reshape),
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
