"""Numbers of images at places between pixels, and maxima put back where they were found.

A number at a place is a sum of all pixels, most of them times 0: one factor for each row times one for each
column. So places that are computed from the input are a product of matrices, and constant ones a matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_MOST = 1 << 24  # factors of a constant matrix
_MOST_COMPUTED = 1 << 22  # of one that is computed for each image
_LEAST = -3e38
_CUBIC = -0.75  # the slope that torch's bicubic curve has at 1


def at_constant_places(
    input: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: Any
) -> Tensor:
    """Every mode: the matrix is what torch makes of images with one pixel each."""
    if (grid != grid[:1]).any():
        raise ValueError("places that differ from image to image")
    sizes, places = input.shape[2:], grid.shape[1:-1]
    pixels = math.prod(sizes)
    if pixels * max(pixels, math.prod(places)) > _MOST:
        raise ValueError(f"{math.prod(places)} places in {pixels} pixels, which are too many")
    ones = torch.eye(pixels, dtype=grid.dtype, device=grid.device).reshape(1, pixels, *sizes)
    matrix = F.grid_sample(ones, grid[:1], mode, padding_mode, align_corners).reshape(pixels, -1)
    return (input.flatten(2) @ matrix).reshape(*input.shape[:2], *places)


def at_computed_places(
    input: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: Any
) -> Tensor:
    if mode == "bicubic" and padding_mode != "zeros":
        raise ValueError(f"mode='bicubic' and padding_mode={padding_mode!r} at computed places")
    sizes, places = input.shape[2:], grid.shape[1:-1]
    if math.prod(sizes) * math.prod(places) > _MOST_COMPUTED:
        raise ValueError(
            f"{math.prod(places)} computed places in {math.prod(sizes)} pixels, which are too many"
        )
    factors = torch.ones(())
    for axis, size in enumerate(sizes):
        place = grid[..., len(sizes) - 1 - axis].flatten(1)
        place = (place + 1.0) * (0.5 * (size - 1)) if align_corners else (place + 1.0) * (0.5 * size) - 0.5
        own = _factors(_inside(place, size, padding_mode, bool(align_corners)), size, mode)
        factors = own if axis == 0 else (factors.unsqueeze(-1) * own.unsqueeze(-2)).flatten(2)
    if input.shape[0] != grid.shape[0] or not input.is_floating_point():
        raise ValueError("images and places of different batches")
    made = input.flatten(2) @ factors.mT
    return made.reshape(*made.shape[:2], *places)


def _inside(place: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """A place that is not beyond the border, unless there are zeros."""
    if padding == "reflection":
        edge, span = (0.0, float(size - 1)) if corners else (0.5, float(size))
        if not span:
            return place * 0.0
        turns = torch.remainder((place + edge).abs(), 2 * span)
        place = (span - edge) - (turns - span).abs()
    return place if padding == "zeros" else place.clamp(0.0, float(size - 1))


def _factors(place: Tensor, size: int, mode: str) -> Tensor:
    """What each row, or column, of an image counts at each place."""
    if mode == "nearest":
        place = torch.round(place)
    away = (place.unsqueeze(-1) - torch.arange(float(size))).abs()
    if mode != "bicubic":
        return F.relu(1.0 - away)
    near = ((_CUBIC + 2.0) * away - (_CUBIC + 3.0)) * (away * away) + 1.0
    far = (((away - 5.0) * away + 8.0) * away - 4.0) * _CUBIC
    return torch.where(away > 1.0, far * (away < 2.0), near)


def _affine_grid(theta: Tensor, size: Sequence[int], align_corners: Any = None) -> Tensor:
    """Every place of the plain grid times the matrix."""
    axes, places = len(size) - 2, list(size[2:])
    same = torch.eye(axes, axes + 1).unsqueeze(0)
    plain = F.affine_grid(same, [1, 1, *places], bool(align_corners)).reshape(-1, axes)
    made = torch.cat([plain, torch.ones(len(plain), 1)], 1) @ theta.mT
    return made.reshape(theta.shape[0], *places, axes)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _max_pool(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The largest numbers, and their places in the image: the first of equal ones."""
    kernel, steps, edges, wide = (_pair(v) for v in (kernel_size, stride or kernel_size, padding, dilation))
    made = F.max_pool2d(input, kernel, steps, edges, wide, ceil_mode)
    size, counts = input.shape[2:], made.shape[2:]
    reach = [s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in zip(steps, counts, wide, kernel)]
    after = [max(0, r - n - p) for r, n, p in zip(reach, size, edges)]
    around = [edges[1], after[1], edges[0], after[0]]
    image = F.pad(input, around, value=_LEAST)
    beyond = float(size[0] * size[1])
    own = F.pad(torch.arange(beyond).reshape(size), around, value=beyond)
    found = []
    for taps in itertools.product(*(range(k) for k in kernel)):
        rows, columns = (
            slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in zip(taps, wide, steps, counts)
        )
        found.append(torch.where(image[:, :, rows, columns] >= made, own[rows, columns], beyond))
    return made, torch.stack(found, 2).amin(2)


def _max_unpool(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None,
) -> Tensor:  # fmt: skip
    (kh, kw), steps = _pair(kernel_size), _pair(stride or kernel_size)
    if [kh, kw] != steps or any(_pair(padding)):
        raise ValueError(f"windows of {kh}x{kw} in steps of {steps}; windows beside each other are supported")
    h, w = input.shape[2] * kh, input.shape[3] * kw
    height, width = (h, w) if output_size is None else tuple(output_size)[-2:]
    wide = (t.repeat_interleave(kh, 2).repeat_interleave(kw, 3) for t in (input, indices.float()))
    values, places = (F.pad(t, (0, width - w, 0, height - h)) for t in wide)
    own = torch.arange(float(height * width)).reshape(height, width)
    inside = F.pad(torch.ones(h, w), (0, width - w, 0, height - h)) > 0
    chosen = (places == own) & inside
    with torch._C.DisableTorchFunction():
        ones = F.max_unpool2d(
            torch.ones_like(input), indices.long(), kernel_size, stride, (0, 0), (height, width)
        )
        if (ones.bool() != chosen).any():
            raise ValueError(
                "places beyond their windows; pool by windows that do not overlap, and give it the size "
                "before the pooling, output_size=x.shape"
            )
    return torch.where(chosen, values, 0.0)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "affine_grid": _affine_grid,
    "max_pool2d_with_indices": _max_pool,
    "max_unpool2d": _max_unpool,
}
