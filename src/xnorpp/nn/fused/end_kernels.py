"""Triton kernels around pooling (the end of a real stem, the average before a shortcut, the network's head),
and the one that closes a post-activation block: batch norm, shortcut and ReLU in one pass.

Layout and names as in `kernels`. For the stem, v is the convolution's output, z = weight * xhat + bias
the batch norm's, pooled = max over 3x3 windows (stride 2, padding 1) of act(z). `taps` holds one byte per
output: which of the window's positions, counted row by row, had the maximum (the first of equals, as
PyTorch); `peaks` holds v there.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from xnorpp.nn.fused.kernels import UNSPECIALIZED as TILED
from xnorpp.nn.fused.kernels import (
    _activate,
    _activation_slope,
    _at_pixels,
    _channel,
    _gamma,
    _store_moments,
    _tile,
)

UNSPECIALIZED = ["images", "height", "width", "out_height", "out_width", "images_each", "rows", "pixels"]


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_pool_kernel(
    source, slope, mean, inverse_std, weight, bias, pooled, peaks, taps, partial,
    images, height, width, out_height, out_width, channels, images_each, rows,
    ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """pooled, peaks and taps, and the moments of `pooled` for the batch norm that reads it next."""
    pixels = out_height * out_width
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    center = _channel(mean, c, channels)
    scale = _channel(weight, c, channels)
    multiplier = _channel(inverse_std, c, channels) * scale
    add = _channel(bias, c, channels)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    shift = _activate(add + tl.abs(scale), steep, ACTIVATION)  # about the mean of a maximum of normal values
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    top = (p // out_width) * 2 - 1
    left = (p % out_width) * 2 - 1
    first = tl.program_id(1) * images_each
    for step in range(images_each):
        n = first + step
        image = source + n.to(tl.int64) * height * width * channels
        best = tl.full([BLOCK_P, BLOCK_C], float("-inf"), tl.float32)
        peak = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
        tap = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
        for k in tl.static_range(9):
            h = top + k // 3
            w = left + k % 3
            valid = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            here = inside & valid[:, None] & (n < images)
            v = tl.load(image + (h * width + w)[:, None] * channels + c[None, :], mask=here, other=0.0)
            v = v.to(tl.float32)
            value = _activate((v - center) * multiplier + add, steep, ACTIVATION)
            better = here & (value > best)
            best = tl.where(better, value, best)
            peak = tl.where(better, v, peak)
            tap = tl.where(better, k, tap)
        here = inside & (n < images)
        at = n.to(tl.int64) * pixels * channels + offset
        rounded = best.to(pooled.dtype.element_ty)
        tl.store(pooled + at, rounded, mask=here)
        tl.store(peaks + at, peak.to(peaks.dtype.element_ty), mask=here)
        tl.store(taps + at, tap.to(tl.uint8), mask=here)
        d = tl.where(here, rounded.to(tl.float32) - shift, 0.0)
        total += d
        square += d * d
    _store_moments(partial, shift, total, square, row, rows, c, channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_activation_sums_kernel(
    grad, source, slope, mean, inverse_std, weight, bias, partial, slope_partial,
    images, pixels, channels, images_each, rows, grad_scale,
    ACTIVATION: tl.constexpr, PER_IMAGE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums per channel of g, g * xhat and, for the slope, grad * z where z <= 0; g = grad * act'(z).

    `source` is v where the gradient arrives: every pixel, or a window's winner. With PER_IMAGE the gradient
    is one value per image and channel, the same for all pixels.
    """
    _p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    center = _channel(mean, c, channels)
    inverse = _channel(inverse_std, c, channels)
    multiplier = inverse * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    product = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for_slope = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * images_each
    for step in range(images_each):
        n = first + step
        here = inside & (n < images)
        at = n.to(tl.int64) * pixels * channels + offset
        if PER_IMAGE:
            g = tl.load(grad + n * channels + c[None, :] + tl.zeros_like(offset), mask=here, other=0.0)
        else:
            g = tl.load(grad + at, mask=here, other=0.0)
        g = g.to(tl.float32) * grad_scale
        v = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
        z = (v - center) * multiplier + add
        if ACTIVATION == 2:
            for_slope += tl.where(z > 0, 0.0, g * z)
        g *= _activation_slope(z, steep, ACTIVATION)
        total += g
        product += g * (v - center)
    products = tl.sum(product, 0) * tl.load(inverse_std + c, mask=c < channels, other=0.0)
    tl.store(partial + row * channels + c, tl.sum(total, 0), mask=c < channels)
    tl.store(partial + (rows + row) * channels + c, products, mask=c < channels)
    if ACTIVATION == 2:
        tl.store(slope_partial + (rows + row) * channels + c, tl.sum(for_slope, 0), mask=c < channels)


@triton.jit
def _norm_gradient(v, g, center, multiplier, add, mean_g, mean_gx, steep, ACTIVATION: tl.constexpr):
    g *= _activation_slope((v - center) * multiplier + add, steep, ACTIVATION)
    return multiplier * (g - mean_g - (v - center) * mean_gx)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_pool_backward_kernel(
    grad, taps, source, slope, mean, inverse_std, weight, bias, sums, out,
    height, width, out_height, out_width, channels, count,
    ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of the stem convolution's output, four pixels at a time.

    The pixels (2k, 2m) to (2k+1, 2m+1) lie in the windows (k, m) to (k+1, m+1) and no others, so four
    gradients and four taps serve four pixels.
    """
    out_pixels = out_height * out_width
    p, c, offset, inside, _row = _tile(out_pixels, channels, BLOCK_P, BLOCK_C)
    center = _channel(mean, c, channels)
    inverse = _channel(inverse_std, c, channels)
    multiplier = inverse * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    mean_g = _channel(sums, c, channels) / count
    mean_gx = _channel(sums + channels, c, channels) * inverse / count
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    k = p // out_width
    m = p % out_width
    n = tl.program_id(1).to(tl.int64)
    at = n * out_pixels * channels + offset
    right = inside & (m + 1 < out_width)[:, None]
    below = inside & (k + 1 < out_height)[:, None]
    both = right & below
    down = out_width * channels
    tap_a = tl.load(taps + at, mask=inside, other=255).to(tl.int32)
    tap_b = tl.load(taps + at + channels, mask=right, other=255).to(tl.int32)
    tap_c = tl.load(taps + at + down, mask=below, other=255).to(tl.int32)
    tap_d = tl.load(taps + at + down + channels, mask=both, other=255).to(tl.int32)
    grad_a = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    grad_b = tl.load(grad + at + channels, mask=right, other=0.0).to(tl.float32)
    grad_c = tl.load(grad + at + down, mask=below, other=0.0).to(tl.float32)
    grad_d = tl.load(grad + at + down + channels, mask=both, other=0.0).to(tl.float32)
    zero = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    corner = n * height * width * channels + ((2 * k) * width + 2 * m)[:, None] * channels + c[None, :]
    for quadrant in tl.static_range(4):
        dy = quadrant // 2
        dx = quadrant % 2
        here = inside & ((2 * k + dy < height) & (2 * m + dx < width))[:, None]
        place = corner + (dy * width + dx) * channels
        if quadrant == 0:
            g = tl.where(tap_a == 4, grad_a, zero)
        elif quadrant == 1:
            g = tl.where(tap_a == 5, grad_a, zero) + tl.where(tap_b == 3, grad_b, zero)
        elif quadrant == 2:
            g = tl.where(tap_a == 7, grad_a, zero) + tl.where(tap_c == 1, grad_c, zero)
        else:
            g = tl.where(tap_a == 8, grad_a, zero) + tl.where(tap_b == 6, grad_b, zero)
            g += tl.where(tap_c == 2, grad_c, zero) + tl.where(tap_d == 0, grad_d, zero)
        v = tl.load(source + place, mask=here, other=0.0).to(tl.float32)
        g = _norm_gradient(v, g, center, multiplier, add, mean_g, mean_gx, steep, ACTIVATION)
        tl.store(out + place, g.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def average_pool_kernel(
    x, pooled, partial, images, height, width, channels, images_each, rows,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The mean of 2x2 pixels (height and width even), and its moments for the batch norm after it."""
    out_width = width // 2
    pixels = (height // 2) * out_width
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    corner = ((p // out_width) * 2 * width + (p % out_width) * 2)[:, None] * channels + c[None, :]
    down = width * channels
    shift = _channel(x, c, channels)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * images_each
    for step in range(images_each):
        n = first + step
        here = inside & (n < images)
        image = x + n.to(tl.int64) * (pixels * 4) * channels + corner
        v = tl.load(image, mask=here, other=0.0).to(tl.float32)
        v += tl.load(image + channels, mask=here, other=0.0).to(tl.float32)
        v += tl.load(image + down, mask=here, other=0.0).to(tl.float32)
        v += tl.load(image + down + channels, mask=here, other=0.0).to(tl.float32)
        v *= 0.25
        tl.store(pooled + n.to(tl.int64) * pixels * channels + offset, v, mask=here)
        d = tl.where(here, v - shift, 0.0)
        total += d
        square += d * d
    _store_moments(partial, shift, total, square, row, rows, c, channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_mean_kernel(
    source, slope, mean, inverse_std, weight, bias, out, images, pixels, channels,
    ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[n, c] = the mean over all pixels of act(batch norm); a program owns one image's channels."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(1)
    center = _channel(mean, c, channels)
    multiplier = _channel(inverse_std, c, channels) * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, pixels, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        here = (p[:, None] < pixels) & (c[None, :] < channels)
        at = n.to(tl.int64) * pixels * channels + p[:, None] * channels + c[None, :]
        v = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
        total += tl.where(here, _activate((v - center) * multiplier + add, steep, ACTIVATION), 0.0)
    value = tl.sum(total, 0) / pixels
    tl.store(out + n * channels + c, value.to(out.dtype.element_ty), mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_mean_backward_kernel(
    grad, source, slope, mean, inverse_std, weight, bias, sums, out,
    images, pixels, channels, images_each, count, grad_scale,
    ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of `norm_mean_kernel` for its input."""
    _p, c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    center = _channel(mean, c, channels)
    inverse = _channel(inverse_std, c, channels)
    multiplier = inverse * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    mean_g = _channel(sums, c, channels) / count
    mean_gx = _channel(sums + channels, c, channels) * inverse / count
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    first = tl.program_id(1) * images_each
    for step in range(images_each):
        n = first + step
        here = inside & (n < images)
        at = n.to(tl.int64) * pixels * channels + offset
        v = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
        g = tl.load(grad + n * channels + c[None, :] + tl.zeros_like(offset), mask=here, other=0.0)
        g = g.to(tl.float32) * grad_scale
        g = _norm_gradient(v, g, center, multiplier, add, mean_g, mean_gx, steep, ACTIVATION)
        tl.store(out + at, g.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width", "sn", "sc", "sh", "sw"])
def space_to_depth_kernel(
    x, out, height, width, out_height, out_width, sn, sc, sh, sw,
    CHANNELS: tl.constexpr, DEPTH: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """out[n, i, j, (dy, dx, c)] = x[n, c, 2(i-2)+dy, 2(j-2)+dx], zero outside the image and in the channels
    that fill up to DEPTH."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, DEPTH)
    y = ((p // out_width) * 2 - 4)[:, None] + (d // CHANNELS // 2)[None, :]
    z = ((p % out_width) * 2 - 4)[:, None] + (d // CHANNELS % 2)[None, :]
    exists = (p[:, None] < out_height * out_width) & (d[None, :] < 4 * CHANNELS)
    image = exists & (y >= 0) & (y < height) & (z >= 0) & (z < width)
    value = tl.load(x + n * sn + (d % CHANNELS)[None, :] * sc + y * sh + z * sw, mask=image, other=0.0)
    at = (n * out_height * out_width + p[:, None]) * DEPTH + d[None, :]
    inside = (p[:, None] < out_height * out_width) & (d[None, :] < DEPTH)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=TILED)
def close_kernel(
    source, channel, rows_of, columns, slope, k, mean, inverse_std, weight, bias,
    side, side_channel, side_rows, side_columns, side_k, side_mean, side_inverse, side_weight, side_bias,
    out, signs, positive_bits, clip_bits, images, pixels, channels, width, groups_each,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr,
    SIDE: tl.constexpr, SIDE_K: tl.constexpr, SIDE_NORM: tl.constexpr, RELU: tl.constexpr,
    SIGNS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The end of a post-activation block: out = relu(u + side), u the batch norm of v.

    SIDE is -1 for nothing, else the KIND of `side`: a real shortcut, or dot products with their own Gamma and
    batch norm. One bit out > 0 is stored, for the ReLU's gradient and for the sign that reads `out` next;
    with SIGNS also that sign itself and the bits of its clip mask. Its backward pass is that of a batch norm
    before a sign: the bits where the output is positive take the place of sign's clip mask
    (`backward_kernels.norm_backward_kernel`).
    """
    p, c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    center = _channel(mean, c, channels)
    multiplier = _channel(inverse_std, c, channels) * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    if SIDE > 0:
        side_factor = _gamma(side_channel, side_rows, side_columns, p, c, pixels, channels, width, SIDE)
    if SIDE_NORM:
        side_center = _channel(side_mean, c, channels)
        side_multiplier = _channel(side_inverse, c, channels) * _channel(side_weight, c, channels)
        add += _channel(side_bias, c, channels)
    size = pixels * channels
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        positive_byte = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
        clip_byte = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * size + offset
            value = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
            if K:
                value *= _at_pixels(k, n, p, images, pixels)
            u = (_activate(value * factor, steep, ACTIVATION) - center) * multiplier + add
            if SIDE >= 0:
                beside = tl.load(side + at, mask=here, other=0.0).to(tl.float32)
                if SIDE_K:
                    beside *= _at_pixels(side_k, n, p, images, pixels)
                if SIDE > 0:
                    beside *= side_factor
                if SIDE_NORM:
                    beside = (beside - side_center) * side_multiplier
                u += beside
            if RELU:
                u = tl.maximum(u, 0.0)
            rounded = u.to(out.dtype.element_ty)
            tl.store(out + at, rounded, mask=here)
            read = rounded.to(tl.float32)
            positive = read > 0
            positive_byte |= positive.to(tl.int32) << j
            if SIGNS:
                tl.store(signs + at, tl.where(positive, 1.0, -1.0).to(signs.dtype.element_ty), mask=here)
                clip_byte |= (tl.abs(read) <= 1.0).to(tl.int32) << j
        base = group.to(tl.int64) * size
        here = inside & (group * 8 < images)
        tl.store(positive_bits + base + offset, positive_byte.to(tl.uint8), mask=here)
        if SIGNS:
            tl.store(clip_bits + base + offset, clip_byte.to(tl.uint8), mask=here)
