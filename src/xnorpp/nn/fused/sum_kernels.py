"""Triton kernels that end the partial sums of `kernels`, one launch per unit each way, and those of weights.

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


@triton.jit
def _store_signs(half_signs, signs, at, positive, inside):
    """+1 and -1 in two dtypes."""
    sign = tl.where(positive, 1.0, -1.0)
    tl.store(half_signs + at, sign.to(half_signs.dtype.element_ty), mask=inside)
    tl.store(signs + at, sign.to(signs.dtype.element_ty), mask=inside)


@triton.jit
def _filter_job(
    weight, half_signs, signs, table, progress, floor, filters, size, job, BLOCK_F: tl.constexpr
):  # fmt: skip
    """Standardizes filter number `job` of `size` weights, x = (w - mean) * sqrt(8 / (variance + floor)), and
    writes the signs of x. `table` gets three rows of one number per filter (mean, factor, sum of |x|), and
    `progress` after them, which a later step changes."""
    start = job * size
    total = tl.zeros([BLOCK_F], tl.float32)
    for first in range(0, size, BLOCK_F):
        k = first + tl.arange(0, BLOCK_F)
        total += tl.load(weight + start + k, mask=k < size, other=0.0)
    mean = tl.sum(total, 0) / size
    squares = tl.zeros([BLOCK_F], tl.float32)
    for first in range(0, size, BLOCK_F):
        k = first + tl.arange(0, BLOCK_F)
        d = tl.where(k < size, tl.load(weight + start + k, mask=k < size, other=0.0) - mean, 0.0)
        squares += d * d
    factor = tl.sqrt(8.0 / (tl.sum(squares, 0) / size + floor))
    sizes = tl.zeros([BLOCK_F], tl.float32)
    for first in range(0, size, BLOCK_F):
        k = first + tl.arange(0, BLOCK_F)
        x = (tl.load(weight + start + k, mask=k < size, other=0.0) - mean) * factor
        _store_signs(half_signs, signs, start + k, x > 0, k < size)
        sizes += tl.where(k < size, tl.abs(x), 0.0)
    tl.store(table + job, mean)
    tl.store(table + filters + job, factor)
    tl.store(table + 2 * filters + job, tl.sum(sizes, 0))
    if job == 0:
        tl.store(table + 3 * filters, tl.load(progress).to(tl.float32))


@triton.jit
def _sign_job(
    weight, half_signs, signs, table, progress, floor, filters, size, weights, job,
    STANDARDIZED: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The signs of a layer's `weights` latent weights in two dtypes: a block of them, or with STANDARDIZED
    those of a filter."""
    if STANDARDIZED:
        _filter_job(weight, half_signs, signs, table, progress, floor, filters, size, job, BLOCK_W)
    else:
        offset = job * BLOCK_W + tl.arange(0, BLOCK_W)
        value = tl.load(weight + offset, mask=offset < weights, other=0.0)
        _store_signs(half_signs, signs, offset, value > 0, offset < weights)


@triton.jit(do_not_specialize=["rows", "weights", "norm_programs", "filters"])
def statistics_kernel(
    partial, mean, inverse_std, running_mean, running_var, batches,
    weight, half_signs, signs, table, progress, floor, filters, size, weights,
    rows, channels, count, eps, momentum, norm_programs,
    TRACKED: tl.constexpr, STANDARDIZED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps), the running statistics as nn.BatchNorm2d's; and the signs of the
    latent weights of the convolution after it, in two dtypes."""
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
        _sign_job(
            weight, half_signs, signs, table, progress, floor, filters, size, weights,
            program - norm_programs, STANDARDIZED, BLOCK_W,
        )  # fmt: skip


@triton.jit(do_not_specialize=["weights", "filters"])
def weight_signs_kernel(
    weight, half_signs, signs, table, progress, floor, filters, size, weights,
    STANDARDIZED: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The second job of `statistics_kernel` alone: for a layer without batch norm, and for a backward pass
    that did not store the signs."""
    _sign_job(
        weight, half_signs, signs, table, progress, floor, filters, size, weights, tl.program_id(0),
        STANDARDIZED, BLOCK_W,
    )  # fmt: skip


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


@triton.jit(do_not_specialize=["weights"])
def weight_gradient_kernel(grad_signs, weight, for_weight, weights, BLOCK_W: tl.constexpr):
    """The straight-through gradient of the latent weight: grad where |W| <= 1, else 0."""
    offset = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    value = tl.load(weight + offset, mask=offset < weights, other=0.0)
    grad = tl.load(grad_signs + offset, mask=offset < weights, other=0.0).to(tl.float32)
    tl.store(for_weight + offset, tl.where(tl.abs(value) <= 1.0, grad, 0.0), mask=offset < weights)


@triton.jit
def _clamp_bound(table, filters, weights, start, end, BLOCK_W: tl.constexpr):
    """ReCU's bound -mean|x| * ln(2 - 2t) of a layer, from the sums of its filters, with
    t = start + (end - start) * (e^progress - 1) / (e - 1)."""
    sizes = tl.zeros([BLOCK_W], tl.float32)
    for first in range(0, filters, BLOCK_W):
        k = first + tl.arange(0, BLOCK_W)
        sizes += tl.load(table + 2 * filters + k, mask=k < filters, other=0.0)
    share = (tl.exp(tl.load(table + 3 * filters)) - 1.0) / 1.718281828459045
    return -(tl.sum(sizes, 0) / weights) * tl.log(2.0 - 2.0 * (start + (end - start) * share))


@triton.jit
def _filter_gradient(grad_signs, weight, at, mean, factor, bound, inside):
    """x of a part of a filter, and the gradient of its signs where |x| <= bound."""
    x = (tl.load(weight + at, mask=inside, other=0.0) - mean) * factor
    g = tl.load(grad_signs + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, x, 0.0), tl.where(tl.abs(x) <= bound, g, 0.0)


@triton.jit(do_not_specialize=["filters"])
def filter_gradient_kernel(
    grad_signs, weight, table, for_weight, filters, size, weights, start, end, BLOCK_W: tl.constexpr
):  # fmt: skip
    """The gradient of standardized filters from that of their signs, through ReCU's clamp.

    With g the gradient where |x| <= bound, d = g - x * mean(g x) / 8 is that of the division by the
    deviation, and factor * (d - mean(d)) that of the weights; a program takes a filter.
    """
    job = tl.program_id(0)
    mean, factor = tl.load(table + job), tl.load(table + filters + job)
    bound = _clamp_bound(table, filters, weights, start, end, BLOCK_W)
    total = tl.zeros([BLOCK_W], tl.float32)
    values = tl.zeros([BLOCK_W], tl.float32)
    products = tl.zeros([BLOCK_W], tl.float32)
    for first in range(0, size, BLOCK_W):
        k = first + tl.arange(0, BLOCK_W)
        x, g = _filter_gradient(grad_signs, weight, job * size + k, mean, factor, bound, k < size)
        total += g
        values += x
        products += g * x
    slant = tl.sum(products, 0) / size / 8.0
    center = (tl.sum(total, 0) - tl.sum(values, 0) * slant) / size
    for first in range(0, size, BLOCK_W):
        k = first + tl.arange(0, BLOCK_W)
        x, g = _filter_gradient(grad_signs, weight, job * size + k, mean, factor, bound, k < size)
        tl.store(for_weight + job * size + k, factor * (g - x * slant - center), mask=k < size)


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
