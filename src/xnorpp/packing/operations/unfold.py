"""Windows of an image as values (`unfold`), and sums of windows (`fold`): convolutions with a single 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.transposed import transposed
from xnorpp.packing.moves.views import joined, reshaped, sliced
from xnorpp.packing.operations.arguments import Handler, check_image, pair, shape_of
from xnorpp.packing.operations.moves import axis_of
from xnorpp.packing.trace import Trace


def _taps(channels: int, kernel: list[int]) -> Array:
    """For each channel one filter for each place of the window."""
    taps = kernel[0] * kernel[1]
    ones = np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel)
    return np.tile(ones, (channels, 1, 1, 1))


def _places(shape: tuple[int, ...], kernel: list[int], *geometry: list[int]) -> list[int]:
    """Rows and columns of windows of an image; `geometry` is stride, padding and dilation."""
    rows = zip(shape[1:], kernel, *geometry)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]


def unfold(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1,
) -> Node:  # fmt: skip
    source, kernel = check_image(trace, trace.node(input)), pair(kernel_size)
    channels = source.shape[0]
    geometry = (pair(stride), pair(padding), pair(dilation))
    attrs = {**dict(zip(("stride", "padding", "dilation"), geometry)), "groups": channels}
    shape = (channels * kernel[0] * kernel[1], *_places(source.shape, kernel, *geometry))
    made = trace.emit("conv2d", [source], shape, attrs, {"weight": _taps(channels, kernel)})
    return reshaped(trace, made, shape_of(result))


def fold(
    trace: Trace, result: Tensor, input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1,
    padding: Any = 0, stride: Any = 1,
) -> Node:  # fmt: skip
    source, kernel, shape = trace.node(input), pair(kernel_size), shape_of(result)
    geometry = (pair(stride), pair(padding), pair(dilation))
    image = reshaped(trace, source, (source.shape[0], *_places(shape, kernel, *geometry)))
    return transposed(trace, image, _taps(shape[0], kernel), *geometry, shape[0], shape, binary=False)


def windows(trace: Trace, result: Tensor, input: Any, dimension: int, size: int, step: int) -> Node:
    """`x.unfold(dim, size, step)`: windows along an axis, as a new last axis."""
    node, axis = trace.node(input, anywhere=True), axis_of(trace, input, dimension)
    trace.follow(result, input)
    count = (node.shape[axis] - size) // step + 1
    parts = []
    for first in range(size):
        part = sliced(trace, node, axis, first, first + (count - 1) * step + 1, step)
        parts.append(reshaped(trace, part, (*part.shape, 1)))
    return joined(trace, parts, len(node.shape))


def either(trace: Trace, result: Tensor, input: Any, *args: Any, **kwargs: Any) -> Node:
    """`F.unfold(x, kernel)` or `x.unfold(dim, size, step)`, which have one name."""
    if len(args) == 3 or "dimension" in kwargs:
        return windows(trace, result, input, *args, **kwargs)
    return unfold(trace, result, input, *args, **kwargs)


FUNCTIONS: dict[str, Handler] = {"unfold": either, "im2col": unfold, "fold": fold, "col2im": fold}
