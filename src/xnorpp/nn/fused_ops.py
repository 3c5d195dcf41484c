"""The steps of the fused training path as functions of tensors, each one launch of a kernel in
`triton_kernels`.
 Activations are (N,C,H,W) tensors in channels_last order. `Rescale` says what turns dot products into a batch
norm's input or a block's output: v = act(Gamma * dot); None in its place means that the source is a real
tensor already.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xnorpp.nn import triton_kernels as kernels
from xnorpp.nn import triton_pool_kernels as pool_kernels

IDENTITY, RELU, PRELU = 0, 1, 2  # as `triton_kernels` numbers them

GROUP = 8  # images that share a byte of bits
TILE_ELEMENTS = 1024
TILE_WARPS = 4
PROGRAMS = 2112  # at least, where there is work enough: sixteen for each of an H200's 132 multiprocessors
LINEAR_BLOCK = 1024


@dataclass(frozen=True)
class Rescale:
    """v = act(Gamma * dot). `gamma` is (pixels, channels) in float32; `slope` is (channels,), for PReLU
    alone."""

    gamma: Tensor
    activation: int
    slope: Tensor | None = None


@dataclass(frozen=True)
class Tiling:
    """How an activation is divided: `tiles` of pixels by channels, times `parts` of the images."""

    block_p: int
    block_c: int
    tiles: int
    tiles_p: int
    parts: int
    groups_each: int

    @property
    def grid(self) -> tuple[int, int]:
        return self.tiles, self.parts

    @property
    def rows(self) -> int:
        """Rows of partial channel sums, one a program along a channel."""
        return self.tiles_p * self.parts

    @property
    def blocks(self) -> dict[str, int]:
        return {"BLOCK_P": self.block_p, "BLOCK_C": self.block_c, "num_warps": TILE_WARPS}


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@functools.lru_cache(maxsize=512)
def tiling(images: int, pixels: int, channels: int, elements: int, programs: int) -> Tiling:
    block_c = min(64, 1 << (channels - 1).bit_length())
    block_p = max(1, elements // block_c)
    tiles_p = _ceil_div(pixels, block_p)
    tiles = tiles_p * _ceil_div(channels, block_c)
    groups = _ceil_div(images, GROUP)
    each = max(1, groups * tiles // programs)
    groups_each = 1 << (each.bit_length() - 1)  # a power of two, so that the parts of usual batches are equal
    return Tiling(block_p, block_c, tiles, tiles_p, _ceil_div(groups, groups_each), groups_each)


def _shape(x: Tensor) -> tuple[int, int, int]:
    """images, pixels, channels"""
    return x.shape[0], x.shape[2] * x.shape[3], x.shape[1]


def _tiling(x: Tensor) -> Tiling:
    return tiling(*_shape(x), TILE_ELEMENTS, PROGRAMS)


def _rescale_arguments(rescale: Rescale | None, unused: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """gamma, slope and the two compile-time switches; `unused` stands where a pointer is never followed."""
    if rescale is None:
        return unused, unused, {"SCALED": False, "ACTIVATION": IDENTITY}
    slope = unused if rescale.slope is None else rescale.slope
    return rescale.gamma, slope, {"SCALED": True, "ACTIVATION": rescale.activation}


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def batch_statistics(
    source: Tensor, rescale: Rescale | None, norm: torch.nn.BatchNorm2d
) -> tuple[Tensor, Tensor]:
    """Mean and 1/std a channel of the batch norm's input; updates the running statistics of `norm`."""
    images, pixels, channels = _shape(source)
    t = _tiling(source)
    partial = torch.empty((2, t.rows, channels), dtype=torch.float32, device=source.device)
    gamma, slope, switches = _rescale_arguments(rescale, partial)
    kernels.moments_kernel[t.grid](
        source, gamma, slope, partial, images, pixels, channels, t.groups_each, t.rows, **switches, **t.blocks
    )
    mean = torch.empty(channels, dtype=torch.float32, device=source.device)
    inverse_std = torch.empty_like(mean)
    tracked = norm.track_running_stats and norm.running_mean is not None
    running: tuple[Any, Any, Any] = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    kernels.batch_statistics_kernel[(_ceil_div(channels, 16),)](
        partial, source, gamma, slope, mean, inverse_std, *(running if tracked else (mean, mean, mean)),
        t.rows, channels, float(images * pixels), norm.eps, norm.momentum if tracked else 0.0,
        TRACKED=tracked, BLOCK_R=128, BLOCK_C=16, num_warps=4, **switches,
    )  # fmt: skip
    return mean, inverse_std


def normalize_sign(
    source: Tensor,
    rescale: Rescale | None,
    mean: Tensor,
    inverse_std: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """sign(batch norm) in `dtype`, its bits, and the bits of sign's clip mask."""
    images, pixels, channels = _shape(source)
    t = _tiling(source)
    signs = torch.empty_like(source, dtype=dtype, memory_format=torch.channels_last)
    bits = torch.empty(
        (2, _ceil_div(images, GROUP), pixels, channels), dtype=torch.uint8, device=source.device
    )
    sign_bits, mask_bits = bits.unbind()
    gamma, slope, switches = _rescale_arguments(rescale, mean)
    kernels.normalize_sign_kernel[t.grid](
        source, gamma, slope, mean, inverse_std, weight, bias, signs, sign_bits, mask_bits,
        images, pixels, channels, t.groups_each, **switches, **t.blocks,
    )  # fmt: skip
    return signs, sign_bits, mask_bits


def unpack_signs(sign_bits: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The +1/-1 tensor of `shape` that `normalize_sign` gave, from its bits."""
    signs = torch.empty(shape, dtype=dtype, device=sign_bits.device, memory_format=torch.channels_last)
    size = shape[1] * shape[2] * shape[3]
    grid = (_ceil_div(size, LINEAR_BLOCK), sign_bits.shape[0])
    kernels.unpack_signs_kernel[grid](sign_bits, signs, shape[0], size, BLOCK=LINEAR_BLOCK, num_warps=4)
    return signs


def finish(dots: Tensor, rescale: Rescale, shortcut: Tensor | None, dtype: torch.dtype) -> Tensor:
    """act(Gamma * dots) + shortcut in `dtype`."""
    t = _tiling(dots)
    out = torch.empty_like(dots, dtype=dtype, memory_format=torch.channels_last)
    gamma, slope, _ = _rescale_arguments(rescale, dots)
    kernels.finish_kernel[t.grid](
        dots, gamma, slope, dots if shortcut is None else shortcut, out, *_shape(dots), t.groups_each,
        ACTIVATION=rescale.activation, SHORTCUT=shortcut is not None, **t.blocks,
    )  # fmt: skip
    return out


def finish_backward(grad: Tensor, dots: Tensor, rescale: Rescale) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients for the dots, for Gamma (a sum over the first dimension remains to be done), and for the
    slope."""
    t = _tiling(dots)
    grad_dots = torch.empty_like(grad, memory_format=torch.channels_last)
    grad_gamma, grad_slope = _rescale_gradients(dots, rescale, t)
    kernels.finish_backward_kernel[t.grid](
        grad, dots, rescale.gamma, dots if rescale.slope is None else rescale.slope,
        grad_dots, grad_gamma, grad_gamma if grad_slope is None else grad_slope, *_shape(dots), t.groups_each,
        ACTIVATION=rescale.activation, **t.blocks,
    )  # fmt: skip
    return grad_dots, grad_gamma, None if grad_slope is None else grad_slope.sum(0)


def _rescale_gradients(dots: Tensor, rescale: Rescale, t: Tiling) -> tuple[Tensor, Tensor | None]:
    _, pixels, channels = _shape(dots)
    grad_gamma = torch.empty((t.parts, pixels, channels), dtype=torch.float32, device=dots.device)
    if rescale.activation != PRELU:
        return grad_gamma, None
    return grad_gamma, torch.empty((t.rows, channels), dtype=torch.float32, device=dots.device)


def norm_backward(
    grad_signs: Tensor,
    mask_bits: Tensor,
    source: Tensor,
    rescale: Rescale | None,
    mean: Tensor,
    inverse_std: Tensor,
    weight: Tensor,
    skip: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradient of `normalize_sign` and of what made its source.

    Gives the gradient for the source (written over `grad_signs`), for the batch norm's weight and bias, and,
    for a rescaled source, for Gamma (to be summed over the first dimension) and the slope. `skip` is added to
    the gradient of the batch norm's input.
    """
    images, pixels, channels = _shape(source)
    t = _tiling(source)
    gamma, slope, switches = _rescale_arguments(rescale, mean)
    partial = torch.empty((2, t.rows, channels), dtype=torch.float32, device=source.device)
    kernels.norm_backward_sums_kernel[t.grid](
        grad_signs, mask_bits, source, gamma, slope, mean, inverse_std, partial,
        images, pixels, channels, t.groups_each, t.rows, **switches, **t.blocks,
    )  # fmt: skip
    sums = partial.sum(1)
    grad_gamma: Tensor | None = None
    grad_slope: Tensor | None = None
    if rescale is not None:
        grad_gamma, grad_slope = _rescale_gradients(source, rescale, t)
    kernels.norm_backward_kernel[t.grid](
        grad_signs, mask_bits, source, gamma, slope, mean, inverse_std, weight, sums,
        grad_signs if skip is None else skip, grad_signs, sums if grad_gamma is None else grad_gamma,
        sums if grad_slope is None else grad_slope,
        images, pixels, channels, t.groups_each, float(images * pixels),
        SKIP=skip is not None, **switches, **t.blocks,
    )  # fmt: skip
    return grad_signs, sums[1], sums[0], grad_gamma, None if grad_slope is None else grad_slope.sum(0)


def _scale_kind(factors: tuple[Tensor, ...]) -> int:
    """0: a channel alone; 1: and a map; 2: and rows and columns (`SPATIAL` of the kernels)."""
    return len(factors) - 1


def expand_scale(
    factors: tuple[Tensor, ...], channels: int, size: tuple[int, int], device: torch.device
) -> Tensor:
    """Gamma as (pixels, channels) in float32, from the factors of any of the four cases; () gives ones."""
    pixels = size[0] * size[1]
    if not factors:
        return torch.ones((pixels, channels), dtype=torch.float32, device=device)
    if factors[0].shape[1:] == size and pixels > 1:
        return factors[0].float().permute(1, 2, 0).reshape(pixels, channels).contiguous()
    gamma = torch.empty((pixels, channels), dtype=torch.float32, device=device)
    t = tiling(1, pixels, channels, TILE_ELEMENTS, 1)
    parts = (*factors, *factors[:1], *factors[:1])[:3]
    kernels.expand_scale_kernel[(t.tiles,)](
        *parts, gamma, pixels, size[1], channels, SPATIAL=_scale_kind(factors), **t.blocks
    )
    return gamma


def scale_gradient(
    grad_gamma: Tensor, factors: tuple[Tensor, ...], channels: int, size: tuple[int, int]
) -> tuple[Tensor, ...]:
    """The gradients of the factors from Gamma's, (parts, pixels, channels)."""
    pixels = size[0] * size[1]
    if not factors:
        return ()
    if factors[0].shape[1:] == size and pixels > 1:
        return (grad_gamma.sum(0).reshape(*size, channels).permute(2, 0, 1),)
    t = tiling(1, pixels, channels, TILE_ELEMENTS, 1)
    tiles_c = t.tiles // t.tiles_p
    grad_channel = torch.empty((t.tiles_p, channels), dtype=torch.float32, device=grad_gamma.device)
    grad_spatial = torch.empty((tiles_c, pixels), dtype=torch.float32, device=grad_gamma.device)
    parts = (*factors, *factors[:1], *factors[:1])[:3]
    kind = _scale_kind(factors)
    kernels.scale_gradient_kernel[(t.tiles,)](
        grad_gamma, *parts, grad_channel, grad_spatial, grad_gamma.shape[0], pixels, size[1], channels,
        SPATIAL=kind, **t.blocks,
    )  # fmt: skip
    for_channel = grad_channel.sum(0).reshape(-1, 1, 1)
    if kind == 0:
        return (for_channel,)
    spatial = grad_spatial.sum(0).reshape(1, *size)
    if kind == 1:
        return for_channel, spatial
    _, rows, columns = factors
    return for_channel, (spatial * columns).sum(2, keepdim=True), (spatial * rows).sum(1, keepdim=True)


def weight_signs(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """sign(W) in `dtype`, in W's memory order."""
    signs = torch.empty_like(weight, dtype=dtype)
    grid = (_ceil_div(weight.numel(), LINEAR_BLOCK),)
    kernels.weight_sign_kernel[grid](weight, signs, weight.numel(), BLOCK=LINEAR_BLOCK, num_warps=4)
    return signs


def weight_gradient(grad_signs: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `weight_signs`, in W's memory order."""
    out = torch.empty_like(weight)
    if grad_signs.stride() != weight.stride():
        grad_signs = torch.empty_like(weight, dtype=grad_signs.dtype).copy_(grad_signs)
    grid = (_ceil_div(weight.numel(), LINEAR_BLOCK),)
    kernels.weight_gradient_kernel[grid](
        grad_signs, weight, out, weight.numel(), BLOCK=LINEAR_BLOCK, num_warps=4
    )
    return out


Window = tuple[int, int, int]  # kernel, stride, padding of a square pooling window


def _slope_or(slope: Tensor | None, channels: int, unused: Tensor) -> Tensor:
    """A slope a channel; `unused` stands where there is none."""
    if slope is None:
        return unused
    return slope if slope.numel() == channels else slope.expand(channels).contiguous()


def norm_pool(
    x: Tensor,
    activation: int,
    slope: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: Window,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Max pooling of act(batch norm), and a byte an output that says which position of the window won."""
    images, channels, height, width = x.shape
    kernel, stride, padding = window
    size = ((height + 2 * padding - kernel) // stride + 1, (width + 2 * padding - kernel) // stride + 1)
    shape = (images, channels, *size)
    pooled = torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)
    taps = torch.empty_like(pooled, dtype=torch.uint8)
    t = tiling(1, size[0] * size[1], channels, TILE_ELEMENTS, 1)
    pool_kernels.norm_pool_kernel[(t.tiles, images)](
        x, _slope_or(slope, channels, mean), mean, inverse_std, weight, bias, pooled, taps,
        height, width, *size, channels,
        ACTIVATION=activation, KERNEL=kernel, STRIDE=stride, PADDING=padding, **t.blocks,
    )  # fmt: skip
    return pooled, taps


def norm_pool_backward(
    grad: Tensor,
    taps: Tensor,
    x: Tensor,
    activation: int,
    slope: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: Window,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of `norm_pool` for its input, the batch norm's weight and bias, and the slope."""
    images, channels, height, width = x.shape
    out_height, out_width = grad.shape[2:]
    kernel, stride, padding = window
    a_slope = _slope_or(slope, channels, mean)
    t = tiling(images, out_height * out_width, channels, TILE_ELEMENTS, 2 * PROGRAMS)
    partial = torch.empty((3, t.rows, channels), dtype=torch.float32, device=x.device)
    geometry = (height, width, out_height, out_width, channels)
    switches: dict[str, Any] = {
        "ACTIVATION": activation,
        "KERNEL": kernel,
        "STRIDE": stride,
        "PADDING": padding,
    }
    pool_kernels.norm_pool_sums_kernel[t.grid](
        grad, taps, x, a_slope, mean, inverse_std, weight, bias, partial,
        images, *geometry, t.groups_each * GROUP, t.rows, **switches, **t.blocks,
    )  # fmt: skip
    sums = partial.sum(1)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    t = tiling(1, height * width, channels, TILE_ELEMENTS, 1)
    pool_kernels.norm_pool_backward_kernel[(t.tiles, images)](
        grad, taps, x, a_slope, mean, inverse_std, weight, bias, sums, out,
        *geometry, float(images * height * width), **switches, REACH=_ceil_div(kernel, stride), **t.blocks,
    )  # fmt: skip
    grad_slope: Tensor | None = None
    if slope is not None:
        grad_slope = sums[2] if slope.numel() == channels else sums[2].sum(0, keepdim=True)
    return out, sums[1], sums[0], grad_slope
