"""What the handlers share: pairs of numbers, shapes, images, per-channel affines, sums and constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Array, Node, Trained
from xnorpp.packing.obstacles import Refusal
from xnorpp.packing.trace import Trace

# What an infinite number of a mask becomes: beyond every score, and still finite in sums.
FAR = np.float32(1e30)

# (trace, result, *the torch function's own arguments) -> the node of the result
Handler = Callable[..., Node]


def pair(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value, value]
    values = [int(v) for v in value]
    return values * 2 if len(values) == 1 else values


def shape_of(result: Tensor) -> tuple[int, ...]:
    return tuple(result.shape[1:])


def finite(c: Array) -> Array:
    """A constant whose infinite numbers, as those of a mask of scores, are large ones."""
    return np.where(np.isinf(c), np.copysign(np.asarray(FAR, c.dtype), c), c)


def mixes_images(trace: Trace) -> Refusal:
    """The error of a function along the batch axis."""
    return trace.fail("along the batch axis is not supported", "leave each image to itself")


def as_number(trace: Trace, value: Any) -> float | None:
    """A number, or a constant of one element, as a number; None for anything else."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not trace.is_value(value):
        return float(trace.constant(value).reshape(()))
    return None


def check_image(trace: Trace, node: Node) -> Node:
    if len(node.shape) != 3:
        raise trace.fail(
            f"is applied to shape (n, {', '.join(map(str, node.shape))}); (n, c, h, w) is needed",
            "give it images, (n, c, h, w)",
        )
    return node


def affine(
    trace: Trace, source: Node, mult: Array | None, add: Array | None,
    spatial: dict[str, Array] | None = None, trained: Trained | None = None, size: Array | None = None,
) -> Node:  # fmt: skip
    """`(x*spatial)*mult + add` with per-channel vectors; `trained` defaults to just that in float32."""
    channels = source.shape[0]
    tensors = dict(spatial or {})
    if mult is not None:
        tensors["mult"] = np.broadcast_to(mult.astype(np.float64).reshape(-1), (channels,))
    if add is not None:
        tensors["add"] = np.broadcast_to(add.astype(np.float64).reshape(-1), (channels,))
    if trained is None:
        m = None if mult is None else mult.reshape(-1).astype(np.float32)
        a = None if add is None else add.reshape(-1).astype(np.float32)

        def trained(v: Array) -> Array:
            v = v if m is None else v * m
            return v if a is None else v + a

    node = trace.emit("affine", [source], source.shape, None, tensors, trained)
    node.size = np.abs(tensors["add"]) if size is None and add is not None else size
    return node


def of_one(trace: Trace, rank: int, c: Array) -> Array:
    """A constant that broadcasts against a value of this many axes, for one image: each of its size or 1. It
    may have been repeated for every image of the batch."""
    rank += 1
    wide: Array = c.reshape((1,) * max(rank - c.ndim, 0) + c.shape)
    repeated = wide.ndim == rank and wide.shape[0] == trace.batch and bool(np.all(wide == wide[:1]))
    if wide.ndim > rank or (wide.shape[0] != 1 and not repeated):
        raise trace.fail(
            f"has a constant of shape {c.shape}, which does not fit one image",
            "give the constant the shape of one image, or one that broadcasts to it",
        )
    return np.asarray(wide[0])


def once(c: Array) -> Array:
    """A constant without what was repeated along an axis, as `bias.expand_as(x)`."""
    for axis in range(c.ndim):
        first = c.take([0], axis) if c.shape[axis] > 1 else c
        c = first if bool((c == first).all()) else c
    return c


def spatial_parts(node: Node, c: Array) -> dict[str, Array]:
    """A factor for each pixel of an image, or for each pixel and channel, as an affine stores it."""
    channels, h, w = c.shape
    if channels > 1:
        return {"full": np.broadcast_to(c, node.shape)}
    if h > 1 and w > 1:
        return {"map": c[0]}
    row, col = (c[0, :, 0], np.ones(node.shape[2])) if h > 1 else (np.ones(node.shape[1]), c[0, 0])
    return {"row": row, "col": col}
