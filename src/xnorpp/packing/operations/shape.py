"""Reshaping, slicing, padding and joining."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.operations.arguments import Handler, picture, shape_of
from xnorpp.packing.operations.window import max_pool2d
from xnorpp.packing.trace import Trace


def reshape(trace: Trace, result: Tensor, input: Any, *args: Any, **kwargs: Any) -> Node:
    """Any reshaping: nothing where the shape stays, `flatten` where an image becomes a vector."""
    source, shape = trace.node(input), shape_of(result)
    if result.shape[0] == trace.batch and shape == source.shape:
        return source
    if result.shape[0] != trace.batch or len(shape) != 1:
        raise trace.fail(
            f"from {source.shape} to {shape} is not supported; flattening an image is",
            "leave values as (n, c, h, w) or (n, c); a channel shuffle becomes a 1x1 or grouped convolution",
        )
    return trace.emit("flatten", [source], shape)


def getitem(trace: Trace, result: Tensor, input: Any, index: Any) -> Node:
    """`x[:, :, ::s, ::t]`, a pooling over single pixels; and `x[:, :, 0, 0]` of an image of one pixel."""
    source = trace.node(input)
    parts = index if isinstance(index, tuple) else (index,)
    everything = slice(None)
    if all(part == everything or part is Ellipsis for part in parts):
        return source
    if len(source.shape) == 3 and len(parts) == 4 and parts[0] == parts[1] == everything:
        if parts[2] == parts[3] == 0 and source.shape[1:] == (1, 1):
            return trace.emit("flatten", [source], shape_of(result))
        rows, cols = parts[2], parts[3]
        if all(isinstance(p, slice) and p.start in (None, 0) and p.stop is None for p in (rows, cols)):
            steps = [rows.step or 1, cols.step or 1]
            return max_pool2d(trace, result, input, [1, 1], steps)
    raise trace.fail(
        "is not supported; x[:, :, ::s, ::s] is",
        "use pooling or a strided convolution to choose pixels, and a layer for each part of the channels",
    )


def pad(
    trace: Trace, result: Tensor, input: Any, pad: Any, mode: str = "constant", value: Any = None
) -> Node:
    source = picture(trace, trace.node(input))
    edges = [int(p) for p in pad] + [0] * (8 - len(pad))
    if mode != "constant" or min(edges) < 0 or edges[6:] != [0, 0]:
        raise trace.fail(
            f"with mode={mode!r} and pad={tuple(pad)} is not supported; constant padding is",
            "use nn.ZeroPad2d or padding_mode='zeros'",
        )
    attrs = {
        "padding": [edges[4], edges[5], edges[2], edges[3], edges[0], edges[1]],
        "value": float(np.float32(value or 0.0)),
    }
    return trace.emit("pad2d", [source], shape_of(result), attrs)


def cat(trace: Trace, result: Tensor, tensors: Any, dim: int = 0, **kwargs: Any) -> Node:
    """Joined channels as a sum: each part padded with channels of zeros to the whole width."""
    parts = [picture(trace, trace.node(t)) for t in tensors]
    if dim not in (1, -3) or kwargs:
        raise trace.fail(f"along dim={dim} is not supported; along 1 it is", "join channels, along dim 1")
    total, begin, joined = result.shape[1], 0, None
    for part in parts:
        edges = [begin, total - begin - part.shape[0], 0, 0, 0, 0]
        wide = trace.emit("pad2d", [part], shape_of(result), {"padding": edges, "value": 0.0})
        joined = wide if joined is None else trace.emit("add", [joined, wide], shape_of(result))
        begin += part.shape[0]
    if joined is None:
        raise trace.fail("of nothing is not supported")
    return joined


FUNCTIONS: dict[str, Handler] = {
    **dict.fromkeys(("reshape", "view", "flatten", "squeeze", "unsqueeze", "view_as", "reshape_as"), reshape),
    "getitem": getitem,
    "pad": pad,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
}
