"""Transposed convolutions of volumes and videos: an ordinary one whose channels are places of the result.

With stride s, plane y of the uncut result is plane y // s of phase y % s, as with images
(`moves/transposed.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    """`F.conv_transpose3d`."""
    steps, edges, more = (_triple(value) for value in (stride, padding, output_padding))
    weight = _spread(weight, _triple(dilation))
    kernel, channels, each = weight.shape[2:], weight.shape[0] // groups, weight.shape[1]
    taps = [-(k // -s) for k, s in zip(kernel, steps, strict=True)]
    missing = [t * s - k for t, s, k in zip(taps, steps, kernel, strict=True)]
    filters = F.pad(weight, [n for m in missing[::-1] for n in (0, m)])
    apart = [n for pair in zip(taps, steps, strict=True) for n in pair]
    filters = filters.reshape(groups, channels, each, *apart).permute(0, 2, 4, 6, 8, 1, 3, 5, 7)
    filters = filters.flip(-1, -2, -3).reshape(-1, channels, *taps)
    made = F.conv3d(input, filters, padding=[t - 1 for t in taps], groups=groups)
    size = made.shape[2:]
    made = made.reshape(len(input), groups * each, *steps, *size).permute(0, 1, 5, 2, 6, 3, 7, 4)
    made = made.reshape(len(input), groups * each, *(n * s for n, s in zip(size, steps, strict=True)))
    cut = []
    for axis in (2, 1, 0):
        length = (input.shape[2 + axis] - 1) * steps[axis] - 2 * edges[axis] + kernel[axis] + more[axis]
        cut += [-edges[axis], length + edges[axis] - made.shape[2 + axis]]
    made = F.pad(made, cut)
    return made if bias is None else made + bias.reshape(-1, 1, 1, 1)


def _spread(weight: Tensor, dilation: list[int]) -> Tensor:
    """A dilated kernel written out with its zeros."""
    if dilation == [1, 1, 1]:
        return weight
    size = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    wide = weight.new_zeros(*weight.shape[:2], *size)
    deep, high, broad = dilation
    wide[:, :, ::deep, ::high, ::broad] = weight
    return wide


def _triple(value: Any) -> list[int]:
    return [int(value)] * 3 if isinstance(value, int) else [int(v) for v in value]


FUNCTIONS: dict[str, Callable[..., Any]] = {"conv_transpose3d": conv_transpose3d}
