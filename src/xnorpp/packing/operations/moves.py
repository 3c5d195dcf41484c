"""Permuting, reshaping, slicing, splitting, joining and repeating."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import joined, permuted, reshaped, sliced
from xnorpp.packing.operations.arguments import Handler
from xnorpp.packing.trace import Trace

_BATCH = "leave the batch axis first, and each image to itself"


def _dims(args: Sequence[Any]) -> list[int]:
    return [int(d) for d in (args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args)]


def _axis(trace: Trace, tensor: Tensor, dim: int) -> int:
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
    if before == 0 and result.dim() and result.shape[0] % trace.batch == 0 and result.shape[0] > trace.batch:
        count = result.shape[0] // trace.batch  # images and what follows them as one axis
        trace.set_merged(result, count)
        return reshaped(trace, source, (count, *result.shape[1:]))
    # The batch axis of the result is the one of its size with as many elements before it.
    for dim, size in enumerate(result.shape):
        if size == trace.batch and int(np.prod(result.shape[:dim], dtype=np.int64)) == inside:
            trace.set_batch_axis(result, dim)
            shape = [n for i, n in enumerate(result.shape) if i != dim]
            return reshaped(trace, source, shape or [1])
    raise trace.fail(
        f"from {tuple(input.shape)} to {tuple(result.shape)} mixes images, which is not supported", _BATCH
    )


def _pieces(trace: Trace, input: Tensor, results: Sequence[Tensor], dim: int) -> list[Node]:
    source, axis = trace.node(input, anywhere=True), _axis(trace, input, dim)
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
    source, axis = trace.node(input, anywhere=True), _axis(trace, input, dim)
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
    source, axis = trace.node(input, anywhere=True), _axis(trace, input, dim)
    begin = int(start) % source.shape[axis]
    return sliced(trace, source, axis, begin, begin + length)


def _whole(index: Any) -> bool:
    return isinstance(index, slice) and index in (slice(None), slice(0, None), slice(None, None, 1))


def getitem(trace: Trace, result: Tensor, input: Tensor, index: Any) -> Node:
    """Slices, whole numbers, `...` and None; `x[:, :, ::s, ::t]` is a pooling over single pixels."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if trace.merged(input):
        raise trace.fail("reads a tensor whose batch is merged with another axis", _BATCH)
    if any(isinstance(part, Tensor | list | np.ndarray | bool) for part in parts):
        raise trace.fail("with an index of numbers or truth values is not supported", "use slices")
    missing = input.dim() - sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * missing
    else:
        parts += [slice(None)] * missing
    batch, node = trace.batch_axis(input), trace.node(input, anywhere=True)
    steps = [part.step or 1 if isinstance(part, slice) else 0 for part in parts]
    strided = all(isinstance(p, slice) and p.start in (None, 0) and p.stop is None for p in parts)
    if strided and batch == 0 and len(node.shape) == 3 and steps[:2] == [1, 1]:
        if steps == [1] * 4:
            return node
        attrs = {"kernel": [1, 1], "stride": steps[2:], "padding": [0, 0], "ceil_mode": False}
        return trace.emit("max_pool2d", [node], tuple(result.shape[1:]), attrs)
    shape: list[int] = []
    dim, axis, place = 0, 0, 0
    for part in parts:
        if part is None:
            shape.append(1)
            place += 1
            continue
        if dim == batch:
            if not _whole(part):
                raise trace.fail("chooses among images, which is not supported", _BATCH)
            trace.set_batch_axis(result, place)
            place += 1
        elif isinstance(part, slice):
            node = _slice_axis(trace, node, axis, part)
            shape.append(node.shape[axis])
            axis, place = axis + 1, place + 1
        else:
            at = int(part) % node.shape[axis]
            node = sliced(trace, node, axis, at, at + 1)
            axis += 1
        dim += 1
    return reshaped(trace, node, shape or [1])


def _slice_axis(trace: Trace, node: Node, axis: int, part: slice) -> Node:
    size = node.shape[axis]
    begin, stop, step = part.indices(size)
    if stop <= begin:
        raise trace.fail("chooses nothing")
    end = None if part.stop is None else part.stop if -size < part.stop < 0 else stop
    return sliced(trace, node, axis, begin, end, step)


def _part(trace: Trace, tensor: Tensor, dim: int) -> Node:
    """A value, or a constant that is the same for every image."""
    if trace.is_value(tensor):
        return trace.node(tensor)
    constant = trace.constant(tensor)
    if constant.shape[0] != trace.batch or (constant != constant[:1]).any():
        raise trace.fail("joins a constant that differs from image to image", "give every image the same")
    made = trace.emit("constant", [trace.input], constant.shape[1:], None, {"value": constant[0]})
    trace.keep(made, None, lambda t: tensor)
    return made


def cat(trace: Trace, result: Tensor, tensors: Any, dim: int = 0, **kwargs: Any) -> Node:
    dim = kwargs.pop("axis", dim) % result.dim()
    if dim == 0 or kwargs:
        raise trace.fail("is not supported along the batch axis", _BATCH)
    parts = [_part(trace, t, dim) for t in tensors if t.numel()]
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
    if dim == 0:
        raise trace.fail("is not supported along the batch axis", _BATCH)
    axis = dim - 1
    parts = [_part(trace, t, dim) for t in tensors]
    parts = [reshaped(trace, p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return joined(trace, parts, axis)


def roll(trace: Trace, result: Tensor, input: Tensor, shifts: Any, dims: Any = None) -> Node:
    if dims is None:
        raise trace.fail("without `dims` is not supported", "name the axes in `dims`")
    node = trace.node(input)
    pairs = zip(shifts, dims) if isinstance(shifts, list | tuple) else [(shifts, dims)]
    for shift, dim in pairs:
        axis = _axis(trace, input, dim[0] if isinstance(dim, list | tuple) else dim)
        shift = shift % node.shape[axis]
        if shift:
            cut = node.shape[axis] - shift
            parts = [sliced(trace, node, axis, cut, None), sliced(trace, node, axis, 0, cut)]
            node = joined(trace, parts, axis)
    return node


def flip(trace: Trace, result: Tensor, input: Tensor, *dims: Any) -> Node:
    node = trace.node(input)
    for dim in _dims(dims):
        node = trace.emit("flip", [node], node.shape, {"axis": _axis(trace, input, dim)})
    return node


def expanded(trace: Trace, node: Node, shape: Sequence[int]) -> Node:
    """A value with its axes of one element repeated."""
    shape = tuple(shape)
    if shape == node.shape:
        return node
    return trace.emit("expand", [node], shape, {"shape": list(shape)})


def expand(trace: Trace, result: Tensor, input: Tensor, *sizes: Any, **kwargs: Any) -> Node:
    """Axes of one element repeated, and new ones before the others."""
    if trace.merged(input):
        raise trace.fail("reads a tensor whose batch is merged with another axis", _BATCH)
    node, batch = trace.node(input, anywhere=True), trace.batch_axis(input)
    added = result.dim() - input.dim()
    trace.set_batch_axis(result, batch + added)
    shape = tuple(n for i, n in enumerate(result.shape) if i != batch + added)
    return expanded(trace, reshaped(trace, node, (1,) * added + node.shape), shape)


def repeat(trace: Trace, result: Tensor, input: Tensor, *sizes: Any) -> Node:
    counts = _dims(sizes)
    if len(counts) != input.dim() or counts[0] != 1:
        raise trace.fail("that adds axes or repeats images is not supported", "use expand")
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
    node, axis = trace.node(input), _axis(trace, input, dim)
    before, after = node.shape[: axis + 1], node.shape[axis + 1 :]
    wide = expanded(trace, reshaped(trace, node, (*before, 1, *after)), (*before, repeats, *after))
    return reshaped(trace, wide, result.shape[1:])


FUNCTIONS: dict[str, Handler] = {
    **dict.fromkeys(
        ("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"), reshape
    ),
    "permute": permute,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), transpose),
    "t": lambda trace, result, input: transpose(trace, result, input, 0, 1),
    "adjoint": lambda trace, result, input: transpose(trace, result, input, -2, -1),
    **dict.fromkeys(("movedim", "moveaxis"), movedim),
    **dict.fromkeys(("split", "chunk", "tensor_split", "split_with_sizes"), split),
    "unbind": unbind,
    "select": select,
    "narrow": narrow,
    "getitem": getitem,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    "stack": stack,
    "roll": roll,
    "flip": flip,
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expand),
    **dict.fromkeys(("repeat", "tile"), repeat),
    "repeat_interleave": repeat_interleave,
}  # fmt: skip
