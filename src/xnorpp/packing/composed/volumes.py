"""Volumes, (n, c, depth, h, w): transposed convolutions, and enlarging by the functions of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def enlarged(input: Tensor, size: Any, scale: Any, more: dict[str, Any]) -> Tensor:
    """The rows and columns of each plane first, then the planes: each mode of volumes is separable."""
    if more["mode"] == "area":
        return F.adaptive_avg_pool3d(input, tuple(size))
    channels, depth = input.shape[1:3]
    for axis, factor in enumerate(scale or ()):
        count = input.shape[2 + axis]
        if more["mode"] == "nearest" and factor != 1 and math.floor(count * factor) == count:
            places = F.interpolate(torch.arange(float(count)).view(1, 1, -1), scale_factor=factor)
            input = input.index_select(2 + axis, places.reshape(-1).long())
    kind = "bilinear" if more["mode"] == "trilinear" else more["mode"]
    more = {**more, "mode": kind}
    planes = input.flatten(1, 2)
    if scale is None:
        planes = F.interpolate(planes, tuple(size[1:]), **more)
    else:
        planes = F.interpolate(planes, None, tuple(scale[1:]), **more)
    h, w = planes.shape[2:]
    rows = planes.reshape(planes.shape[0], channels, depth, h * w)
    if scale is None:
        made = F.interpolate(rows, (size[0], h * w), **more)
    else:
        made = F.interpolate(rows, None, (scale[0], 1.0), **more)
    return made.reshape(made.shape[0], channels, made.shape[2], h, w)


def _triple(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)] * 3


def _conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """An ordinary convolution with an output for each place between two inputs, then put in order."""
    steps, edges, more, wide = (_triple(v) for v in (stride, padding, output_padding, dilation))
    reach = [d * (k - 1) + 1 for d, k in zip(wide, weight.shape[2:])]
    taps = [-(r // -s) for r, s in zip(reach, steps)]
    inputs, outputs = weight.shape[0], weight.shape[1] * groups
    whole = weight.new_zeros(*weight.shape[:2], *(t * s for t, s in zip(taps, steps)))
    whole[:, :, : reach[0] : wide[0], : reach[1] : wide[1], : reach[2] : wide[2]] = weight
    d, h, w = taps
    apart = whole.reshape(groups, inputs // groups, outputs // groups, d, steps[0], h, steps[1], w, steps[2])
    filters = apart.flip(3, 5, 7).permute(0, 2, 4, 6, 8, 1, 3, 5, 7)
    filters = filters.reshape(outputs * math.prod(steps), inputs // groups, d, h, w)
    made = F.conv3d(input, filters, padding=[t - 1 for t in taps], groups=groups)
    grid = made.shape[2:]
    made = made.reshape(made.shape[0], outputs, *steps, *grid).permute(0, 1, 5, 2, 6, 3, 7, 4)
    made = made.reshape(made.shape[0], outputs, *(g * s for g, s in zip(grid, steps)))
    for axis in range(3):
        size = (input.shape[2 + axis] - 1) * steps[axis] - 2 * edges[axis] + reach[axis] + more[axis]
        lacking = edges[axis] + size - made.shape[2 + axis]
        if lacking > 0:
            made = F.pad(made, [0, 0] * (2 - axis) + [0, lacking])
        made = made.narrow(2 + axis, edges[axis], size)
    return made if bias is None else made + bias.reshape(-1, 1, 1, 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {"conv_transpose3d": _conv_transpose3d}
