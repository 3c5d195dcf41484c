"""Triton kernels of the fused training step: the passes over activations. `ops.py` launches them.

Every activation is a channels_last tensor read as a matrix of (image, pixel, channel) with the channel
fastest. A program owns one tile of pixels by channels and walks over images, eight at a time, so that
- what belongs to a pixel or a channel (Gamma, batch-norm constants) is loaded once and stays in registers,
- sums over images need no communication, and eight images make a byte: bit j of `bits[n // 8, pixel,
  channel]` belongs to image 8 * (n // 8) + j.

Names: `source` is what feeds a batch norm, either a real tensor x (KIND 0) or the integer dot products of the
convolution before it; in the second case the batch norm's input is v = act(Gamma * dot), recomputed wherever
it is needed and never written. u = weight * xhat + bias with xhat = (v - mean) * inverse_std is the batch
norm's output. With XNOR-Net's K (switch K) dot * `k[n, pixel]` takes the place of dot everywhere. Sums over
programs are rows of partial sums for `sum_kernels`, so that results do not depend on the order of programs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

# KIND: 0 a real tensor; else Gamma: 1 channel, 2 channel, map, 3 channel, rows, columns, 4 dense, 5 ones.
# ACTIVATION: 0 nothing, 1 max(z, 0), 2 z where positive and slope[c] * z elsewhere.

# Divisibility of these sizes decides nothing; `channels` decides how wide loads are.
UNSPECIALIZED = ["images", "pixels", "width", "groups_each", "rows"]


@triton.jit
def _tile(pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Pixels, channels, offsets inside an image, which of them exist, and this program's row of sums."""
    tiles_c = tl.cdiv(channels, BLOCK_C)
    tile = tl.program_id(0)
    p = (tile // tiles_c) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = (tile % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    row = tl.program_id(1) * tl.cdiv(pixels, BLOCK_P) + tile // tiles_c
    return p, c, p[:, None] * channels + c[None, :], inside, row


@triton.jit
def _channel(pointer, c, channels):
    """One float per channel, shaped to broadcast over the pixels of a tile."""
    return tl.load(pointer + c, mask=c < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _spatial(rows, columns, p, pixels, width, KIND: tl.constexpr):
    """The part of Gamma that belongs to a pixel."""
    value = tl.full(p.shape, 1.0, tl.float32)
    if KIND == 2:
        value = tl.load(rows + p, mask=p < pixels, other=0.0)
    if KIND == 3:
        value = tl.load(rows + p // width, mask=p < pixels, other=0.0)
        value *= tl.load(columns + p % width, mask=p < pixels, other=0.0)
    return value


@triton.jit
def _gamma(channel, rows, columns, p, c, pixels, channels, width, KIND: tl.constexpr):
    """Gamma[p, c] = channel[c] times the pixel's part, or channel[c, p] when dense; 1 without a scale."""
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    value = tl.full([p.shape[0], c.shape[0]], 1.0, tl.float32)
    if KIND == 4:
        value = tl.load(channel + c[None, :] * pixels + p[:, None], mask=inside, other=0.0)
    if KIND == 1 or KIND == 2 or KIND == 3:
        value *= _channel(channel, c, channels)
        value *= _spatial(rows, columns, p, pixels, width, KIND)[:, None]
    return value


@triton.jit
def _at_pixels(numbers, n, p, images, pixels):
    """One float per pixel of image n, shaped to broadcast over the channels of a tile."""
    at = n.to(tl.int64) * pixels + p
    return tl.load(numbers + at, mask=(p < pixels) & (n < images), other=0.0)[:, None]


@triton.jit
def _k_or_one(k, n, p, images, pixels, K: tl.constexpr):
    """K of image n's pixels, or ones in its place."""
    value = tl.full([p.shape[0], 1], 1.0, tl.float32)
    if K:
        value = _at_pixels(k, n, p, images, pixels)
    return value


@triton.jit
def _byte_of(bits, group, size, offset, inside, images):
    """The bits of eight images, as numbers whose bit j belongs to the j-th of them."""
    at = bits + group.to(tl.int64) * size + offset
    return tl.load(at, mask=inside & (group * 8 < images), other=0).to(tl.int32)


@triton.jit
def _add_channels(value, part, n, p, images, pixels, channels, BLOCK_C: tl.constexpr):
    """Leaves the sum over this tile's channels in `part`, (tiles of channels, images, pixels)."""
    tile = tl.program_id(0) % tl.cdiv(channels, BLOCK_C)
    at = (tile * images + n).to(tl.int64) * pixels + p
    tl.store(part + at, tl.sum(value, 1), mask=(p < pixels) & (n < images))


@triton.jit
def _activate(z, slope, ACTIVATION: tl.constexpr):
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


@triton.jit
def _store_moments(partial, shift, total, square, row, rows, c, channels):
    """Rows of sums of v - shift and of its square, and `shift` itself after them."""
    tl.store(partial + row * channels + c, tl.sum(total, 0), mask=c < channels)
    tl.store(partial + (rows + row) * channels + c, tl.sum(square, 0), mask=c < channels)
    tl.store(partial + 2 * rows * channels + c, tl.sum(shift, 0), mask=(c < channels) & (row == 0))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def moments_kernel(
    source, channel, rows_of, columns, slope, k, partial,
    images, pixels, channels, width, groups_each, rows,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sums of (v - s) and (v - s)^2 a channel; s, of the channel's first value, keeps it accurate."""
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    first_factor = _gamma(
        channel, rows_of, columns, tl.zeros([1], tl.int32), c, pixels, channels, width, KIND
    )
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    shift = _activate(_channel(source, c, channels) * first_factor, steep, ACTIVATION)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        for j in tl.static_range(8):
            n = (first + step) * 8 + j
            here = inside & (n < images)
            value = tl.load(source + n.to(tl.int64) * pixels * channels + offset, mask=here, other=0.0)
            value = value.to(tl.float32)
            if K:
                value *= _at_pixels(k, n, p, images, pixels)
            v = _activate(value * factor, steep, ACTIVATION)
            d = tl.where(here, v - shift, 0.0)
            total += d
            square += d * d
    _store_moments(partial, shift, total, square, row, rows, c, channels)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def normalize_sign_kernel(
    source, channel, rows_of, columns, slope, k, mean, inverse_std, weight, bias,
    signs, sign_bits, mask_bits, sizes, images, pixels, channels, width, groups_each,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr, SIZES: tl.constexpr, RELU: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """sign(u) for the convolution, and for the backward pass one bit u > 0 and one bit |u| <= 1; with SIZES
    also the sums of |u| over the channels of a tile, from which K is made. RELU: sign(relu(u)), zero gradient
    where u <= 0."""
    p, c, offset, inside, _row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    steep = 1.0
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
            if K:
                value *= _at_pixels(k, n, p, images, pixels)
            u = (_activate(value * factor, steep, ACTIVATION) - center) * multiplier + add
            positive = u > 0
            one = tl.where(positive, 1.0, -1.0).to(signs.dtype.element_ty)
            tl.store(signs + base + offset, one, mask=here)
            sign_byte |= positive.to(tl.int32) << j
            clipped = tl.abs(u) <= 1.0
            if RELU:
                clipped = clipped & positive
            mask_byte |= clipped.to(tl.int32) << j
            if SIZES:
                _add_channels(tl.where(here, tl.abs(u), 0.0), sizes, n, p, images, pixels, channels, BLOCK_C)
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
    dots, channel, rows_of, columns, slope, k, side, side_channel, side_rows, side_columns, side_k,
    out, partial, images, pixels, channels, width, groups_each, rows,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr, SIDE: tl.constexpr,
    SIDE_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out = act(Gamma * dot) + side, and the moments of `out` for the batch norm that reads it next.

    SIDE is -1 for nothing, else the KIND of `side`: a real shortcut, or dot products with their own Gamma.
    """
    p, c, offset, inside, row = _tile(pixels, channels, BLOCK_P, BLOCK_C)
    zero = tl.zeros([1], tl.int32)
    factor = _gamma(channel, rows_of, columns, p, c, pixels, channels, width, KIND)
    first_factor = _gamma(channel, rows_of, columns, zero, c, pixels, channels, width, KIND)
    steep = 1.0
    if ACTIVATION == 2:
        steep = _channel(slope, c, channels)
    shift = _activate(_channel(dots, c, channels) * first_factor, steep, ACTIVATION)
    side_factor = 1.0
    if SIDE >= 0:
        side_factor = _gamma(side_channel, side_rows, side_columns, p, c, pixels, channels, width, SIDE)
        shift += _channel(side, c, channels) * _gamma(
            side_channel, side_rows, side_columns, zero, c, pixels, channels, width, SIDE
        )
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    first = tl.program_id(1) * groups_each
    for step in range(groups_each):
        for j in tl.static_range(8):
            n = (first + step) * 8 + j
            here = inside & (n < images)
            at = n.to(tl.int64) * pixels * channels + offset
            value = tl.load(dots + at, mask=here, other=0.0).to(tl.float32)
            if K:
                value *= _at_pixels(k, n, p, images, pixels)
            v = _activate(value * factor, steep, ACTIVATION)
            if SIDE >= 0:
                beside = tl.load(side + at, mask=here, other=0.0).to(tl.float32)
                if SIDE_K:
                    beside *= _at_pixels(side_k, n, p, images, pixels)
                v += beside * side_factor
            rounded = v.to(out.dtype.element_ty)
            tl.store(out + at, rounded, mask=here)
            d = tl.where(here, rounded.to(tl.float32) - shift, 0.0)
            total += d
            square += d * d
    _store_moments(partial, shift, total, square, row, rows, c, channels)
