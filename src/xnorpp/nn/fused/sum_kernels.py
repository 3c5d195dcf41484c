"""Triton kernels that end the partial sums of `triton_kernels`, one launch a unit each way.

Several small jobs that have nothing to do with each other share a launch: a program finds its job by its
number. On a GPU a launch of a few programs costs as much as one of hundreds.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sum_rows(partial, rows, channels, c, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sum over the rows of a (rows, channels) matrix, for the channels `c`."""
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for start in range(0, rows, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        here = (r[:, None] < rows) & (c[None, :] < channels)
        total += tl.load(partial + r[:, None] * channels + c[None, :], mask=here, other=0.0)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["rows", "weights", "norm_programs"])
def statistics_kernel(
    partial, mean, inverse_std, running_mean, running_var, batches, weight, half_signs, signs,
    rows, channels, count, eps, momentum, weights, norm_programs,
    TRACKED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps), the running statistics as nn.BatchNorm2d's; and the signs of the
    `weights` latent weights of the convolution behind it, in two dtypes."""
    program = tl.program_id(0)
    if program < norm_programs:
        c = program * BLOCK_C + tl.arange(0, BLOCK_C)
        exists = c < channels
        d = _sum_rows(partial, rows, channels, c, BLOCK_R, BLOCK_C) / count
        squares = _sum_rows(partial + rows * channels, rows, channels, c, BLOCK_R, BLOCK_C) / count
        variance = tl.maximum(squares - d * d, 0.0)
        center = tl.load(partial + 2 * rows * channels + c, mask=exists, other=0.0) + d
        tl.store(mean + c, center, mask=exists)
        tl.store(inverse_std + c, 1.0 / tl.sqrt(variance + eps), mask=exists)
        if TRACKED:
            old_mean = tl.load(running_mean + c, mask=exists, other=0.0)
            old_var = tl.load(running_var + c, mask=exists, other=0.0)
            unbiased = variance * (count / (count - 1.0))
            tl.store(running_mean + c, old_mean + momentum * (center - old_mean), mask=exists)
            tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=exists)
            if program == 0:
                tl.store(batches, tl.load(batches) + 1)
    else:
        offset = (program - norm_programs) * BLOCK_W + tl.arange(0, BLOCK_W)
        value = tl.load(weight + offset, mask=offset < weights, other=0.0)
        sign = tl.where(value > 0, 1.0, -1.0)
        tl.store(half_signs + offset, sign.to(half_signs.dtype.element_ty), mask=offset < weights)
        tl.store(signs + offset, sign.to(signs.dtype.element_ty), mask=offset < weights)


@triton.jit(do_not_specialize=["weights"])
def weight_signs_kernel(weight, half_signs, signs, weights, BLOCK_W: tl.constexpr):
    """The second job of `statistics_kernel` alone, for a backward pass that did not keep the signs."""
    offset = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    value = tl.load(weight + offset, mask=offset < weights, other=0.0)
    sign = tl.where(value > 0, 1.0, -1.0)
    tl.store(half_signs + offset, sign.to(half_signs.dtype.element_ty), mask=offset < weights)
    tl.store(signs + offset, sign.to(signs.dtype.element_ty), mask=offset < weights)


@triton.jit
def _channel_job(
    sums, for_channel, for_slope, rows, channels, job,
    KIND: tl.constexpr, SLOPE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradients of the channel factor and of the slope, for one block of channels."""
    c = job * BLOCK_C + tl.arange(0, BLOCK_C)
    if KIND == 1 or KIND == 2 or KIND == 3:
        total = _sum_rows(sums, rows, channels, c, BLOCK_R, BLOCK_C)
        tl.store(for_channel + c, total, mask=c < channels)
    if SLOPE:
        slopes = _sum_rows(sums + rows * channels, rows, channels, c, BLOCK_R, BLOCK_C)
        tl.store(for_slope + c, slopes, mask=c < channels)


@triton.jit
def _line_job(
    spatial_sums, rows_of, columns, for_rows, for_columns, spatial_rows, height, width, job,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Gradient of the factor of one row of pixels (job < height) or one column, weighted by the other."""
    s = tl.arange(0, BLOCK_S)
    is_row = job < height
    line = tl.where(is_row, job, job - height)
    length = tl.where(is_row, width, height)
    at = tl.where(is_row, line * width + s, s * width + line)
    other = tl.load(columns + s, mask=is_row & (s < width), other=0.0)
    other += tl.load(rows_of + s, mask=(job >= height) & (s < height), other=0.0)
    total = tl.zeros([8, BLOCK_S], tl.float32)
    for start in range(0, spatial_rows, 8):
        k = start + tl.arange(0, 8)
        here = (k[:, None] < spatial_rows) & (s[None, :] < length)
        total += tl.load(spatial_sums + k[:, None] * (height * width) + at[None, :], mask=here, other=0.0)
    value = tl.sum(tl.sum(total, 0) * other, 0)
    tl.store(for_rows + line, value, mask=is_row)
    tl.store(for_columns + line, value, mask=job >= height)


@triton.jit
def _map_job(spatial_sums, for_map, spatial_rows, pixels, job, BLOCK_S: tl.constexpr):
    """Gradient of a map's factor for one block of pixels."""
    p = job * BLOCK_S + tl.arange(0, BLOCK_S)
    total = tl.zeros([BLOCK_S], tl.float32)
    for k in range(spatial_rows):
        total += tl.load(spatial_sums + k * pixels + p, mask=p < pixels, other=0.0)
    tl.store(for_map + p, total, mask=p < pixels)


@triton.jit
def _weight_job(grad_signs, weight, for_weight, weights, job, BLOCK_W: tl.constexpr):
    """The straight-through gradient of the latent weight: grad where |W| <= 1, else 0."""
    offset = job * BLOCK_W + tl.arange(0, BLOCK_W)
    value = tl.load(weight + offset, mask=offset < weights, other=0.0)
    grad = tl.load(grad_signs + offset, mask=offset < weights, other=0.0).to(tl.float32)
    tl.store(for_weight + offset, tl.where(tl.abs(value) <= 1.0, grad, 0.0), mask=offset < weights)


@triton.jit(do_not_specialize=["weights"])
def weight_gradient_kernel(grad_signs, weight, for_weight, weights, BLOCK_W: tl.constexpr):
    """`_weight_job` as a launch of its own, which may run beside others."""
    _weight_job(grad_signs, weight, for_weight, weights, tl.program_id(0), BLOCK_W)


COLLECTED = [
    *("norm_rows", "norm_programs", "rows", "channel_programs", "spatial_rows", "height", "width"),
    "spatial_programs",
]


@triton.jit(do_not_specialize=COLLECTED)
def collect_kernel(
    norm_partial, norm_sums, norm_rows, norm_channels, norm_programs,
    sums, for_channel, for_slope, rows, channels, channel_programs,
    spatial_sums, rows_of, columns, for_rows, for_columns, spatial_rows, height, width, spatial_programs,
    KIND: tl.constexpr, SLOPE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """What a unit's backward pass sums up: for its batch norm (two sums per channel, also the gradients of
    bias and weight), for the channel factor and the slope, for the factors of rows and columns (or the
    map)."""
    program = tl.program_id(0)
    lines = norm_programs + channel_programs
    if program < norm_programs:
        c = program * BLOCK_C + tl.arange(0, BLOCK_C)
        plain = _sum_rows(norm_partial, norm_rows, norm_channels, c, BLOCK_R, BLOCK_C)
        second = norm_partial + norm_rows * norm_channels
        product = _sum_rows(second, norm_rows, norm_channels, c, BLOCK_R, BLOCK_C)
        tl.store(norm_sums + c, plain, mask=c < norm_channels)
        tl.store(norm_sums + norm_channels + c, product, mask=c < norm_channels)
    elif program < lines:
        _channel_job(
            sums, for_channel, for_slope, rows, channels, program - norm_programs,
            KIND, SLOPE, BLOCK_R, BLOCK_C,
        )  # fmt: skip
    else:
        if KIND == 3:
            _line_job(
                spatial_sums, rows_of, columns, for_rows, for_columns, spatial_rows, height, width,
                program - lines, BLOCK_S,
            )  # fmt: skip
        if KIND == 2:
            _map_job(spatial_sums, for_rows, spatial_rows, height * width, program - lines, BLOCK_S)
