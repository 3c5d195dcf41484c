"""The steps of the fused training path as functions of tensors, each one launch of a kernel.

Activations are (N,C,H,W) tensors in channels_last order. `Rescale` states what turns dot products into a
batch norm's input or a block's output: v = act(Gamma * dot); None in its place means that the source is a
real tensor already. XNOR-Net's K, (N, pixels), multiplies the dot products of a `Rescale` that has it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xnorpp.nn.fused import backward_kernels, kernels, sum_kernels
from xnorpp.nn.fused.weights import SUM_BLOCKS, Latent, WeightSigns, ceil_div, sign_job

IDENTITY, RELU, PRELU = 0, 1, 2  # as `kernels` numbers them
DENSE, ONES = 4, 5
# `xnorpp.nn.scales.KERNELS` as the kernels number them
KINDS = {"channel": 1, "channel_map": 2, "channel_row_column": 3, "dense": DENSE}

GROUP = 8  # images that share a byte of bits
TILE_ELEMENTS = 512  # 1.4 % faster than 1024 in a ResNet-18's step at 224 pixels, 3.5 % at 64
TILE_WARPS = 4
PROGRAMS = 1600  # at most, unless the tiles of one image are more: twelve for each of 132 multiprocessors
LINEAR_BLOCK = 1024


@dataclass(frozen=True)
class Rescale:
    """v = act(Gamma * k * dot). `factors` are those of one of the four cases, or none; `slope` is
    (channels,); `k`, where the layer has it, XNOR-Net's K, (images, pixels)."""

    factors: tuple[Tensor, ...]
    kind: int
    activation: int
    slope: Tensor | None = None
    k: Tensor | None = None

    def arguments(self, unused: Tensor) -> tuple[Tensor, ...]:
        """channel, rows, columns, slope and k; `unused` stands where a pointer is never followed."""
        channel, rows, columns, *_ = (*self.factors, unused, unused, unused)
        slope, k = (unused if it is None else it for it in (self.slope, self.k))
        return channel, rows, columns, slope, k

    @property
    def switches(self) -> dict[str, Any]:
        return {"KIND": self.kind, "ACTIVATION": self.activation, "K": self.k is not None}


@dataclass(frozen=True)
class Moments:
    """Rows of partial sums of a batch norm's input and of its square, as the kernels leave them."""

    partial: Tensor
    rows: int
    count: int


@dataclass(frozen=True)
class RescaleSums:
    """Partial sums for the gradients of a `Rescale`, for `collect`."""

    rescale: Rescale
    size: tuple[int, int]
    rows: int
    parts: int
    sums: Tensor
    spatial: Tensor
    dense: Tensor
    for_k: Tensor


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
        """Rows of partial channel sums, one per program along a channel."""
        return self.tiles_p * self.parts

    @property
    def blocks(self) -> dict[str, int]:
        return {"BLOCK_P": self.block_p, "BLOCK_C": self.block_c, "num_warps": TILE_WARPS}


@functools.lru_cache(maxsize=512)
def tiling(images: int, pixels: int, channels: int, elements: int, programs: int) -> Tiling:
    """Tiles of about `elements` values; as few images per program as keep the number below `programs`."""
    block_c = min(64, 1 << (channels - 1).bit_length())
    block_p = max(1, elements // block_c)
    tiles_p = ceil_div(pixels, block_p)
    tiles = tiles_p * ceil_div(channels, block_c)
    groups = ceil_div(images, GROUP)
    each = 1  # a power of two, so that the parts of usual batches are equal
    while each < groups and tiles * ceil_div(groups, each) > programs:
        each *= 2
    return Tiling(block_p, block_c, tiles, tiles_p, ceil_div(groups, each), each)


def shape_of(x: Tensor) -> tuple[int, int, int]:
    """images, pixels, channels"""
    return x.shape[0], x.shape[2] * x.shape[3], x.shape[1]


def tiling_of(x: Tensor) -> Tiling:
    return tiling(*shape_of(x), TILE_ELEMENTS, PROGRAMS)


def _sizes(x: Tensor, t: Tiling) -> tuple[int, ...]:
    """images, pixels, channels, width and groups per program, as every kernel takes them."""
    return (*shape_of(x), x.shape[3], t.groups_each)


NOTHING: dict[str, Any] = {"KIND": 0, "ACTIVATION": IDENTITY, "K": False}


def _rescale_arguments(rescale: Rescale | None, unused: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    if rescale is None:
        return (unused, unused, unused, unused, unused), NOTHING
    return rescale.arguments(unused), rescale.switches


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def scale_kind(kernel: str | None, size: tuple[int, int]) -> int:
    """How the kernels number a scale, from the kernel that it declares; None is a layer without one."""
    if kernel is None:
        return ONES
    return KINDS["channel"] if kernel == "dense" and size == (1, 1) else KINDS[kernel]


def empty_moments(x: Tensor, t: Tiling) -> Moments:
    images, pixels, channels = shape_of(x)
    partial = torch.empty((2 * t.rows + 1, channels), dtype=torch.float32, device=x.device)
    return Moments(partial, t.rows, images * pixels)


def moments(source: Tensor, rescale: Rescale | None) -> Moments:
    """One pass over the batch norm's input for its mean and variance."""
    t = tiling_of(source)
    found = empty_moments(source, t)
    arguments, switches = _rescale_arguments(rescale, found.partial)
    kernels.moments_kernel[t.grid](
        source, *arguments, found.partial, *_sizes(source, t), t.rows, **switches, **t.blocks
    )
    return found


def statistics(
    found: Moments, norm: torch.nn.BatchNorm2d, latent: Latent | None, dtypes: Sequence[torch.dtype] = ()
) -> tuple[Tensor, Tensor, WeightSigns | None]:
    """Mean, 1/std and the signs of `latent`; updates the running statistics of `norm`."""
    channels = found.partial.shape[1]
    result = torch.empty((2, channels), dtype=torch.float32, device=found.partial.device)
    mean, inverse_std = result.unbind()
    tracked = norm.track_running_stats and norm.running_mean is not None
    running: tuple[Any, Any, Any] = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    job = sign_job(latent, dtypes, mean)
    norm_programs = ceil_div(channels, SUM_BLOCKS["BLOCK_C"])
    sum_kernels.statistics_kernel[(norm_programs + job.programs,)](
        found.partial, mean, inverse_std, *(running if tracked else (mean, mean, mean)), *job.arguments,
        found.rows, channels, float(found.count), norm.eps, norm.momentum if tracked else 0.0,
        norm_programs, TRACKED=tracked, **{**SUM_BLOCKS, **job.switches},
    )  # fmt: skip
    return mean, inverse_std, job.signs


def normalize_sign(
    source: Tensor,
    rescale: Rescale | None,
    mean: Tensor,
    inverse_std: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
    with_sizes: bool = False,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """sign(batch norm) in `dtype`, its bits, and the bits of sign's clip mask; with `with_sizes` also the
    mean of |batch norm| over the channels, (images, pixels). `relu`: a ReLU stands before the sign."""
    images, pixels, channels = shape_of(source)
    t = tiling_of(source)
    signs = torch.empty_like(source, dtype=dtype, memory_format=torch.channels_last)
    bits = torch.empty(
        (2, ceil_div(images, GROUP), pixels, channels), dtype=torch.uint8, device=source.device
    )
    sign_bits, mask_bits = bits.unbind()
    arguments, switches = _rescale_arguments(rescale, mean)
    sizes = _parts_of_channels(source, t) if with_sizes else None
    kernels.normalize_sign_kernel[t.grid](
        source, *arguments, mean, inverse_std, weight, bias, signs, sign_bits, mask_bits,
        mean if sizes is None else sizes, *_sizes(source, t), SIZES=with_sizes, RELU=relu,
        **switches, **t.blocks,
    )  # fmt: skip
    return signs, sign_bits, mask_bits, None if sizes is None else sizes.sum(0) / channels


def _parts_of_channels(x: Tensor, t: Tiling) -> Tensor:
    """Room for a sum over the channels of a tile, for every tile of channels, image and pixel."""
    images, pixels, _ = shape_of(x)
    return torch.empty((t.tiles // t.tiles_p, images, pixels), dtype=torch.float32, device=x.device)


def unpack_signs(sign_bits: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The +1/-1 tensor of `shape` that `normalize_sign` gave, from its bits."""
    signs = torch.empty(shape, dtype=dtype, device=sign_bits.device, memory_format=torch.channels_last)
    size = shape[1] * shape[2] * shape[3]
    grid = (ceil_div(size, LINEAR_BLOCK), sign_bits.shape[0])
    kernels.unpack_signs_kernel[grid](sign_bits, signs, shape[0], size, BLOCK=LINEAR_BLOCK, num_warps=4)
    return signs


def finish(
    dots: Tensor, rescale: Rescale, side: Tensor | None, side_rescale: Rescale | None, dtype: torch.dtype
) -> tuple[Tensor, Moments]:
    """act(Gamma * dots) + side in `dtype`, and its moments; `side` is real, or dots with their own Gamma."""
    t = tiling_of(dots)
    out = torch.empty_like(dots, dtype=dtype, memory_format=torch.channels_last)
    found = empty_moments(out, t)
    side_arguments, side_switches = _rescale_arguments(side_rescale, dots)
    kernels.finish_kernel[t.grid](
        dots, *rescale.arguments(dots), dots if side is None else side, *side_arguments[:3],
        side_arguments[4], out, found.partial, *_sizes(dots, t), t.rows,
        SIDE=-1 if side is None else side_switches["KIND"], SIDE_K=side_switches["K"],
        **rescale.switches, **t.blocks,
    )  # fmt: skip
    return out, found


def _rescale_sums(dots: Tensor, rescale: Rescale, t: Tiling) -> RescaleSums:
    _, pixels, channels = shape_of(dots)
    tiles_c = t.tiles // t.tiles_p
    shapes = (
        (2, t.rows, channels),
        (t.parts * tiles_c, pixels) if rescale.kind in (2, 3) else (0,),
        (t.parts, pixels, channels) if rescale.kind == DENSE else (0,),
    )
    made = [torch.empty(shape, dtype=torch.float32, device=dots.device) for shape in shapes]
    made.append(made[0] if rescale.k is None else _parts_of_channels(dots, t))
    return RescaleSums(rescale, (dots.shape[2], dots.shape[3]), t.rows, t.parts * tiles_c, *made)


def finish_backward(grad: Tensor, dots: Tensor, rescale: Rescale) -> tuple[Tensor, RescaleSums]:
    """The gradient for the dots, and partial sums of those for Gamma's factors, the slope and K."""
    t = tiling_of(dots)
    grad_dots = torch.empty_like(grad, memory_format=torch.channels_last)
    found = _rescale_sums(dots, rescale, t)
    backward_kernels.finish_backward_kernel[t.grid](
        grad, dots, *rescale.arguments(dots), grad_dots, found.sums, found.spatial, found.dense, found.for_k,
        *_sizes(dots, t), t.rows, **rescale.switches, **t.blocks,
    )  # fmt: skip
    return grad_dots, found


@dataclass(frozen=True)
class SizesGradient:
    """The gradient of |u| in every channel of a pixel, (images, pixels), and the bits u > 0."""

    gradient: Tensor
    sign_bits: Tensor


def _sizes_gradient(sizes: SizesGradient | None, bits: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    """Sign bits and gradient, or what stands in their places where they are never read."""
    return (bits, floats) if sizes is None else (sizes.sign_bits, sizes.gradient)


def norm_backward_sums(
    grad_signs: Tensor,
    mask_bits: Tensor | None,
    source: Tensor,
    rescale: Rescale | None,
    mean: Tensor,
    inverse_std: Tensor,
    sizes: SizesGradient | None = None,
) -> Tensor:
    """(2, rows, channels) partial sums of the gradient after the sign and of its product with xhat. Without
    `mask_bits` every gradient counts."""
    t = tiling_of(source)
    partial = torch.empty((2, t.rows, source.shape[1]), dtype=torch.float32, device=source.device)
    arguments, switches = _rescale_arguments(rescale, mean)
    bits = mean if mask_bits is None else mask_bits
    backward_kernels.norm_backward_sums_kernel[t.grid](
        grad_signs, bits, *_sizes_gradient(sizes, bits, mean), source, *arguments,
        mean, inverse_std, partial, *_sizes(source, t), t.rows, SIZES=sizes is not None,
        MASK=mask_bits is not None, **switches, **t.blocks,
    )  # fmt: skip
    return partial


def norm_backward(
    grad_signs: Tensor,
    mask_bits: Tensor | None,
    source: Tensor,
    rescale: Rescale | None,
    mean: Tensor,
    inverse_std: Tensor,
    weight: Tensor,
    sums: Tensor,
    skip: Tensor | None = None,
    pooled_skip: Tensor | None = None,
    sizes: SizesGradient | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, RescaleSums | None]:
    """The gradient of `normalize_sign` and of what made its source, written over `grad_signs` or to `out`.

    `sums` is the batch norm's, from `collect`; `skip` and 2x2 `pooled_skip` are added to the gradient of the
    batch norm's input. For a rescaled source, partial sums for the gradients of its `Rescale` come along.
    """
    images, pixels, _ = shape_of(source)
    t = tiling_of(source)
    arguments, switches = _rescale_arguments(rescale, mean)
    found = None if rescale is None else _rescale_sums(source, rescale, t)
    outputs = (sums,) * 4 if found is None else (found.sums, found.spatial, found.dense, found.for_k)
    bits = mean if mask_bits is None else mask_bits
    out = grad_signs if out is None else out
    backward_kernels.norm_backward_kernel[t.grid](
        grad_signs, bits, *_sizes_gradient(sizes, bits, mean), source, *arguments,
        mean, inverse_std, weight, sums,
        grad_signs if skip is None else skip, grad_signs if pooled_skip is None else pooled_skip,
        out, *outputs, *_sizes(source, t), t.rows, float(images * pixels),
        SKIP=skip is not None, POOLED=pooled_skip is not None, SIZES=sizes is not None,
        MASK=mask_bits is not None, **switches, **t.blocks,
    )  # fmt: skip
    return out, found


@dataclass(frozen=True)
class Collected:
    """Ended sums: for the batch norm (2, channels), the slope and Gamma's factors."""

    norm: Tensor
    slope: Tensor | None = None
    factors: tuple[Tensor, ...] = ()


def collect(norm_partial: Tensor | None, rescale_sums: RescaleSums | None = None) -> Collected:
    """Ends the sums of one unit's backward pass; a unit without batch norm has no `norm_partial`."""
    if norm_partial is None:
        assert rescale_sums is not None
        unused = rescale_sums.sums
        norm_rows = norm_channels = 0
    else:
        unused = norm_partial
        _, norm_rows, norm_channels = norm_partial.shape
    empty = functools.partial(torch.empty, dtype=torch.float32, device=unused.device)
    norm = empty((2, max(1, norm_channels)))
    slope: Tensor | None = None
    factors: tuple[Tensor, ...] = ()
    channels, spatial_programs, height, width, rows, parts, kind = 0, 0, 1, 1, 0, 0, ONES
    sums = spatial = rows_of = columns = norm
    block = 64
    if rescale_sums is not None:
        rescale, (height, width) = rescale_sums.rescale, rescale_sums.size
        rows, parts, kind = rescale_sums.rows, rescale_sums.parts, rescale.kind
        sums, spatial = rescale_sums.sums, rescale_sums.spatial
        channels = sums.shape[2]
        if rescale.activation == PRELU:
            slope = empty(channels)
        if kind == DENSE:
            factors = (rescale_sums.dense.sum(0).reshape(height, width, channels).permute(2, 0, 1),)
        elif kind != ONES:
            factors = tuple(empty(factor.shape) for factor in rescale.factors)
        if kind == 2:
            spatial_programs, rows_of = ceil_div(height * width, block), rescale.factors[1]
        elif kind == 3:
            spatial_programs = height + width
            _, rows_of, columns = rescale.factors
            block = max(64, 1 << (max(height, width) - 1).bit_length())
    made = (*factors, norm, norm, norm)
    norm_programs = ceil_div(norm_channels, SUM_BLOCKS["BLOCK_C"])
    channel_programs = ceil_div(channels, SUM_BLOCKS["BLOCK_C"])
    programs = norm_programs + channel_programs + spatial_programs
    blocks = {name: SUM_BLOCKS[name] for name in ("BLOCK_R", "BLOCK_C", "num_warps")}
    sum_kernels.collect_kernel[(programs,)](
        unused, norm, norm_rows, norm_channels, norm_programs,
        sums, made[0], norm if slope is None else slope, rows, channels, channel_programs,
        spatial, rows_of, columns, made[1], made[2], parts, height, width, spatial_programs,
        KIND=kind, SLOPE=slope is not None, BLOCK_S=block, **blocks,
    )  # fmt: skip
    return Collected(norm, slope, factors)
