"""Calls whose tensors do not have the batch first, or have it merged with another axis, as ordinary ones.

Windows, heads and patches are often merged with the batch, (n*k, ...). A function of the last axes is then
one with one more axis, (n, k, ...). A function of images has k times the channels, (n, k*c, h, w), in as many
groups with the same weights. Where the batch is not the first axis, it is moved to the front for the call.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

from torch import Tensor

from xnorpp.packing.calls import tensors_in
from xnorpp.packing.composed import composed
from xnorpp.packing.composed.filters import CONVOLUTIONS
from xnorpp.packing.graph import Node
from xnorpp.packing.moves.places import COUNTED, Place
from xnorpp.packing.moves.views import channels_back, channels_first, of_each_image, reshaped
from xnorpp.packing.operations import (
    activation,
    arithmetic,
    choice,
    product,
    reduction,
    volume,
    window,
)
from xnorpp.packing.operations.arguments import Handler, mixes_images
from xnorpp.packing.sequences import attention
from xnorpp.packing.trace import Trace

# Functions that look at the last axes alone: where the batch is merged with another axis, that is one more.
_TRAILING = frozenset(
    name
    for family in (activation, arithmetic, product, attention, reduction, choice)
    for name in (*family.FUNCTIONS, "pad")
    if name
    not in (
        "batch_norm",
        "group_norm",
        "instance_norm",
        "local_response_norm",
        "multi_head_attention_forward",
    )
)
# Which argument names an axis.
_DIM_AT = {
    **dict.fromkeys(("mean", "sum", "amax", "amin", "logsumexp", "var", "std"), 1),
    **dict.fromkeys(("softmax", "log_softmax", "glu"), 1),
    **dict.fromkeys(("norm", "vector_norm", "linalg_vector_norm", "normalize"), 2),
}
# Functions of the last axis or the last two, which must not be the batch: how many there are.
_LAST_AXES = {
    "linear": 1,
    **dict.fromkeys(("matmul", "bmm", "mm", "rmatmul", "scaled_dot_product_attention"), 2),
}

# Functions whose constants may be repeated for every image, with the batch as the values have it: how many
# axes such a constant has at least.
_BROADCASTING = {
    **dict.fromkeys((*arithmetic.FUNCTIONS, *choice.FUNCTIONS), 1),
    **dict.fromkeys(("matmul", "bmm", "rmatmul", "scaled_dot_product_attention"), 3),
}

# Functions of images, and which of their arguments there is one of for each channel, by place and name.
_CHANNELWISE: dict[str, tuple[str, ...]] = {
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "group_norm": ("input", "num_groups", "weight", "bias"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "unfold": ("input",),
    **dict.fromkeys((*window.FUNCTIONS, *volume.FUNCTIONS, "interpolate"), ("input",)),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"),
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d"),
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    ),
}
_GROUPED = (
    "make each image a group: F.conv2d(x.reshape(1, -1, h, w), filters.reshape(-1, c, kh, kw), groups=len(x))"
)
_COUNTED = ("groups", "num_groups")
_MOST = 1 << 22  # numbers of repeated weights


def called(trace: Trace, name: str, handler: Handler, args: Any, kwargs: Any, result: Tensor) -> Node:
    """What a handler makes of a call, wherever the batch is."""
    filters = kwargs.get("weight", args[1] if len(args) > 1 else None)
    if name in CONVOLUTIONS and trace.is_value(filters):
        return _own_filters(trace, name, args, kwargs, result)
    values = [t for t in tensors_in((args, kwargs)) if trace.is_value(t)]
    counts, places = {trace.merged(t) for t in values}, {trace.batch_axis(t) for t in values}
    if 0 not in counts and len({trace.place(t).outer for t in values}) > 1:
        raise trace.fail(
            "combines values whose images are in another order: each several times, and all several times",
            "repeat each image by itself: x.repeat_interleave(times, 0), or an axis of its own with expand",
        )
    first_alone = len(values) == 1 and bool(args) and values[0] is args[0] and 0 not in places
    if first_alone and (
        (name in ("matmul", "bmm") and 0 not in counts)
        or (name == "matmul" and places == {args[0].dim() - 2} and _rank(args[1:]) > 2)
    ):
        return _rows_with_the_batch(trace, handler, args, result)
    if len(counts) == len(places) == 1 and places != {0} and name in _TRAILING:
        return _batch_first(trace, name, handler, args, kwargs, result, values[0])
    if counts == {0} or len(counts) > 1 or places != {0}:
        return handler(trace, result, *args, **kwargs)  # which refuses what it cannot do
    (count,), place = counts, trace.place(values[0])
    if name in _CHANNELWISE and values[0].dim() > 1:
        return _as_channels(trace, name, handler, args, kwargs, result, count)
    if name not in _TRAILING:
        return handler(trace, result, *args, **kwargs)
    trace.follow(result, values[0])
    rank = values[0].dim()
    _check_last_axes(trace, name, args, 0, rank)

    def changed(value: Any, key: Any) -> Any:
        if isinstance(value, Tensor):
            whole = name in _BROADCASTING and _BROADCASTING[name] <= value.dim() == result.dim()
            if whole and not trace.is_value(value) and count > 1 and len(value) == trace.batch * count:
                return of_each_image(trace, value, place)
            return trace.apart(value)
        if key != "dim" or not isinstance(value, int | list | tuple):
            return value
        dims = [d % rank - rank for d in ([value] if isinstance(value, int) else value)]
        if -rank in dims:
            raise mixes_images(trace)
        return dims[0] if isinstance(value, int) else dims

    own = trace.apart(result)
    made = handler(trace, own, *_each(name, changed, args), **_named(changed, kwargs))
    trace.set_step(result, trace.step(own))
    return made


def _own_filters(trace: Trace, name: str, args: Any, kwargs: Any, result: Tensor) -> Node:
    """A convolution with filters of each image's own: the images must be groups of one image."""
    given = signature(CONVOLUTIONS[name]).bind(0, *args, **kwargs).arguments
    input, weight = given["input"], given["weight"]
    own = trace.place(weight)
    place = trace.place(input) if trace.is_value(input) else Place(1, own.count, own.outer)
    count = trace.batch * own.outer
    apart = (place.axis, own.axis) == (1, 0) and len(input) == 1 and place.outer == own.outer
    if not apart or given.get("groups", 1) % count:
        raise trace.fail("has filters computed from the input, which all images would share", _GROUPED)
    made = composed(trace, partial(CONVOLUTIONS[name], count), args, kwargs, result)
    assert isinstance(made, Node)
    return made


def _check_last_axes(trace: Trace, name: str, args: Any, batch: int, rank: int) -> None:
    """Refuse a function that mixes the numbers of its last axes where one of them is the batch."""
    last = len(args[1]) if name in ("layer_norm", "rms_norm") else _LAST_AXES.get(name, 0)
    if last == 2 and not all(trace.is_value(t) for t in args[:2]):  # a constant matrix
        last = 1 if trace.is_value(args[0]) == (name != "rmatmul") else 2
    if batch >= rank - last:
        raise mixes_images(trace)


def _each(name: str, changed: Any, args: Any) -> list[Any]:
    return [changed(value, "dim" if i == _DIM_AT.get(name) else None) for i, value in enumerate(args)]


def _named(changed: Any, kwargs: Any) -> dict[str, Any]:
    return {key: changed(value, key) for key, value in kwargs.items()}


def _batch_first(
    trace: Trace, name: str, handler: Handler, args: Any, kwargs: Any, result: Tensor, first: Tensor
) -> Node:
    batch, rank = trace.batch_axis(first), first.dim()
    _check_last_axes(trace, name, args, batch, rank)

    def place(dim: int) -> int:
        dim %= rank
        return 0 if dim == batch else dim + (dim < batch)

    def changed(value: Any, key: Any) -> Any:
        if isinstance(value, Tensor):
            return _moved(trace, value, batch, rank)
        if key == "dim" and isinstance(value, int):
            return place(value)
        if key == "dim" and isinstance(value, list | tuple):
            return [place(d) for d in value]
        return value

    at = _DIM_AT.get(name, len(args))
    dims = kwargs.get("dim", args[at] if len(args) > at else None)
    gone = 0
    if name in reduction.FUNCTIONS and result.dim() < rank:
        listed = dims if isinstance(dims, list | tuple) else [dims]
        gone = sum(d is not None and d % rank < batch for d in listed)
    trace.follow(result, first, batch - gone)
    front, count = result.movedim(batch - gone, 0), trace.merged(first)
    trace.alive.append(front)
    args, kwargs = _each(name, changed, args), _named(changed, kwargs)
    if not count:
        made = handler(trace, front, *args, **kwargs)
        if trace.step(front):
            raise trace.fail("gives numbers that count through the batch", COUNTED)
        return made
    return channels_back(trace, called(trace, name, handler, args, kwargs, front), batch - gone)


def _rank(args: Any) -> int:
    """The axes of the first of these arguments, 0 where there is none."""
    return args[0].dim() if args and isinstance(args[0], Tensor) else 0


def _rows_with_the_batch(trace: Trace, handler: Handler, args: Any, result: Tensor) -> Node:
    """(k, n*rows, c) times a constant (k, c, d): (n, k, rows, c) times it. Of (k, n, c), a layer for each of
    k features, an image is one row."""
    value, constant = args
    batch, node = trace.batch_axis(value), trace.node(value, anywhere=True)
    trace.follow(result, value)
    first, made = (trace.apart(t).movedim(batch, 0) for t in (value, result))
    if trace.merged(value):
        trace.bind(first, node)
        return handler(trace, made, first, constant)
    row, own = first.unsqueeze(-2), made.unsqueeze(-2)
    trace.alive.append(own)
    trace.bind(row, reshaped(trace, node, row.shape[1:]))
    return reshaped(trace, handler(trace, own, row, constant), made.shape[1:])


def _moved(trace: Trace, tensor: Tensor, batch: int, rank: int) -> Tensor:
    """A tensor with its batch first: a value, or a constant with as many axes."""
    if tensor.dim() != rank:
        return tensor
    front = tensor.movedim(batch, 0)
    if trace.is_value(tensor):
        trace.follow(front, tensor, 0)
        node = trace.node(tensor, anywhere=True)
        trace.bind(front, channels_first(trace, node, batch) if trace.merged(tensor) else node)
    else:
        trace.add_constant(front)
    return front


def _as_channels(
    trace: Trace, name: str, handler: Handler, args: Any, kwargs: Any, result: Tensor, count: int
) -> Node:
    names = _CHANNELWISE[name]

    def changed(key: str, value: Any) -> Any:
        if key in _COUNTED:
            return value * count
        if isinstance(value, Tensor) and key in names and key != "input":
            if value.numel() * count > _MOST:
                raise trace.fail(
                    "on a batch that is merged with another axis is too large", "leave each image to itself"
                )
            repeated = value.repeat(count, *[1] * (value.dim() - 1))
            trace.add_constant(repeated)
            return repeated
        return value

    given = {key: changed(key, value) for key, value in zip(names, args)}
    given |= {key: changed(key, value) for key, value in kwargs.items()}
    if "groups" in names:
        given.setdefault("groups", count)
    rest = args[len(names) :]
    source = given.pop("input")
    ordered = [given.pop(key) for key in names[1 : len(args)]] if rest else []
    trace.follow(result, source)
    wide = trace.apart(result).flatten(1, 2)
    made = handler(trace, wide, _wide(trace, source, count), *ordered, *rest, **given)
    return reshaped(trace, made, (count, *result.shape[1:]))


def _wide(trace: Trace, tensor: Tensor, count: int) -> Tensor:
    """(n*k, c, ...) as (n, k*c, ...)."""
    node = trace.node(tensor, anywhere=True)
    shape = (count * tensor.shape[1], *tensor.shape[2:])
    wide = trace.apart(tensor).flatten(1, 2)
    trace.bind(wide, reshaped(trace, node, shape))
    return wide
