"""Triton kernels for the end of a real stem: batch norm, activation and max pooling in one pass each way.
 Layout and names as in `triton_kernels`: source (N, H*W, C) is the convolution's output, v; z = weight * xhat
+ bias the batch norm's; pooled = max over the window of act(z). `taps` holds a byte an output: which of the
window's positions, counted row by row, had the maximum (the first of equals, as PyTorch).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from xnorpp.nn.triton_kernels import _activate, _activation_slope, _channel

UNSPECIALIZED = ["images", "height", "width", "out_height", "out_width", "images_each", "rows"]


@triton.jit
def _pixel_tile(pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Pixel and channel numbers of this program's tile."""
    tiles_c = tl.cdiv(channels, BLOCK_C)
    tile = tl.program_id(0)
    p = (tile // tiles_c) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = (tile % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)
    return p, c


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_pool_kernel(
    source, slope, mean, inverse_std, weight, bias, pooled, taps,
    height, width, out_height, out_width, channels,
    ACTIVATION: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """pooled and taps of one image's tile."""
    out_pixels = out_height * out_width
    p, c = _pixel_tile(out_pixels, channels, BLOCK_P, BLOCK_C)
    inside = (p[:, None] < out_pixels) & (c[None, :] < channels)
    center = _channel(mean, c, channels)
    multiplier = _channel(inverse_std, c, channels) * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    n = tl.program_id(1).to(tl.int64)
    image = source + n * height * width * channels
    top = (p // out_width) * STRIDE - PADDING
    left = (p % out_width) * STRIDE - PADDING
    best = tl.full([BLOCK_P, BLOCK_C], float("-inf"), tl.float32)
    tap = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
    for k in tl.static_range(KERNEL * KERNEL):
        h = top + k // KERNEL
        w = left + k % KERNEL
        valid = (h >= 0) & (h < height) & (w >= 0) & (w < width)
        here = inside & valid[:, None]
        v = tl.load(image + (h * width + w)[:, None] * channels + c[None, :], mask=here, other=0.0).to(
            tl.float32
        )
        value = _activate((v - center) * multiplier + add, 1.0, steep, False, ACTIVATION)
        better = here & (value > best)
        best = tl.where(better, value, best)
        tap = tl.where(better, k, tap)
    at = n * out_pixels * channels + p[:, None] * channels + c[None, :]
    tl.store(pooled + at, best.to(pooled.dtype.element_ty), mask=inside)
    tl.store(taps + at, tap.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_pool_sums_kernel(
    grad, taps, source, slope, mean, inverse_std, weight, bias, partial,
    images, height, width, out_height, out_width, channels, images_each, rows,
    ACTIVATION: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Partial sums a channel of g, g * xhat and, for the slope, grad * z where z <= 0; g = grad * act'(z).

    Only the window's winner receives a gradient, so the sums run over the outputs and look its v up.
    """
    out_pixels = out_height * out_width
    p, c = _pixel_tile(out_pixels, channels, BLOCK_P, BLOCK_C)
    inside = (p[:, None] < out_pixels) & (c[None, :] < channels)
    center = _channel(mean, c, channels)
    inverse = _channel(inverse_std, c, channels)
    multiplier = inverse * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    top = ((p // out_width) * STRIDE - PADDING)[:, None]
    left = ((p % out_width) * STRIDE - PADDING)[:, None]
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    product = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for_slope = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * images_each
    for step in range(images_each):
        n = first + step
        here = inside & (n < images)
        at = n.to(tl.int64) * out_pixels * channels + p[:, None] * channels + c[None, :]
        g = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
        tap = tl.load(taps + at, mask=here, other=0).to(tl.int32)
        place = (top + tap // KERNEL) * width + left + tap % KERNEL
        image = source + n.to(tl.int64) * height * width * channels
        v = tl.load(image + place * channels + c[None, :], mask=here, other=0.0).to(tl.float32)
        z = (v - center) * multiplier + add
        if ACTIVATION == 2:
            for_slope += tl.where(z > 0, 0.0, g * z)
        g *= _activation_slope(z, steep, ACTIVATION)
        total += g
        product += g * (v - center) * inverse
    row = (
        tl.program_id(1) * tl.cdiv(out_pixels, BLOCK_P) + tl.program_id(0) // tl.cdiv(channels, BLOCK_C)
    ) * channels
    tl.store(partial + row + c, tl.sum(total, 0), mask=c < channels)
    tl.store(partial + rows * channels + row + c, tl.sum(product, 0), mask=c < channels)
    if ACTIVATION == 2:
        tl.store(partial + 2 * rows * channels + row + c, tl.sum(for_slope, 0), mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_pool_backward_kernel(
    grad, taps, source, slope, mean, inverse_std, weight, bias, sums, out,
    height, width, out_height, out_width, channels, count,
    ACTIVATION: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    REACH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of the convolution's output: each pixel asks the windows it lies in (REACH a side) for
    theirs."""
    pixels = height * width
    p, c = _pixel_tile(pixels, channels, BLOCK_P, BLOCK_C)
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    center = _channel(mean, c, channels)
    inverse = _channel(inverse_std, c, channels)
    multiplier = inverse * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    mean_g = _channel(sums, c, channels) / count
    mean_gx = _channel(sums + channels, c, channels) * inverse / count
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    n = tl.program_id(1).to(tl.int64)
    start = n * out_height * out_width * channels
    at = n * pixels * channels + p[:, None] * channels + c[None, :]
    h = p // width + PADDING
    w = p % width + PADDING
    g = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for a in tl.static_range(REACH):
        for b in tl.static_range(REACH):
            oh = h // STRIDE - a
            ow = w // STRIDE - b
            dh = h - oh * STRIDE
            dw = w - ow * STRIDE
            valid = (
                (oh >= 0) & (oh < out_height) & (dh < KERNEL) & (ow >= 0) & (ow < out_width) & (dw < KERNEL)
            )
            here = inside & valid[:, None]
            place = start + (oh * out_width + ow)[:, None] * channels + c[None, :]
            tap = tl.load(taps + place, mask=here, other=255).to(tl.int32)
            value = tl.load(grad + place, mask=here, other=0.0).to(tl.float32)
            g += tl.where(here & (tap == (dh * KERNEL + dw)[:, None]), value, 0.0)
    v = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    z = (v - center) * multiplier + add
    g *= _activation_slope(z, steep, ACTIVATION)
    g = multiplier * (g - mean_g - (v - center) * mean_gx)
    tl.store(out + at, g.to(out.dtype.element_ty), mask=inside)
