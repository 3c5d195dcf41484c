"""The bit layout: one rule for weights, activations and every engine.

Bit 1 is +1 and bit 0 is -1 (`sign(0) = -1`). Along the packed axis, element `8*j + i` is bit `i` (the `i`-th
lowest) of byte `j`; the bits after the last element are 0. Four or eight such bytes read as a little-endian
integer therefore hold elements in the order of their bits, so an engine may use words of any width.

With tail bits 0 in both operands, `dot = n - 2*popcount(a ^ w)` needs no mask: the tails never differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]


def packed_width(count: int) -> int:
    """Bytes that hold `count` bits."""
    return (count + 7) // 8


def pack_bits(positive: npt.NDArray[Any]) -> U8:
    """Pack the last axis: nonzero (or True) becomes bit 1. `(..., n)` -> uint8 `(..., ceil(n/8))`."""
    return np.packbits(np.asarray(positive, dtype=bool), axis=-1, bitorder="little")


def unpack_bits(packed: U8, count: int) -> I8:
    """The inverse of `pack_bits`: uint8 `(..., ceil(count/8))` -> int8 `(..., count)` of -1 and +1."""
    bits = np.unpackbits(packed, axis=-1, count=count, bitorder="little")
    return np.asarray((bits.astype(np.int8) << 1) - np.int8(1), dtype=np.int8)


def pack_conv_weight(weight: npt.NDArray[Any]) -> U8:
    """Signs `(o, c/g, kh, kw)` -> uint8 `(o, kh, kw, ceil((c/g)/8))`; channels are the packed axis."""
    if weight.ndim != 4:
        raise ValueError(f"`weight` has {weight.ndim} axes; a convolution weight has 4 (o, c/g, kh, kw)")
    return pack_bits(weight.transpose(0, 2, 3, 1) > 0)


def unpack_conv_weight(packed: U8, channels: int) -> I8:
    """The inverse of `pack_conv_weight`: int8 signs `(o, channels, kh, kw)`."""
    return np.transpose(unpack_bits(packed, channels), (0, 3, 1, 2))


def pack_linear_weight(weight: npt.NDArray[Any]) -> U8:
    """Signs `(o, i)` -> uint8 `(o, ceil(i/8))`."""
    if weight.ndim != 2:
        raise ValueError(f"`weight` has {weight.ndim} axes; a linear weight has 2 (o, i)")
    return pack_bits(weight > 0)


def tail_is_zero(packed: U8, count: int) -> bool:
    """Whether the bits after `count` in the last byte of the packed axis are all 0."""
    used = count % 8
    return used == 0 or not bool(np.any(packed[..., -1] >> used))


def popcount_dot(a: U8, w: U8, count: int) -> npt.NDArray[np.int32]:
    """`n - 2*popcount(a ^ w)` over the last axis: the dot product of two vectors of `count` signs."""
    differing = np.unpackbits(a ^ w, axis=-1).sum(axis=-1, dtype=np.int32)
    return np.asarray(count - 2 * differing, dtype=np.int32)
