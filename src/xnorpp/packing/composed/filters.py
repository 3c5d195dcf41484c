"""Convolutions whose filters are computed from the input: products of the windows of an image with them.

A batch of such is written as one image with the channels of all images as groups, (1, n*c, h, w).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def convolution(
    count: int, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """`conv1d` or `conv2d` of the channels of `count` images, in `groups` of all images."""
    rank = weight.dim() - 2
    steps, spread = _each(stride, rank, 1), _each(dilation, rank, 1)
    kernel = [1] * (2 - rank) + list(weight.shape[2:])
    image = input.reshape(count, -1, *[1] * (2 - rank), *input.shape[2:])
    if padding == "same":
        reach = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
        image = F.pad(image, [n for r in reach[::-1] for n in (r // 2, r - r // 2)])
    edges = [0, 0] if isinstance(padding, str) else _each(padding, rank, 0)
    reach = [d * (k - 1) + 1 for d, k in zip(spread, kernel, strict=True)]
    size = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(image.shape[2:], edges, reach, steps, strict=True)]
    each, taps = groups // count, weight.shape[1] * math.prod(kernel)
    if kernel != [1, 1] or steps != [1, 1] or edges != [0, 0]:
        geometry = (tuple(own) for own in (kernel, spread, edges, steps))
        image = F.unfold(image, *geometry)
    rows = weight.reshape(count, each, weight.shape[0] // groups, taps)
    made = rows @ image.reshape(count, each, taps, math.prod(size))
    return _together(made.reshape(count, -1, *size), bias, rank)


def transposed(
    count: int, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`conv_transpose1d` or `conv_transpose2d`: a convolution of the image with zeros between its pixels."""
    rank = weight.dim() - 2
    steps, edges, spread = _each(stride, rank, 1), _each(padding, rank, 0), _each(dilation, rank, 1)
    more, kernel = _each(output_padding, rank, 0), [1] * (2 - rank) + list(weight.shape[2:])
    channels, (h, w) = input.shape[1] // count, ([1] * (2 - rank) + list(input.shape[2:]))
    image = F.pad(input.reshape(count, channels, h, 1, w, 1), (0, steps[1] - 1, 0, 0, 0, steps[0] - 1))
    image = image.reshape(count, channels, h * steps[0], w * steps[1])
    rows = [(d * (k - 1) - p, o - s + 1) for d, k, p, o, s in zip(spread, kernel, edges, more, steps)]
    image = F.pad(image, [n for first, rest in rows[::-1] for n in (first, first + rest)])
    each, outputs = groups // count, weight.shape[1]
    turned = weight.reshape(count, each, channels // each, outputs, *kernel).transpose(2, 3).flip(-1, -2)
    turned = turned.reshape(count * each * outputs, channels // each, *kernel)
    made = convolution(count, image.reshape(1, -1, *image.shape[2:]), turned, None, 1, 0, spread, groups)
    return _together(made.reshape(count, -1, *made.shape[2:]), bias, rank)


def _together(made: Tensor, bias: Any, rank: int) -> Tensor:
    """The channels of all images as those of one."""
    if bias is not None:
        made = made + bias.reshape(len(made), -1, 1, 1)
    return made.reshape(1, -1, *made.shape[-rank:])


def _each(value: Any, rank: int, other: int) -> list[int]:
    """Rows and columns; a sequence is an image of one row."""
    values = [value] * rank if isinstance(value, int) else list(value)
    return [other] * (2 - rank) + values * (rank // len(values))


CONVOLUTIONS: dict[str, Callable[..., Tensor]] = {
    "conv1d": convolution,
    "conv2d": convolution,
    "conv_transpose1d": transposed,
    "conv_transpose2d": transposed,
}
