"""Triton kernels of the fused training step. Only `fused.py` imports this module, and only where Triton is
present.
 Every activation is a channels_last tensor read as a matrix of (image, pixel, channel) with the channel
fastest. A program owns one tile of pixels by channels and walks over images, eight at a time, so that

- what belongs to a pixel or a channel (Gamma, batch-norm constants) is loaded once and kept in registers,
- sums over images need no communication, and one bit of each of eight images makes a byte: bit j of `bits[n
  // 8, pixel, channel]` belongs to image 8 * (n // 8) + j, one elementwise expression without any shuffle.
 Names: `source` is what feeds a batch norm, either a real tensor x or the integer dot products of the
convolution before it; in the second case (`SCALED`) the batch norm's input is v = act(Gamma * dot),
recomputed wherever it is needed and never written (a layer without a scale has Gamma = 1). u = weight * xhat
+ bias with xhat = (v - mean) * inverse_std is the batch norm's output.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

# What follows the scale: nothing, max(z, 0), or z where positive and slope[c] * z elsewhere.
IDENTITY = tl.constexpr(0)
RELU = tl.constexpr(1)
PRELU = tl.constexpr(2)


# Sizes whose divisibility decides nothing: one compilation serves them all. Only `channels` decides how wide
# loads are.
UNSPECIALIZED = ["images", "pixels", "groups_each", "rows", "parts", "width"]


@triton.jit
def _tile(pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Channels, offsets inside an image, which of them exist, and this program's row of channel sums."""
    tiles_c = tl.cdiv(channels, BLOCK_C)
    tile = tl.program_id(0)
    p = (tile // tiles_c) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = (tile % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    row = tl.program_id(1) * tl.cdiv(pixels, BLOCK_P) + tile // tiles_c
    return c, p[:, None] * channels + c[None, :], inside, row


@triton.jit
def _channel(pointer, c, channels):
    """One float a channel, shaped to broadcast over the pixels of a tile."""
    return tl.load(pointer + c, mask=c < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _activate(value, gamma, slope, SCALED: tl.constexpr, ACTIVATION: tl.constexpr):
    """v = act(Gamma * dot), or the value itself when the source is a real tensor."""
    z = value
    if SCALED:
        z = value * gamma
    if ACTIVATION == 1:
        z = tl.maximum(z, 0.0)
    if ACTIVATION == 2:
        z = tl.where(z > 0, z, z * slope)
    return z


@triton.jit
def _activation_slope(z, slope, ACTIVATION: tl.constexpr):
    """act'(z), with act'(0) as PyTorch defines it: 0 for ReLU, the slope for PReLU."""
    one = tl.full(z.shape, 1.0, tl.float32)
    if ACTIVATION == 1:
        one = tl.where(z > 0, 1.0, 0.0)
    if ACTIVATION == 2:
        one = tl.where(z > 0, 1.0, slope)
    return one


@triton.jit(do_not_specialize=UNSPECIALIZED)
def moments_kernel(
    source, gamma, slope, partial, images, pixels, channels, groups_each, rows,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Partial sums of (v - k) and (v - k)^2 a channel; k, the channel's first value, keeps the variance
    accurate."""
    c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor, steep, first_factor = 1.0, 1.0, 1.0
    if SCALED:
        factor = tl.load(gamma + offset, mask=inside, other=0.0)
        first_factor = _channel(gamma, c, channels)
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    shift = _activate(_channel(source, c, channels), first_factor, steep, SCALED, ACTIVATION)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            value = tl.load(source + n.to(tl.int64) * pixels * channels + offset, mask=here, other=0.0).to(
                tl.float32
            )
            d = tl.where(here, _activate(value, factor, steep, SCALED, ACTIVATION) - shift, 0.0)
            total += d
            square += d * d
    tl.store(partial + row * channels + c, tl.sum(total, 0), mask=c < channels)
    tl.store(partial + (rows + row) * channels + c, tl.sum(square, 0), mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def batch_statistics_kernel(
    partial, source, gamma, slope, mean, inverse_std, running_mean, running_var, batches,
    rows, channels, count, eps, momentum,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, TRACKED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps) from the partial sums, and the running statistics as
    nn.BatchNorm2d's."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for start in range(0, rows, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        here = (r[:, None] < rows) & (c[None, :] < channels)
        offset = r[:, None] * channels + c[None, :]
        total += tl.load(partial + offset, mask=here, other=0.0)
        square += tl.load(partial + rows * channels + offset, mask=here, other=0.0)
    first_factor, steep = 1.0, 1.0
    if SCALED:
        first_factor = tl.load(gamma + c, mask=c < channels, other=0.0)
    if ACTIVATION == 2:
        steep = tl.load(slope + c, mask=c < channels, other=0.0)
    value = tl.load(source + c, mask=c < channels, other=0.0).to(tl.float32)
    shift = _activate(value, first_factor, steep, SCALED, ACTIVATION)
    d = tl.sum(total, 0) / count
    variance = tl.maximum(tl.sum(square, 0) / count - d * d, 0.0)
    center = shift + d
    tl.store(mean + c, center, mask=c < channels)
    tl.store(inverse_std + c, 1.0 / tl.sqrt(variance + eps), mask=c < channels)
    if TRACKED:
        old_mean = tl.load(running_mean + c, mask=c < channels, other=0.0)
        old_var = tl.load(running_var + c, mask=c < channels, other=0.0)
        unbiased = variance * (count / (count - 1.0))
        tl.store(running_mean + c, old_mean + momentum * (center - old_mean), mask=c < channels)
        tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=c < channels)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def normalize_sign_kernel(
    source, gamma, slope, mean, inverse_std, weight, bias, signs, sign_bits, mask_bits,
    images, pixels, channels, groups_each,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """sign(u) for the convolution, and for the backward pass one bit u > 0 and one bit |u| <= 1."""
    c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor, steep = 1.0, 1.0
    if SCALED:
        factor = tl.load(gamma + offset, mask=inside, other=0.0)
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    center = _channel(mean, c, channels)
    multiplier = _channel(inverse_std, c, channels) * _channel(weight, c, channels)
    add = _channel(bias, c, channels)
    size = pixels * channels
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        sign_byte = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
        mask_byte = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            base = n.to(tl.int64) * size
            value = tl.load(source + base + offset, mask=here, other=0.0).to(tl.float32)
            u = (_activate(value, factor, steep, SCALED, ACTIVATION) - center) * multiplier + add
            positive = u > 0
            tl.store(
                signs + base + offset, tl.where(positive, 1.0, -1.0).to(signs.dtype.element_ty), mask=here
            )
            sign_byte |= positive.to(tl.int32) << j
            mask_byte |= (tl.abs(u) <= 1.0).to(tl.int32) << j
        base = group.to(tl.int64) * size
        here = inside & (group * 8 < images)
        tl.store(sign_bits + base + offset, sign_byte.to(tl.uint8), mask=here)
        tl.store(mask_bits + base + offset, mask_byte.to(tl.uint8), mask=here)


@triton.jit(do_not_specialize=["images"])
def unpack_signs_kernel(sign_bits, signs, images, size, BLOCK: tl.constexpr):
    """+1 and -1 again from the sign bits, when the backward pass wants the convolution's input."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < size
    group = tl.program_id(1)
    byte = tl.load(sign_bits + group.to(tl.int64) * size + offset, mask=inside, other=0).to(tl.int32)
    for j in tl.static_range(8):
        n = group * 8 + j
        value = (((byte >> j) & 1) * 2 - 1).to(tl.float32)
        tl.store(
            signs + n.to(tl.int64) * size + offset,
            value.to(signs.dtype.element_ty),
            mask=inside & (n < images),
        )


@triton.jit(do_not_specialize=UNSPECIALIZED)
def finish_kernel(
    dots, gamma, slope, shortcut, out, images, pixels, channels, groups_each,
    ACTIVATION: tl.constexpr, SHORTCUT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out = act(Gamma * dot) + shortcut."""
    c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    steep = 1.0
    factor = tl.load(gamma + offset, mask=inside, other=0.0)
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * pixels * channels + offset
            v = _activate(
                tl.load(dots + at, mask=here, other=0.0).to(tl.float32), factor, steep, True, ACTIVATION
            )
            if SHORTCUT:
                v += tl.load(shortcut + at, mask=here, other=0.0).to(tl.float32)
            tl.store(out + at, v.to(out.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def finish_backward_kernel(
    grad, dots, gamma, slope, grad_dots, grad_gamma, grad_slope, images, pixels, channels, groups_each,
    ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of `finish_kernel`: for the dots, and summed over these images for Gamma and the slope."""
    c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    steep = 1.0
    factor = tl.load(gamma + offset, mask=inside, other=0.0)
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    for_gamma = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for_slope = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * pixels * channels + offset
            g = tl.load(grad + at, mask=here, other=0.0).to(tl.float32)
            dot = tl.load(dots + at, mask=here, other=0.0).to(tl.float32)
            z = dot * factor
            if ACTIVATION == 2:
                for_slope += tl.where(z > 0, 0.0, g * z)
            g *= _activation_slope(z, steep, ACTIVATION)
            for_gamma += g * dot
            tl.store(grad_dots + at, (g * factor).to(grad_dots.dtype.element_ty), mask=here)
    part = tl.program_id(1).to(tl.int64) * pixels * channels
    tl.store(grad_gamma + part + offset, for_gamma, mask=inside)
    if ACTIVATION == 2:
        tl.store(grad_slope + row * channels + c, tl.sum(for_slope, 0), mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_backward_sums_kernel(
    grad_signs, mask_bits, source, gamma, slope, mean, inverse_std, partial,
    images, pixels, channels, groups_each, rows,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Partial sums a channel of g and g * xhat, with g = grad_signs * [|u| <= 1], sign's straight-through
    gradient."""
    c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor, steep = 1.0, 1.0
    if SCALED:
        factor = tl.load(gamma + offset, mask=inside, other=0.0)
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    center = _channel(mean, c, channels)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    product = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    size = pixels * channels
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        mask = tl.load(
            mask_bits + group.to(tl.int64) * size + offset, mask=inside & (group * 8 < images), other=0
        ).to(tl.int32)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * size + offset
            g = tl.load(grad_signs + at, mask=here, other=0.0).to(tl.float32)
            g = tl.where(((mask >> j) & 1) != 0, g, 0.0)
            value = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
            total += g
            product += g * (_activate(value, factor, steep, SCALED, ACTIVATION) - center)
    products = tl.sum(product, 0) * tl.load(inverse_std + c, mask=c < channels, other=0.0)
    tl.store(partial + row * channels + c, tl.sum(total, 0), mask=c < channels)
    tl.store(partial + (rows + row) * channels + c, products, mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def norm_backward_kernel(
    grad_signs, mask_bits, source, gamma, slope, mean, inverse_std, weight, sums, skip,
    out, grad_gamma, grad_slope, images, pixels, channels, groups_each, count,
    SCALED: tl.constexpr, ACTIVATION: tl.constexpr, SKIP: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient through sign, batch norm and, where the source is dot products, activation and Gamma.

    g_v = weight * inverse_std * (g - sum(g)/count - xhat * sum(g xhat)/count), plus `skip`, the gradient that
    the shortcut brings to the same tensor. `out` may be `grad_signs` itself: each element is read before it
    is written.
    """
    c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor, steep = 1.0, 1.0
    if SCALED:
        factor = tl.load(gamma + offset, mask=inside, other=0.0)
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
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        group = first + step
        mask = tl.load(
            mask_bits + group.to(tl.int64) * size + offset, mask=inside & (group * 8 < images), other=0
        ).to(tl.int32)
        for j in tl.static_range(8):
            n = group * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * size + offset
            g = tl.load(grad_signs + at, mask=here, other=0.0).to(tl.float32)
            g = tl.where(((mask >> j) & 1) != 0, g, 0.0)
            value = tl.load(source + at, mask=here, other=0.0).to(tl.float32)
            v = _activate(value, factor, steep, SCALED, ACTIVATION)
            g = multiplier * (g - mean_g - (v - center) * mean_gx)
            if SKIP:
                g += tl.load(skip + at, mask=here, other=0.0).to(tl.float32)
            if SCALED:
                z = value * factor
                if ACTIVATION == 2:
                    for_slope += tl.where(here & (z <= 0), g * z, 0.0)
                g *= _activation_slope(z, steep, ACTIVATION)
                for_gamma += g * value
                g *= factor
            tl.store(out + at, g.to(out.dtype.element_ty), mask=here)
    if SCALED:
        at = tl.program_id(1).to(tl.int64) * size + offset
        tl.store(grad_gamma + at, for_gamma, mask=inside)
        if ACTIVATION == 2:
            tl.store(grad_slope + row * channels + c, tl.sum(for_slope, 0), mask=c < channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def expand_scale_kernel(
    channel, rows, columns, gamma, pixels, width, channels,
    SPATIAL: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gamma[p, c] = channel[c], times rows[p // width] * columns[p % width] (SPATIAL 2) or rows[p] (SPATIAL
    1)."""
    c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    value = _channel(channel, c, channels)
    tiles_c = tl.cdiv(channels, BLOCK_C)
    p = (tl.program_id(0) // tiles_c) * BLOCK_P + tl.arange(0, BLOCK_P)
    spatial = tl.full([BLOCK_P], 1.0, tl.float32)
    if SPATIAL == 1:
        spatial = tl.load(rows + p, mask=p < pixels, other=0.0)
    if SPATIAL == 2:
        spatial = tl.load(rows + p // width, mask=p < pixels, other=0.0)
        spatial *= tl.load(columns + p % width, mask=p < pixels, other=0.0)
    tl.store(gamma + offset, value * spatial[:, None], mask=inside)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def scale_gradient_kernel(
    grad_gamma, channel, rows, columns, grad_channel, grad_spatial, parts, pixels, width, channels,
    SPATIAL: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of `expand_scale_kernel`, its input summed over `parts` first: partial sums of
    grad * spatial a channel (row: a tile of pixels), of grad * channel a pixel (row: a tile of channels)."""
    c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    tiles_c = tl.cdiv(channels, BLOCK_C)
    tile = tl.program_id(0)
    p = (tile // tiles_c) * BLOCK_P + tl.arange(0, BLOCK_P)
    g = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for part in range(parts):
        g += tl.load(grad_gamma + part * pixels * channels + offset, mask=inside, other=0.0)
    spatial = tl.full([BLOCK_P], 1.0, tl.float32)
    if SPATIAL == 1:
        spatial = tl.load(rows + p, mask=p < pixels, other=0.0)
    if SPATIAL == 2:
        spatial = tl.load(rows + p // width, mask=p < pixels, other=0.0)
        spatial *= tl.load(columns + p % width, mask=p < pixels, other=0.0)
    tl.store(
        grad_channel + (tile // tiles_c) * channels + c, tl.sum(g * spatial[:, None], 0), mask=c < channels
    )
    if SPATIAL > 0:
        value = _channel(channel, c, channels)
        tl.store(grad_spatial + (tile % tiles_c) * pixels + p, tl.sum(g * value, 1), mask=p < pixels)


@triton.jit
def weight_sign_kernel(weight, signs, size, BLOCK: tl.constexpr):
    """sign(W) in the dtype of `signs`, over W's storage as it lies."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(weight + offset, mask=offset < size, other=0.0)
    tl.store(signs + offset, tl.where(value > 0, 1.0, -1.0).to(signs.dtype.element_ty), mask=offset < size)


@triton.jit
def weight_gradient_kernel(grad_signs, weight, out, size, BLOCK: tl.constexpr):
    """The straight-through gradient of `weight_sign_kernel`: grad where |W| <= 1, else 0."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(weight + offset, mask=offset < size, other=0.0)
    grad = tl.load(grad_signs + offset, mask=offset < size, other=0.0).to(tl.float32)
    tl.store(out + offset, tl.where(tl.abs(value) <= 1.0, grad, 0.0), mask=offset < size)
