"""What the families of operations share: types, constants along the channels, windows, one-bit weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.program import Op, Program

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
Apply = Callable[..., Array]  # (program, op, *inputs) -> the result, all with the batch axis first


def per_channel(vector: Array, ndim: int) -> Array:
    """`(c,)` shaped to broadcast along axis 1 of an `ndim`-axis batch."""
    return vector.reshape(1, -1, *[1] * (ndim - 2))


def columns_of(x: Array, kernel: Any, stride: Any, dilation: Any, out: tuple[int, int]) -> Array:
    """Windows of a padded image `(c, h, w)` as columns `(c, kh*kw, oh*ow)`."""
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    oh, ow = out
    taps = [
        x[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    return np.stack(taps, axis=1).reshape(x.shape[0], kh * kw, oh * ow)


def pad_images(x: Array, padding: Any, value: Any) -> Array:
    ph, pw = padding
    edges = [(0, 0)] * (x.ndim - 2) + [(ph, ph), (pw, pw)]
    return np.pad(x, edges, constant_values=value) if ph or pw else x


def signs_of(program: Program, op: Op, x: Array) -> Array:
    """The one-bit weight of an operation as int8 -1 and +1."""
    packed = program.tensors[op.tensors["weight"]]
    if packed.ndim == 2:
        return unpack_bits(packed, x.shape[1])
    return unpack_conv_weight(packed, x.shape[1] // op.attrs["groups"])


def with_bias(program: Program, op: Op, y: Array) -> Array:
    bias = program.real(op, "bias")
    return y if bias is None else y + per_channel(bias, y.ndim)
