"""Triton kernels of the fused training step: the passes over gradients. `ops.py` launches them.

Layout and names as in `kernels.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from xnorpp.nn.fused.kernels import (
    UNSPECIALIZED,
    _activate,
    _activation_slope,
    _add_channels,
    _at_pixels,
    _byte_of,
    _channel,
    _gamma,
    _k_or_one,
    _spatial,
    _tile,
)


@triton.jit
def _store_rescale_sums(
    for_gamma, for_slope, channel, rows_of, columns, sums, spatial_sums, dense,
    p, c, offset, inside, row, rows, pixels, channels, width,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Partial sums for the gradients of Gamma's factors and of the slope.

    `sums`: rows of Gamma's gradient times the pixel's part, then rows for the slope; `spatial_sums`: rows
    (a part of the images and a tile of channels each) of Gamma's gradient times the channel's part; `dense`:
    the gradient itself, a part of the images after the other.
    """
    if KIND == 4:
        part = tl.program_id(1).to(tl.int64) * pixels * channels
        tl.store(dense + part + offset, for_gamma, mask=inside)
    if KIND == 1 or KIND == 2 or KIND == 3:
        weighted = for_gamma * _spatial(rows_of, columns, p, pixels, width, KIND)[:, None]
        tl.store(sums + row * channels + c, tl.sum(weighted, 0), mask=c < channels)
    if KIND == 2 or KIND == 3:
        tiles_c = tl.cdiv(channels, BLOCK_C)
        at = (tl.program_id(1) * tiles_c + tl.program_id(0) % tiles_c) * pixels
        tl.store(
            spatial_sums + at + p, tl.sum(for_gamma * _channel(channel, c, channels), 1), mask=p < pixels
        )
    if ACTIVATION == 2:
        tl.store(sums + (rows + row) * channels + c, tl.sum(for_slope, 0), mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def finish_backward_kernel(
    grad, dots, channel, rows_of, columns, slope, k, grad_dots, sums, spatial_sums, dense, for_k,
    images, pixels, channels, width, groups_each, rows,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of `finish_kernel`: for the dots, and partial sums for Gamma's factors, slope and K."""
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    for_gamma = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for_slope = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        for j in tl.static_range(8):
            n = (first + step) * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * pixels * channels + offset
            g = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
            dot = tl.load(dots + at, mask=here, other=0.0).to(tl.float32)
            times = _k_or_one(k, n, p, images, pixels, K)
            value = dot * times
            z = value * factor
            if ACTIVATION == 2:
                for_slope += tl.where(z > 0, 0.0, g * z)
            g *= _activation_slope(z, steep, ACTIVATION)
            for_gamma += g * value
            g *= factor
            if K:
                _add_channels(g * dot, for_k, n, p, images, pixels, channels, BLOCK_C)
                g *= times
            tl.store(grad_dots + at, g.to(grad_dots.dtype.element_ty), mask=here)
    _store_rescale_sums(
        for_gamma, for_slope, channel, rows_of, columns, sums, spatial_sums, dense,
        p, c, offset, inside, row, rows, pixels, channels, width, KIND, ACTIVATION, BLOCK_C,
    )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_backward_sums_kernel(
    grad_signs, mask_bits, sign_bits, grad_sizes, source, channel, rows_of, columns, slope, k,
    mean, inverse_std, partial, images, pixels, channels, width, groups_each, rows,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr, SIZES: tl.constexpr, MASK: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums per channel of g and g * xhat, with g = grad_signs * [|u| <= 1], sign's gradient, and with SIZES
    sign(u) * grad_sizes[n, pixel], the gradient of |u|, beside it. Without MASK g is grad_signs itself."""
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    center = _channel(mean, c, channels)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    product = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    size = pixels * channels
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        if MASK:
            mask = _byte_of(mask_bits, group, size, offset, inside, images)
        if SIZES:
            positive = _byte_of(sign_bits, group, size, offset, inside, images)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * size + offset
            g = tl.load(grad_signs + at, mask=here, other=0.0).to(tl.float32)
            if MASK:
                g = tl.where(((mask >> j) & 1) != 0, g, 0.0)
            if SIZES:
                slant = _at_pixels(grad_sizes, n, p, images, pixels)
                g += tl.where(((positive >> j) & 1) != 0, slant, -slant)
            value = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
            if K:
                value *= _at_pixels(k, n, p, images, pixels)
            total += g
            product += g * (_activate(value * factor, steep, ACTIVATION) - center)
    products = tl.sum(product, 0) * tl.load(inverse_std + c, mask=c < channels, other=0.0)
    tl.store(partial + row * channels + c, tl.sum(total, 0), mask=c < channels)
    tl.store(partial + (rows + row) * channels + c, products, mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_backward_kernel(
    grad_signs, mask_bits, sign_bits, grad_sizes, source, channel, rows_of, columns, slope, k,
    mean, inverse_std, weight, sums, skip, pooled_skip, out, rescale_sums, spatial_sums, dense, for_k,
    images, pixels, channels, width, groups_each, rows, count,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr, SIZES: tl.constexpr, MASK: tl.constexpr,
    SKIP: tl.constexpr, POOLED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient through sign, batch norm and, where the source is dot products, activation and Gamma.

    g_v = weight * inverse_std * (g - sum(g)/count - xhat * sum(g xhat)/count), plus what other readers of the
    same tensor bring: `skip` from a plain shortcut, `pooled_skip` from a 2x2 average pooling. `out` may be
    `grad_signs` itself: each element is read before it is written.
    """
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    center = _channel(mean, c, channels)
    inverse = _channel(inverse_std, c, channels)
    multiplier = inverse * _channel(weight, c, channels)
    mean_g = _channel(sums, c, channels) / count
    mean_gx = _channel(sums + channels, c, channels) * inverse / count
    for_gamma = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for_slope = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    size = pixels * channels
    quarter = ((p // width // 2) * (width // 2) + p % width // 2)[:, None] * channels + c[None, :]
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        if MASK:
            mask = _byte_of(mask_bits, group, size, offset, inside, images)
        if SIZES:
            positive = _byte_of(sign_bits, group, size, offset, inside, images)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * size + offset
            g = tl.load(grad_signs + at, mask=here, other=0.0).to(tl.float32)
            if MASK:
                g = tl.where(((mask >> j) & 1) != 0, g, 0.0)
            if SIZES:
                slant = _at_pixels(grad_sizes, n, p, images, pixels)
                g += tl.where(((positive >> j) & 1) != 0, slant, -slant)
            dot = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
            times = _k_or_one(k, n, p, images, pixels, K)
            value = dot * times
            v = _activate(value * factor, steep, ACTIVATION)
            g = multiplier * (g - mean_g - (v - center) * mean_gx)
            if SKIP:
                g += tl.load(skip + at, mask=here, other=0.0).to(tl.float32)
            if POOLED:
                at_pooled = n.to(tl.int64) * (size // 4) + quarter
                g += tl.load(pooled_skip + at_pooled, mask=here, other=0.0).to(tl.float32) * 0.25
            if KIND > 0:
                z = value * factor
                if ACTIVATION == 2:
                    for_slope += tl.where(here & (z <= 0), g * z, 0.0)
                g *= _activation_slope(z, steep, ACTIVATION)
                for_gamma += g * value
                g *= factor
            if K:
                _add_channels(g * dot, for_k, n, p, images, pixels, channels, BLOCK_C)
                g *= times
            tl.store(out + at, g.to(out.dtype.element_ty), mask=here)
    if KIND > 0:
        _store_rescale_sums(
            for_gamma, for_slope, channel, rows_of, columns, rescale_sums, spatial_sums, dense,
            p, c, offset, inside, row, rows, pixels, channels, width, KIND, ACTIVATION, BLOCK_C,
        )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def mask_kernel(
    grad, other, mask_bits, skip, skip_bits, out,
    images, pixels, channels, width, groups_each,
    OTHER: tl.constexpr, MASK: tl.constexpr, SKIP: tl.constexpr, SKIP_MASK: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient through a sign, or through a ReLU, that no batch norm precedes: (grad + other) where the
    mask is set, and `skip` from a shortcut, which has a mask of its own. `out` may be `grad` itself."""
    _p, _c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    size = pixels * channels
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        if MASK:
            mask = _byte_of(mask_bits, group, size, offset, inside, images)
        if SKIP_MASK:
            skip_mask = _byte_of(skip_bits, group, size, offset, inside, images)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * size + offset
            g = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
            if OTHER:
                g += tl.load(other + at, mask=here, other=0.0).to(tl.float32)
            if MASK:
                g = tl.where(((mask >> j) & 1) != 0, g, 0.0)
            if SKIP:
                s = tl.load(skip + at, mask=here, other=0.0).to(tl.float32)
                if SKIP_MASK:
                    s = tl.where(((skip_mask >> j) & 1) != 0, s, 0.0)
                g += s
            tl.store(out + at, g.to(out.dtype.element_ty), mask=here)
