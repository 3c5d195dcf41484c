"""`x[...]`, `x[...] = y` and `gather`: slices, whole numbers, lists of places and masks.

An index is the same for every image, except the mask of `x[mask] = y`, which may be computed from the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.calls import tensors_in
from xnorpp.packing.composed import composed_value
from xnorpp.packing.composed.places import gathered, own_places, own_rows, rows_of
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.masked import COMPUTED, REASON
from xnorpp.packing.moves.places import COUNTED, Place
from xnorpp.packing.moves.views import (
    as_image,
    batches_of,
    channels_back,
    channels_first,
    expanded,
    joined,
    reshaped,
    sliced,
)
from xnorpp.packing.trace import Trace

_FEW = 24  # slices that a list of places may become
_MOST = 1 << 24  # zeros and ones of a product that chooses
_BATCH = "leave the batch axis first, and each image to itself"
_FIXED = "use an index that is the same for every image"


def _whole(index: Any) -> bool:
    return isinstance(index, slice) and index in (slice(None), slice(0, None), slice(None, None, 1))


def getitem(trace: Trace, result: Tensor, input: Tensor, index: Any) -> Node:
    """Slices, whole numbers, `...` and None; `x[:, :, ::s, ::t]` is a pooling over single pixels."""
    across = _across(trace, result, input, index)
    if across is not None:
        return across
    computed = _computed(trace, input, index)
    if computed is not None:
        function, places = computed
        return composed_value(trace, function, (input, places), result)
    parts = _index(trace, input, index)
    if trace.batch_axis(input) == 0 and _counts_images(trace, index[0] if type(index) is tuple else index):
        each = _for_each_image(parts, input.shape[0])
        if each is not None:
            return composed_value(trace, _beside_the_batch, (input, each), result)
    arrays = [i for i, part in enumerate(parts) if isinstance(part, np.ndarray)]
    if len(arrays) > 1 or any(parts[i].ndim > 1 for i in arrays):
        if arrays != list(range(arrays[0], arrays[-1] + 1)):
            raise trace.fail("with lists of numbers that are apart is not supported", "use one at a time")
        return composed_value(trace, _gathered, (input, parts), result)
    merged, batch, node = trace.merged(input), trace.batch_axis(input), trace.node(input, anywhere=True)
    steps = [part.step or 1 if isinstance(part, slice) else 0 for part in parts]
    strided = all(isinstance(p, slice) and p.start in (None, 0) and p.stop is None for p in parts)
    if strided and batch == 0 and not merged and len(node.shape) == 3 and steps[:2] == [1, 1]:
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
            trace.follow(result, input, place)
            if not _whole(part):
                begin, end, step = part.indices(input.shape[dim]) if isinstance(part, slice) else (0, 0, 0)
                node = batches_of(trace, result, input, node, axis, begin, end if step == 1 else begin)
            place += 1
            if merged:
                shape += node.shape[axis : axis + 1] if trace.merged(result) > 1 else []
                axis += 1
        elif isinstance(part, np.ndarray):
            node = chosen(trace, node, axis, part)
            shape.append(node.shape[axis])
            axis, place = axis + 1, place + 1
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


def _across(trace: Trace, result: Tensor, input: Tensor, index: Any) -> Node | None:
    """Rows of a batch of rows, (n*k, ...), by places that count through it: those of each image."""
    parts = list(index) if type(index) is tuple else [index]
    while len(parts) > 1 and (_whole(parts[-1]) or parts[-1] is Ellipsis):
        del parts[-1]
    places = parts[0]
    step = trace.step(places) if isinstance(places, Tensor) else trace.step(input)
    if not step:
        return None
    rows = trace.place(input)
    if len(parts) > 1 or (rows.axis, rows.count, rows.outer) != (0, step, 1) or not trace.is_value(input):
        raise trace.fail("reads numbers that count through the batch", COUNTED)
    trace.follow(result, places)
    with torch._C.DisableTorchFunction():
        value = trace.without_step(places).reshape(places.shape)
    trace.follow(value, places)
    trace.bind(value, trace.node(places, anywhere=True))
    own, apart = trace.apart(value), trace.apart(input)
    if places.dim() == 1 and trace.merged(places) == 1:  # one for each image
        return composed_value(trace, own_rows, (apart, value), result)
    return composed_value(trace, own_places, (apart, own), trace.apart(result))


def _computed(trace: Trace, input: Tensor, index: Any) -> tuple[Callable[..., Tensor], Tensor] | None:
    """Whole numbers computed from the input, as an index of a constant's rows, or of rows of each image."""
    parts = list(index) if type(index) is tuple else [index]
    while len(parts) > 1 and (_whole(parts[-1]) or parts[-1] is Ellipsis):
        del parts[-1]
    images, places = parts if len(parts) == 2 else (None, parts[0])
    if len(parts) > 2 or not trace.is_value(places) or places.dtype not in (torch.int32, torch.int64):
        return None
    if images is None:
        return None if trace.is_value(input) else (rows_of, places)
    several = trace.merged(places) and places.dim() > 1
    if not trace.is_value(input) or trace.batch_axis(input) or trace.merged(input) or several:
        return None
    if not _counts_images(trace, images) or trace.batch_axis(places):
        return None
    with torch._C.DisableTorchFunction():
        counts = torch.as_tensor(list(images) if isinstance(images, range) else images).cpu()
        own = torch.arange(len(input)).reshape(-1, *[1] * (places.dim() - 1))
        fits = (
            counts.dim() <= places.dim() and counts.shape[:1] == own.shape[:1] and bool((counts == own).all())
        )
    return (own_rows if places.dim() == 1 else own_places, places) if fits else None


def _index(trace: Trace, input: Tensor, index: Any) -> list[Any]:
    """An index with a part for each axis: slices, whole numbers, None, and arrays of whole numbers; a mask is
    an array of the places where it is true."""
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else [index]:
        if isinstance(part, bool) or any(trace.is_value(t) for t in tensors_in(part)):
            raise trace.fail(REASON, COMPUTED)
        for tensor in tensors_in(part):
            trace.check_constant(tensor)
            if tensor.dtype == torch.uint8:  # which torch takes for truth values
                raise trace.fail("with an index of bytes is not supported", "use whole numbers: index.long()")
        if isinstance(part, Tensor):
            part = part.detach().cpu().numpy()
        elif isinstance(part, list | tuple | range):
            part = np.array(part)
        if not isinstance(part, np.ndarray):
            parts.append(part)
        elif part.dtype == np.bool_:
            parts.extend(np.nonzero(part))
        else:
            parts.append(part if part.ndim else int(part))
    missing = input.dim() - sum(part is not None and part is not Ellipsis for part in parts)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * missing
    return parts


def _counts_images(trace: Trace, index: Any) -> bool:
    """Whether an index may be a number for each image, whose count it follows: no list or buffer does."""
    return isinstance(index, range) or (isinstance(index, Tensor) and trace.constants.is_computed(index))


def _for_each_image(parts: list[Any], count: int) -> list[Any] | None:
    """`x[torch.arange(n), places]`: an index for each image, if it is the same for all; otherwise None."""
    if not isinstance(parts[0], np.ndarray) or any(part is None for part in parts):
        return None
    at = [i for i, part in enumerate(parts) if not isinstance(part, slice)]
    images, *others = np.broadcast_arrays(*(parts[i] for i in at))
    alone = images.reshape(count, -1) if len(images) == count else np.zeros((1, 1))
    if (alone != np.arange(count)[:, None]).any() or any((places != places[:1]).any() for places in others):
        return None
    own = {i: places[0] if places.ndim > 1 else int(places[0]) for i, places in zip(at[1:], others)}
    return [slice(None), *(own.get(i, part) for i, part in enumerate(parts[1:], 1))]


def _beside_the_batch(input: Tensor, parts: list[Any]) -> Any:
    """The axes of lists that are apart from the first one, that of the images, follow it nevertheless."""
    made = input[tuple(parts)]
    first = next((i for i, part in enumerate(parts) if isinstance(part, np.ndarray)), 1)
    before = sum(isinstance(part, slice) for part in parts[1:first])
    axes = parts[first].ndim if before else 0
    return made.movedim(tuple(range(1 + before, 1 + before + axes)), tuple(range(1, 1 + axes)))


def _gathered(input: Tensor, parts: list[Any]) -> Any:
    """Several lists for axes that follow each other, or one of more axes, as one list for one axis."""
    at = [i for i, part in enumerate(parts) if isinstance(part, np.ndarray)]
    first, last = at[0], at[-1] + 1
    dim = sum(part is not None for part in parts[:first])
    sizes = input.shape[dim : dim + last - first]
    lists = np.broadcast_arrays(*(part % size for part, size in zip(parts[first:last], sizes)))
    places = np.ravel_multi_index(lists, tuple(sizes))
    flat = input.flatten(dim, dim + last - first - 1) if last - first > 1 else input
    index = *parts[:first], places.reshape(-1).tolist(), *parts[last:]
    chosen = flat[index]
    if places.ndim == 1:
        return chosen
    place = sum(not isinstance(part, int) for part in parts[:first])
    return chosen.reshape(*chosen.shape[:place], *places.shape, *chosen.shape[place + 1 :])


def chosen(trace: Trace, node: Node, axis: int, index: Any) -> Node:
    """Numbers of an axis by a list: slices that are joined, or a product with 0 and 1 where they are many."""
    index = np.asarray(index, np.int64) % node.shape[axis]
    if not len(index):
        raise trace.fail("chooses nothing, which is not supported", "leave empty parts out")
    runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    if len(runs) <= _FEW:
        parts = [sliced(trace, node, axis, int(run[0]), int(run[-1]) + 1) for run in runs]
        return joined(trace, parts, axis)
    if len(index) * node.shape[axis] > _MOST:
        raise trace.fail(
            f"chooses {len(index)} of {node.shape[axis]} numbers by a list, which are too many",
            "use slices, flip or roll",
        )
    first = channels_first(trace, node, axis)
    ones = np.zeros((len(index), node.shape[axis], 1, 1), np.float32)
    ones[np.arange(len(index)), index] = 1
    image = as_image(trace, first)
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    made = trace.emit("conv2d", [image], (len(index), *image.shape[1:]), attrs, {"weight": ones})
    return channels_back(trace, reshaped(trace, made, (len(index), *first.shape[1:])), axis)


def index_select(trace: Trace, result: Tensor, input: Tensor, dim: int, index: Any) -> Node:
    parts: list[Any] = [slice(None)] * input.dim()
    parts[dim] = index
    return getitem(trace, result, input, tuple(parts))


def gather(
    trace: Trace, result: Tensor, input: Tensor, dim: int, index: Any, *, sparse_grad: bool = False
) -> Node:
    """The numbers at places of an axis, which are the same for every image."""
    if trace.is_value(index) and trace.is_value(input) and dim % input.dim():
        return composed_value(trace, gathered, (input, dim, index), result)
    if trace.is_value(index) and dim % input.dim() and not trace.is_value(input):
        trace.check_constant(input)
        row = input.detach()[:1]
        if (input.detach() != row).any():
            raise trace.fail("has a table that differs from image to image", "give every image the same")
        return composed_value(trace, _from_row, (row.to(result.device), dim, index), result)
    if trace.is_value(index):
        raise trace.fail("with an index computed from the input is not supported", _FIXED)
    if not trace.is_value(input) or trace.batch_axis(input) or trace.merged(input):
        raise trace.fail("reads a tensor whose batch is not its first axis alone", _BATCH)
    axis = dim % input.dim() - 1
    if axis < 0:
        raise trace.fail("chooses among images, which is not supported", _BATCH)
    trace.check_constant(index)
    whole = index.detach().cpu().numpy()
    if (whole != whole[:1]).any():
        raise trace.fail("has an index that differs from image to image", "give every image the same")
    places, node = whole[0], trace.node(input)
    for other in range(places.ndim):
        if other != axis:
            node = sliced(trace, node, other, 0, places.shape[other])
    rows = np.moveaxis(places, axis, -1).reshape(-1, places.shape[axis])
    if (rows == rows[:1]).all():
        return chosen(trace, node, axis, rows[0])
    grid = np.indices(places.shape)
    grid[axis] = places
    flat = np.ravel_multi_index(tuple(grid), node.shape).reshape(-1)
    every = chosen(trace, reshaped(trace, node, [int(np.prod(node.shape))]), 0, flat)
    return reshaped(trace, every, places.shape)


def _from_row(row: Tensor, dim: int, index: Tensor) -> Tensor:
    found = gathered(row.float(), dim, index)
    return found if row.is_floating_point() else found.long()


def take_along_dim(trace: Trace, result: Tensor, input: Tensor, indices: Any, dim: Any = None) -> Node:
    """`gather` with an index that broadcasts to the input's other axes."""
    sizes = list(input.shape)
    if dim is None or not isinstance(indices, Tensor) or indices.dim() != input.dim():
        raise trace.fail("without `dim` is not supported", "name the axis in `dim`")
    if trace.is_value(indices):
        raise trace.fail("with an index computed from the input is not supported", _FIXED)
    sizes[dim] = result.shape[dim]
    trace.check_constant(indices)
    whole = indices.expand(sizes)
    trace.add_constant(whole)
    return gather(trace, result, input, dim, whole)


def _slice_axis(trace: Trace, node: Node, axis: int, part: slice) -> Node:
    size = node.shape[axis]
    begin, stop, step = part.indices(size)
    end = None if part.stop is None else part.stop if -size < part.stop < 0 else stop
    return sliced(trace, node, axis, begin, end, step)


def setitem(trace: Trace, result: Tensor, input: Tensor, index: Any, value: Any) -> Node:
    """`x[..] = value`: what is put in, joined with what stays around it, or chosen by a mask."""
    if trace.is_value(index):
        if value in trace.masked:
            return composed_value(trace, _put_back, (input, index, trace.masked.whole_of(value)), result)
        return composed_value(trace, _masked, (input, index, value), result)
    if trace.batch_axis(input):
        raise trace.fail("reads a tensor whose batch is not its first axis", _BATCH)
    parts = _index(trace, input, index)
    if not _whole(parts[0]):
        raise trace.fail("chooses among images, which is not supported", _BATCH)
    if input.dim() == 1:
        raise trace.fail("puts one number for each image, which is not supported", "give it an axis: (n, 1)")
    if any(part is None for part in parts) or sum(isinstance(part, np.ndarray) for part in parts) > 1:
        raise trace.fail("is supported with slices, whole numbers and one list", "use slices")
    trace.restored(input, value)
    place = trace.place(input)
    sizes = tuple(input.shape[1:])
    if place.count:  # all of the axis that goes with the batch
        sizes, parts = (place.count, *sizes), [parts[0], slice(None), *parts[1:]]
    places = [np.atleast_1d(np.arange(n)[part]) for part, n in zip(parts[1:], sizes)]
    old = (
        trace.node(input, anywhere=True)
        if trace.is_value(input)
        else _filled_with(trace, input, sizes, places)
    )
    if not all(map(len, places)):
        return old
    piece = _piece(
        trace, value, place, [len(p) for p in places], [not isinstance(part, int) for part in parts[1:]]
    )
    spans = [span for p, n in zip(places, sizes) for span in _spans(p, n)]
    old = reshaped(trace, old, [size for size, _ in spans])
    piece = reshaped(trace, piece, [len(p) for _, p in spans])
    for axis in reversed(range(len(spans))):
        around = old
        for before in range(axis):
            around = _taken(trace, around, before, spans[before][1])
        piece = _put(trace, around, piece, axis, spans[axis][1])
    return reshaped(trace, piece, sizes)


def _put_back(input: Tensor, mask: Tensor, whole: Tensor) -> Tensor:
    return torch.where(mask.reshape(*mask.shape, *[1] * (input.dim() - mask.dim())), whole, input)


def _masked(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    if mask.dtype != torch.bool or (isinstance(value, Tensor) and value.numel() != 1):
        raise ValueError("an index computed from the input; a mask and one number are supported")
    return torch.where(mask.reshape(*mask.shape, *[1] * (input.dim() - mask.dim())), value, input)


def _spans(places: Array, size: int) -> list[tuple[int, Array]]:
    """Axes, each with its size and the places in it, for the places in one axis: every second number of an
    even axis is the same number of every pair."""
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    every = step > 1 and size % step == 0 and len(places) == size // step
    if every and np.array_equal(places, places[0] + step * np.arange(len(places))):
        return [(size // step, np.arange(size // step)), (step, places[:1])]
    return [(size, places)]


def _run(places: Array) -> bool:
    return bool(np.all(np.diff(places) == 1))


def _taken(trace: Trace, node: Node, axis: int, places: Array) -> Node:
    if _run(places):
        return sliced(trace, node, axis, int(places[0]), int(places[-1]) + 1)
    return chosen(trace, node, axis, places)


def _put(trace: Trace, around: Node, piece: Node, axis: int, places: Array) -> Node:
    """A piece at its places in an axis, and the numbers around it."""
    size = around.shape[axis]
    if not _run(places):
        order = np.arange(size)
        order[places] = size + np.arange(len(places))
        return chosen(trace, joined(trace, [around, piece], axis), axis, order)
    begin, end = int(places[0]), int(places[-1]) + 1
    row = [sliced(trace, around, axis, 0, begin)] if begin else []
    row.append(piece)
    if end < size:
        row.append(sliced(trace, around, axis, end, None))
    return joined(trace, row, axis)


def _piece(trace: Trace, value: Any, place: Place, shape: Sequence[int], stays: Sequence[bool]) -> Node:
    """What is put in, with all axes of what it is put into; those of whole numbers are missing in it."""
    given = [n for n, stay in zip(shape, stays) if stay]
    if not trace.is_value(value):
        c = trace.constant(value)
        if c.ndim > len(given):
            if c.shape[0] != 1 and (c != c[:1]).any():
                raise trace.fail(
                    "puts in a constant that differs from image to image", "give every image the same"
                )
            c = c[0]
        whole = np.ascontiguousarray(np.broadcast_to(c, given).reshape(shape).astype(np.float32))
        return trace.emit("constant", [trace.input], tuple(shape), None, {"value": whole})
    own = trace.place(value) if trace.merged(value) != 1 else Place()
    if own != place or value.dim() + bool(place.count) != len(given) + 1:
        raise trace.fail(
            f"puts shape {tuple(value.shape)} where {(trace.batch, *given)} is, which is not supported",
            "give what is put in as many axes, the batch first",
        )
    node = trace.node(value, anywhere=True)
    return reshaped(trace, expanded(trace, node, given) if given else node, shape)


def _filled_with(trace: Trace, tensor: Tensor, shape: tuple[int, ...], places: Sequence[Array]) -> Node:
    """A constant, in which what is at these places does not count."""
    constant = trace.constant(tensor)
    constant[np.ix_(np.arange(len(constant)), *places)] = 0
    if (constant != constant[:1]).any():
        raise trace.fail(
            "puts a value into a constant that differs from image to image", "give every image the same"
        )
    return trace.emit("constant", [trace.input], shape, None, {"value": constant[0].astype(np.float32)})


FUNCTIONS: dict[str, Callable[..., Node]] = {
    "getitem": getitem,
    "setitem": setitem,
    "index_select": index_select,
    "gather": gather,
    "take_along_dim": take_along_dim,
}
