"""Pooling, the stem and the head of the fused training path as functions of tensors; see `fused_ops`."""

from __future__ import annotations

import torch
from torch import Tensor

from xnorpp.nn.fused import end_kernels as kernels
from xnorpp.nn.fused.ops import (
    GROUP,
    ONES,
    Collected,
    Moments,
    Rescale,
    RescaleSums,
    collect,
    empty_moments,
    shape_of,
    tiling_of,
)
from xnorpp.nn.fused.weights import ceil_div

DEPTH = 16  # channels of an image after `space_to_depth`: a multiple of what tensor cores read at once


def _slope_or(slope: Tensor | None, channels: int, unused: Tensor) -> Tensor:
    """One slope per channel; `unused` stands where there is none."""
    if slope is None:
        return unused
    return slope if slope.numel() == channels else slope.expand(channels).contiguous()


def average_pool(x: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Moments]:
    """The mean of 2x2 pixels, and its moments. Before a sign it stays float32, so that no rounding moves a
    value across zero."""
    images, channels, height, width = x.shape
    pooled = torch.empty(
        (images, channels, height // 2, width // 2),
        dtype=dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    t = tiling_of(pooled)
    found = empty_moments(pooled, t)
    kernels.average_pool_kernel[t.grid](
        x, pooled, found.partial, images, height, width, channels, t.groups_each * GROUP, t.rows, **t.blocks
    )
    return pooled, found


def norm_pool(
    x: Tensor,
    activation: int,
    slope: Tensor | None,
    statistics: tuple[Tensor, ...],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Moments]:
    """3x3 max pooling (stride 2, padding 1) of act(batch norm): the maxima, x there, a byte for the position,
    and the maxima's moments. `statistics`: mean, 1/std, weight and bias of the batch norm."""
    images, channels, height, width = x.shape
    shape = (images, channels, ceil_div(height, 2), ceil_div(width, 2))
    pooled = torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)
    peaks, taps = torch.empty_like(pooled, dtype=x.dtype), torch.empty_like(pooled, dtype=torch.uint8)
    t = tiling_of(pooled)
    found = empty_moments(pooled, t)
    kernels.norm_pool_kernel[t.grid](
        x, _slope_or(slope, channels, x), *statistics, pooled, peaks, taps, found.partial,
        images, height, width, *shape[2:], channels, t.groups_each * GROUP, t.rows,
        ACTIVATION=activation, **{**t.blocks, "num_warps": 8},  # nine values of each tile are live at once
    )  # fmt: skip
    return pooled, peaks, taps, found


def _activation_sums(
    grad: Tensor,
    source: Tensor,
    activation: int,
    slope: Tensor | None,
    statistics: tuple[Tensor, ...],
    grad_scale: float,
    per_image: bool,
) -> Collected:
    """The sums that batch norm and slope need, over the positions of `source`."""
    images, pixels, channels = shape_of(source)
    t = tiling_of(source)
    partial = torch.empty((2, t.rows, channels), dtype=torch.float32, device=grad.device)
    slopes = torch.empty_like(partial) if slope is not None else partial
    kernels.norm_activation_sums_kernel[t.grid](
        grad, source, _slope_or(slope, channels, source), *statistics, partial, slopes,
        images, pixels, channels, t.groups_each * GROUP, t.rows, grad_scale,
        ACTIVATION=activation, PER_IMAGE=per_image, **t.blocks,
    )  # fmt: skip
    if slope is None:
        return collect(partial)
    unused = (slopes,) * 3
    sums = RescaleSums(Rescale((), ONES, activation, slope), (1, 1), t.rows, 0, slopes, *unused)
    return collect(partial, sums)


def _gradients(out: Tensor, found: Collected, slope: Tensor | None) -> tuple[Tensor | None, ...]:
    """Of the input, the batch norm's weight and bias, and the slope."""
    grad_slope = found.slope
    if grad_slope is not None and slope is not None and slope.numel() != grad_slope.numel():
        grad_slope = grad_slope.sum(0, keepdim=True)
    return out, found.norm[1], found.norm[0], grad_slope


def norm_pool_backward(
    grad: Tensor,
    peaks: Tensor,
    taps: Tensor,
    x: Tensor,
    activation: int,
    slope: Tensor | None,
    statistics: tuple[Tensor, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of `norm_pool` for its input, the batch norm's weight and bias, and the slope."""
    images, channels, height, width = x.shape
    found = _activation_sums(grad, peaks, activation, slope, statistics, 1.0, per_image=False)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    t = tiling_of(grad)
    kernels.norm_pool_backward_kernel[(t.tiles, images)](
        grad, taps, x, _slope_or(slope, channels, x), *statistics, found.norm, out,
        height, width, grad.shape[2], grad.shape[3], channels, float(images * height * width),
        ACTIVATION=activation, **t.blocks,
    )  # fmt: skip
    return _gradients(out, found, slope)


def norm_mean(
    x: Tensor, activation: int, slope: Tensor | None, statistics: tuple[Tensor, ...], dtype: torch.dtype
) -> Tensor:
    """The mean over all pixels of act(batch norm), (images, channels)."""
    images, pixels, channels = shape_of(x)
    out = torch.empty((images, channels), dtype=dtype, device=x.device)
    block_c = min(64, 1 << (channels - 1).bit_length())
    kernels.norm_mean_kernel[(ceil_div(channels, block_c), images)](
        x, _slope_or(slope, channels, x), *statistics, out, images, pixels, channels,
        ACTIVATION=activation, BLOCK_P=16, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out


def norm_mean_backward(
    grad: Tensor, x: Tensor, activation: int, slope: Tensor | None, statistics: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of `norm_mean` for its input, the batch norm's weight and bias, and the slope."""
    images, pixels, channels = shape_of(x)
    found = _activation_sums(grad, x, activation, slope, statistics, 1.0 / pixels, per_image=True)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    t = tiling_of(x)
    kernels.norm_mean_backward_kernel[t.grid](
        grad, x, _slope_or(slope, channels, x), *statistics, found.norm, out,
        images, pixels, channels, t.groups_each * GROUP, float(images * pixels), 1.0 / pixels,
        ACTIVATION=activation, **t.blocks,
    )  # fmt: skip
    return _gradients(out, found, slope)


def space_to_depth(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Each 2x2 square of pixels as one pixel of `DEPTH` channels, two of zeros before and one after."""
    images, channels, height, width = x.shape
    size = (height // 2 + 3, width // 2 + 3)
    out = torch.empty((images, DEPTH, *size), dtype=dtype, device=x.device, memory_format=torch.channels_last)
    block = 128
    kernels.space_to_depth_kernel[(ceil_div(size[0] * size[1], block), images)](
        x, out, height, width, *size, *x.stride(), CHANNELS=channels, DEPTH=DEPTH, BLOCK_P=block, num_warps=4
    )
    return out
