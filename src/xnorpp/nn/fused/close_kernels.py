"""The Triton kernel that closes a post-activation block: batch norm, shortcut and ReLU in one pass.

Layout and names as in `kernels.py`. Its backward pass is that of a batch norm before a sign: the bits where
the output is positive take the place of sign's clip mask (`backward_kernels.norm_backward_kernel`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from xnorpp.nn.fused.kernels import UNSPECIALIZED, _activate, _at_pixels, _channel, _gamma, _tile


@triton.jit(do_not_specialize=UNSPECIALIZED)
def close_kernel(
    source, channel, rows_of, columns, slope, k, mean, inverse_std, weight, bias,
    side, side_channel, side_rows, side_columns, side_k, side_mean, side_inverse, side_weight, side_bias,
    out, signs, positive_bits, clip_bits, images, pixels, channels, width, groups_each,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, K: tl.constexpr,
    SIDE: tl.constexpr, SIDE_K: tl.constexpr, SIDE_NORM: tl.constexpr, RELU: tl.constexpr,
    SIGNS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out = relu(u + side), u the batch norm of v.

    SIDE is -1 for nothing, else the KIND of `side`: a real shortcut, or dot products with their own Gamma and
    batch norm. One bit out > 0 is stored, for the ReLU's gradient and for the sign that reads `out` next;
    with SIGNS also that sign itself and the bits of its clip mask.
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
