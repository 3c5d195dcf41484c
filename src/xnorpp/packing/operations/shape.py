"""Padding, enlarging, shuffling and sampling of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.composed import composed_value, sampling
from xnorpp.packing.composed.volumes import enlarged
from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import reshaped, sliced
from xnorpp.packing.operations.arguments import Handler, check_image, shape_of
from xnorpp.packing.operations.window import adaptive_avg_pool2d
from xnorpp.packing.trace import Trace

_LARGEST = np.finfo(np.float32).max


def pad(
    trace: Trace, result: Tensor, input: Any, pad: Any, mode: str = "constant", value: Any = None
) -> Node:
    """Numbers around a value, or fewer of them where `pad` is negative."""
    node = trace.node(input)
    rank = len(node.shape)
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    if len(pairs) > rank:
        if any(pairs[rank]):
            raise trace.fail("of the batch axis is not supported", "leave each image to itself")
        pairs = pairs[:rank]
    edges = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    for axis, (before, after) in enumerate(edges):
        node = sliced(trace, node, axis, max(0, -before), after if after < 0 else None)
    more = [(max(0, before), max(0, after)) for before, after in edges]
    if mode == "constant":
        filled = np.clip(np.float32(value or 0.0), -_LARGEST, _LARGEST)  # before a maximum, -inf as good as
        return surrounded(trace, node, more, float(filled))
    if mode not in ("reflect", "replicate", "circular") or any(any(pair) for pair in more[:-3]):
        raise trace.fail(f"with mode={mode!r} and pad={tuple(pad)} is not supported")
    if rank > 2 and any(more[-3]):  # the planes of a volume, as rows
        before, after = more[-3]
        lead, planes, pixels = math.prod(node.shape[:-3]), node.shape[-3], math.prod(node.shape[-2:])
        attrs = {"padding": [before, after, 0, 0], "mode": mode}
        longer = (lead, planes + before + after, pixels)
        made = trace.emit("edge_pad2d", [reshaped(trace, node, (lead, planes, pixels))], longer, attrs)
        node = reshaped(trace, made, (*node.shape[:-3], longer[1], *node.shape[-2:]))
    if not any(map(any, more[-2:])):
        return node
    shape = (math.prod(node.shape[:-2]), *node.shape[-2:]) if rank > 1 else (1, 1, node.shape[0])
    image = reshaped(trace, node, shape)
    (top, bottom), (left, right) = more[-2:] if rank > 1 else ((0, 0), more[-1])
    wide = (shape[0], shape[1] + top + bottom, shape[2] + left + right)
    attrs = {"padding": [top, bottom, left, right], "mode": mode}
    return reshaped(trace, trace.emit("edge_pad2d", [image], wide, attrs), shape_of(result))


def surrounded(trace: Trace, node: Node, edges: Sequence[tuple[int, ...]], value: float) -> Node:
    """A value with a number around it: how many before and after, for each axis."""
    if not any(any(pair) for pair in edges):
        return node
    if len(node.shape) == 3:
        shape = tuple(n + sum(pair) for n, pair in zip(node.shape, edges))
        attrs = {"padding": [n for pair in edges for n in pair], "value": value}
        return trace.emit("pad2d", [node], shape, attrs)
    for axis, (before, after) in enumerate(edges):  # one axis after the other, as the rows of an image
        if before or after:
            left, right = node.shape[:axis], node.shape[axis + 1 :]
            image = reshaped(trace, node, (math.prod(left), node.shape[axis], math.prod(right)))
            wide = (image.shape[0], image.shape[1] + before + after, image.shape[2])
            attrs = {"padding": [0, 0, before, after, 0, 0], "value": value}
            made = trace.emit("pad2d", [image], wide, attrs)
            node = reshaped(trace, made, (*left, wide[1], *right))
    return node


def interpolate(
    trace: Trace, result: Tensor, input: Any, size: Any = None, scale_factor: Any = None,
    mode: str = "nearest", align_corners: Any = None, recompute_scale_factor: Any = None,
    antialias: bool = False,
) -> Node:  # fmt: skip
    source = trace.node(input)
    if len(source.shape) == 4 and mode in ("nearest", "nearest-exact", "trilinear", "area"):
        factors = None
        if scale_factor is not None and not recompute_scale_factor:
            several = isinstance(scale_factor, list | tuple)
            factors = list(scale_factor) if several else [scale_factor] * 3
        more = {"mode": mode, "align_corners": align_corners}
        return composed_value(trace, enlarged, (input, shape_of(result)[1:], factors, more), result)
    if len(source.shape) not in (2, 3):
        raise trace.fail("is not supported on values of this rank", "give it images, (n, c, h, w)")
    flat = len(source.shape) == 2
    image = reshaped(trace, source, (source.shape[0], 1, source.shape[1])) if flat else source
    wide = (source.shape[0], 1, result.shape[2]) if flat else shape_of(result)
    if mode == "area":
        made = adaptive_avg_pool2d(trace, wide, image)
        return reshaped(trace, made, shape_of(result))
    kind = "bilinear" if mode == "linear" else mode
    if kind not in ("nearest", "nearest-exact", "bilinear", "bicubic") or antialias:
        raise trace.fail(
            f"with mode={mode!r}{' and antialias=True' if antialias else ''} is not supported; nearest, "
            "nearest-exact, bilinear, bicubic and area are",
            "leave `antialias` out" if antialias else "use mode='bilinear'",
        )
    scale = None
    if scale_factor is not None and not recompute_scale_factor:
        several = isinstance(scale_factor, list | tuple)
        scale = [float(s) for s in (scale_factor if several else [scale_factor])]
        scale = [1.0, *scale] if flat else scale * 2 if len(scale) == 1 else scale
        if kind == "bilinear" or (
            kind == "nearest" and not flat
        ):  # torch then copies, whatever the factor is
            scale = [1.0 if a == b else s for s, a, b in zip(scale, image.shape[1:], wide[1:])]
    attrs = {
        "size": list(wide[1:]) if scale is None else None,
        "scale": scale,
        "mode": kind,
        "align_corners": bool(align_corners),
    }
    return reshaped(trace, trace.emit("upsample2d", [image], wide, attrs), shape_of(result))


def pixel_shuffle(trace: Trace, result: Tensor, input: Any, upscale_factor: int) -> Node:
    source = check_image(trace, trace.node(input))
    return trace.emit("pixel_shuffle", [source], shape_of(result), {"factor": int(upscale_factor)})


def pixel_unshuffle(trace: Trace, result: Tensor, input: Any, downscale_factor: int) -> Node:
    source = check_image(trace, trace.node(input))
    return trace.emit("pixel_unshuffle", [source], shape_of(result), {"factor": int(downscale_factor)})


def channel_shuffle(trace: Trace, result: Tensor, input: Any, groups: int) -> Node:
    source = trace.node(input)
    return trace.emit("channel_shuffle", [source], source.shape, {"groups": int(groups)})


def grid_sample(
    trace: Trace, result: Tensor, input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: Any = None,
) -> Node:  # fmt: skip
    """Numbers at places between pixels; an image that is the same for all is sampled once for each."""
    args = (input, grid, mode, padding_mode, align_corners)
    if not trace.is_value(grid):
        return composed_value(trace, sampling.at_constant_places, args, result)
    if not trace.is_value(input):
        trace.check_constant(input)
        if (input != input[:1]).any():
            raise trace.fail("has an image that differs along the batch", "give every image the same")
    return composed_value(trace, sampling.at_computed_places, args, result)


FUNCTIONS: dict[str, Handler] = {
    "pad": pad,
    "grid_sample": grid_sample,
    **dict.fromkeys(("interpolate", "upsample"), interpolate),
    "upsample_nearest": interpolate,
    "upsample_bilinear": lambda trace, result, input, size=None, scale_factor=None: interpolate(
        trace, result, input, size, scale_factor, "bilinear", True
    ),
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), channel_shuffle),
}
