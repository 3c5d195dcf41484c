"""Convolutions: of real numbers, of bits, with one-bit filters, and of the bytes of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.ops import window_size
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import (
    Array,
    columns_of,
    pad_images,
    per_channel,
    signs_of,
    with_bias,
)
from xnorpp.runtime.reference.rounding import U, magnitude
from xnorpp.runtime.reference.rows import F64, Folded, Row


def convolve(op: Op, x: Array, weight: Array, pad_value: int, dtype: Any = np.float32) -> Array:
    """`out[n,o,y,x] = sum over c,i,j of in[n,c,y*s+i*d-p,...] * weight[o,c,i,j]`, in float32 or `dtype`."""
    stride, padding, dilation, groups = (op.attrs[k] for k in ("stride", "padding", "dilation", "groups"))
    o, fan, *kernel = weight.shape
    sizes = enumerate(x.shape[2:])
    out = tuple(window_size(n, kernel[i], stride[i], padding[i], dilation[i]) for i, n in sizes)
    result = np.empty((x.shape[0], o, *out), dtype)
    rows: Array = weight.astype(dtype).reshape(groups, o // groups, -1)
    for n, image in enumerate(pad_images(x, padding, pad_value)):
        columns = columns_of(image.astype(dtype), kernel, stride, dilation, (out[0], out[1]))
        blocks = columns.reshape(groups, fan * kernel[0] * kernel[1], -1)
        result[n] = np.matmul(rows, blocks).reshape(o, *out)
    return result


def _conv2d(program: Program, op: Op, x: Array) -> Array:
    weight = program.real(op, "weight")
    assert weight is not None
    return with_bias(program, op, convolve(op, x, weight, 0))


def round_input(op: Op, x: Array) -> Array:
    """The whole numbers that `int_conv2d` makes of its input; a NaN becomes the lowest one."""
    steps, limit = np.float32(op.attrs["steps"]), np.float32(op.attrs["limit"])
    with np.errstate(over="ignore"):
        moved = x.astype(np.float32, copy=False) * steps
    return np.asarray(np.rint(np.fmin(np.fmax(moved, -limit), limit)))


def _int_conv2d(program: Program, op: Op, x: Array) -> Array:
    """Whole numbers times whole numbers: the sum is exact, and what follows is rounded in turn."""
    weight = program.stored(op, "weight")
    assert weight is not None
    scale = program.tensors[program.scales[op.tensors["weight"]]].astype(np.float32)
    sums = convolve(op, round_input(op, x), weight, 0, np.float64).astype(np.float32)
    y = sums * per_channel(scale / np.float32(op.attrs["steps"]), 4)
    return with_bias(program, op, y)


def byte_conv(program: Program, op: Op, x: Array) -> Array:
    """A convolution on the bytes of an image with whole-numbered filters (docs/format.md): the sum is exact,
    then its conversion, its product with the scale, and the bias are rounded to float32 in turn."""
    weight, mean, rest = (program.stored(op, f"byte_{role}") for role in ("weight", "mean", "rest"))
    scale, bias = program.real(op, "byte_scale"), program.real(op, "bias")
    assert weight is not None
    assert mean is not None
    assert rest is not None
    assert scale is not None
    # The mean is a further channel whose bytes are all 255 inside the image.
    filters = np.concatenate([weight, mean[:, None]], axis=1).astype(np.float64)
    images = np.moveaxis(x, 3, 1).astype(np.float64)
    images = np.concatenate([images, np.full_like(images[:, :1], 255.0)], axis=1)
    sums = convolve(op, images, filters, 0, np.float64) + per_channel(rest, 4)
    y = sums.astype(np.float32) * per_channel(scale, 4)
    return y if bias is None else y + per_channel(bias, 4)


def _binary_conv2d(program: Program, op: Op, x: Array) -> Array:
    # Sums of -1, 0 and +1 below 2**24 are exact in float32 in any order: the float product is the dot.
    return convolve(op, x, signs_of(program, op, x), op.attrs["pad_value"]).astype(np.int32)


def _bitweight_conv2d(program: Program, op: Op, x: Array) -> Array:
    return convolve(op, x, signs_of(program, op, x), 0)


def _magnitudes(program: Program, op: Op, channels: int) -> Any:
    real = None if program.is_packed(op) else program.real(op, "weight")
    if real is not None:
        return np.abs(real.astype(np.float64))
    stored = program.tensors[op.tensors["weight"]]
    if stored.ndim == 2:
        return np.abs(unpack_bits(stored, channels)).astype(np.float64)
    return np.abs(unpack_conv_weight(stored, channels // op.attrs["groups"])).astype(np.float64)


def filter_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    weight = _magnitudes(program, op, x[0].shape[1])
    taps = weight[0].size

    def through(v: Any) -> Any:
        if weight.ndim == 2:
            return v @ weight.T
        return convolve(op, v.astype(np.float32), weight, 0).astype(np.float64)

    rounding = (taps + 8) * U * (through(np.abs(x[0])) + magnitude(program, op, node, y.ndim))
    return np.asarray(through(e[0]) * 1.001 + rounding)


def _bits_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """A sum of bits is exact, up to bits that rounding may turn: each moves it by its own error."""
    if not e[0].any():
        return np.zeros(y.shape)
    groups, kernel = op.attrs["groups"], program.tensors[op.tensors["weight"]].shape[1:3]
    ones = np.ones((groups, x[0].shape[1] // groups, *kernel))
    return np.repeat(convolve(op, e[0], ones, 0, np.float64), y.shape[1] // groups, axis=1)


def _int_conv2d_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    """As a convolution whose input is off by half a step more, or a whole one where rounding may have gone
    the other way, and by what goes beyond the limit."""
    steps, limit = float(op.attrs["steps"]), float(op.attrs["limit"])
    given = x[0].astype(np.float64)
    parts = given * steps - np.floor(given * steps)
    half = np.where(np.abs(parts - 0.5) <= e[0] * steps, 1.0, 0.5)
    step = half / steps + np.maximum(np.abs(given) - limit / steps, 0)
    return filter_bound(program, op, node, x, [e[0] + step, *e[1:]], y)


_IMAGES = "f32 (c,h,w) -> f32 (o,h',w')"
_REAL = {"dilation": "pairs", "weight": "real (o, c/groups, kh, kw)", "bias": "real (o)"}
_BITS = {"dilation": "pairs", "weight": "bits (o, kh, kw, c/groups)", "pad_value": "-1, 0 or 1"}
_WHOLE = {
    "dilation": "pairs",
    "groups": "one group, no dilation along a row",
    "steps": "1e-15 to 1e15",
    "limit": "1 to 32767",
    "weight": "int8 with a scale (o, c, kh, kw)",
    "bias": "real (o)",
}
ROWS: dict[str, Row] = {
    "conv2d": Row(_conv2d, filter_bound, _IMAGES, _REAL),
    "int_conv2d": Row(_int_conv2d, _int_conv2d_bound, _IMAGES, _WHOLE),
    "binary_conv2d": Row(_binary_conv2d, _bits_bound, "bits (c,h,w) -> int (o,h',w')", _BITS),
    "bitweight_conv2d": Row(_bitweight_conv2d, filter_bound, _IMAGES, _BITS),
}
