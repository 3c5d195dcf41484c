"""The first convolution on the bytes of a picture: its whole-numbered filters, the same for every engine.

A byte x of channel c stands for (x/255 - mean_c)/std_c, and padding is zero *after* that. With
g = w/(255*std_c) = step*q a convolution is a sum of whole numbers, exact in 32 bits, and one product:

    y = step * ( sum over the taps inside of ( sum_c q_c x_c + 255*m ) + rest ) + bias,

q and m in 16 bits, `m` a tap's part of the mean. The sum has one value whatever the order, so engines that
round float32(sum), its product with the step and the bias in turn agree in every bit.

Rounding. Pictures are smooth: neighbouring pixels and the channels of one pixel are alike, with a correlation
of about r to the power of the distance. A patch is off by sum e*x, e = q - g/step, and for such x the least
squares answer (Babai's nearest plane, whose triangular factor is r**distance along each axis) rounds one tap
after the other and passes on what it was off by: e is a product of differences (1 - r*shift) along rows,
columns and channels of numbers of at most 1/2. On photographs that is many times nearer to the real filters
than rounding each tap to the nearest, and |e| stays below 4.

Which stems. Rounded filters are other filters: a value near zero gets another sign, and in a network of small
pictures such signs change the classes of a few pictures in a hundred. So they are for stems where they pay,
kernels of at least 7x7 with a stride of at least 2 both ways, the stems of networks for large pictures, whose
many products a pixel take a good part of a call; and of at most 4096 inputs per filter, since rounding takes
one after the other. In every other stem, and those of 3x3 cost next to nothing either way, each byte becomes
the float32 that it stands for and the answer is, bit for bit, that of the normalised picture. This is an
engine's choice, not the file's: no file says it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.bits import unpack_conv_weight, window_of
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.plan import Step

Array = npt.NDArray[Any]

_ALONG, _ACROSS = 0.95, 0.9  # correlation of neighbouring pixels, and of neighbouring channels
_LARGEST = 127 * 256 + 127  # of a number that is two signed bytes
_LARGE_KERNEL, _LARGE_STRIDE = 7, 2  # of a stem that is worth rounding
_MOST_TAPS = 4096  # inputs of a filter
_LEAST_STD, _LARGEST_WEIGHT = 1e-6, 1e30  # beyond these a filter's step may be infinite in float32
_CONVS = ("conv2d", "bitweight_conv2d", "linear", "bitweight_linear", "binary_conv2d", "binary_linear")


@dataclass(frozen=True)
class PictureFilters:
    """q, m and rest of the formula above; `step` is float32."""

    taps: npt.NDArray[np.int16]  # (o, c, kh, kw)
    mean: npt.NDArray[np.int32]  # (o, kh, kw)
    rest: npt.NDArray[np.int32]  # (o,)
    step: npt.NDArray[np.float32]  # (o,)


def only_convolutions_read_the_picture(program: Program, steps: tuple[Step, ...]) -> bool:
    readers = [step for step in steps if INPUT in step.reads]
    return program.output != INPUT and all(s.kind in _CONVS and s.reads == (INPUT,) for s in readers)


def byte_step(program: Program, steps: tuple[Step, ...], *, small: bool = False) -> Step | None:
    """The convolution that takes the bytes themselves, if the program has one: the only reader of the
    picture, in one group, with a large window (see the top of the file; `small`: with any). Elsewhere each
    byte is first turned into the float that it stands for."""
    readers = [step for step in steps if INPUT in step.reads]
    if len(readers) != 1 or not only_convolutions_read_the_picture(program, steps):
        return None
    step = readers[0]
    if step.kind not in ("conv2d", "bitweight_conv2d") or step.op is None or step.weight is None:
        return None
    if not (small or _large_window(step)):
        return None
    whole = step.op.attrs["groups"] == 1 and step.op.attrs["dilation"][1] == 1
    mean, std = np.asarray(program.mean, np.float64), np.asarray(program.std, np.float64)
    plain = bool(np.abs(mean).sum() <= 16 and std.min() >= _LEAST_STD)
    taps = program.input_shape[0] * math.prod(window_of(step.weight))
    bounded = taps <= _MOST_TAPS and bool(np.abs(step.weight).max() <= _LARGEST_WEIGHT)
    return step if whole and plain and bounded else None


def _large_window(step: Step) -> bool:
    assert step.weight is not None
    assert step.op is not None
    return bool(
        min(window_of(step.weight)) >= _LARGE_KERNEL and min(step.op.attrs["stride"]) >= _LARGE_STRIDE
    )


def filters_of(program: Program, step: Step) -> PictureFilters:
    """The filters of the step that `byte_step` found."""
    assert step.weight is not None
    assert step.op is not None
    weight = step.weight
    if step.kind == "bitweight_conv2d":
        weight = unpack_conv_weight(weight, program.input_shape[0])
    mean, std = np.asarray(program.mean), np.asarray(program.std)
    return picture_filters(weight, mean, std, step.op.attrs["stride"][1])


def picture_filters(weight: Array, mean: Array, std: Array, stride: int = 1) -> PictureFilters:
    """Rounds the filters `weight` (o, c, kh, kw) with the normalisation folded in.

    The step leaves room for what an engine may add up in 16 bits: the sums of taps two columns apart, which
    the CPU's stem multiplies with (csrc/kernels/picture_pair.inl), and for whole sums of 32 bits.
    """
    c, kh, kw = weight.shape[1:]
    mean, std = (np.asarray(row, np.float32).astype(np.float64) for row in (mean, std))
    real = np.asarray(weight, np.float64) / (255.0 * std)[:, None, None]
    part = _over_channels(real * mean[:, None, None])
    off = 4.0 * float(np.abs(mean).sum()) + 3.0  # the most a tap's part of the mean may be off by
    sizes = [_largest(real) / (_LARGEST - 8), _largest(part) / (_LARGEST - off)]
    if (c, kw, stride) == (3, 7, 2):
        sizes.append(_largest(real[..., :-2] + real[..., 2:]) / (_LARGEST - 8))
    room = (2.0**31 - 1024.0) / 255.0 - kh * kw * (4.0 * c + off)
    sizes.append((np.abs(real).sum(axis=(1, 2, 3)) + np.abs(part).sum(axis=(1, 2))) / room)
    step = np.maximum.reduce(sizes)
    rounded = step.astype(np.float32)
    rounded = np.where(rounded < step, np.nextafter(rounded, np.float32(np.inf)), rounded)
    rounded = np.where(rounded > 0, rounded, np.float32(1)).astype(np.float32)
    taps = _round(real / rounded.astype(np.float64)[:, None, None, None])
    means, rest = _means(_over_channels(taps * mean[:, None, None]))
    return PictureFilters(taps.astype(np.int16), means.astype(np.int32), rest.astype(np.int32), rounded)


def _largest(values: Array) -> Array:
    return np.asarray(np.abs(values).reshape(values.shape[0], -1).max(axis=1))


def _over_channels(values: Array) -> Array:
    """The sum over axis 1, in order: the same bits on every machine."""
    total = np.zeros_like(values[:, 0])
    for channel in range(values.shape[1]):
        total = total + values[:, channel]
    return total


def _round(values: Array) -> Array:
    """Whole numbers near `values` (o, c, kh, kw): see the top of the file."""
    o, c, kh, kw = values.shape
    out = np.empty_like(values)
    owed = np.zeros((kh + 1, kw + 1, c + 1, o))  # [i + 1][j + 1][channel + 1]; nothing is owed at the edges
    shifts = [
        (i, j, k, -((-_ALONG) ** (i + j)) * (-_ACROSS) ** k)
        for i in (0, 1)
        for j in (0, 1)
        for k in (0, 1)
        if i or j or k
    ]
    for i in range(kh):
        for j in range(kw):
            for k in range(c):
                wanted = values[:, k, i, j]
                for di, dj, dk, factor in shifts:
                    wanted = wanted + factor * owed[i + 1 - di, j + 1 - dj, k + 1 - dk]
                out[:, k, i, j] = np.rint(wanted)
                owed[i + 1, j + 1, k + 1] = wanted - out[:, k, i, j]
    return out


def _means(part: Array) -> tuple[Array, Array]:
    """-`part` (o, kh, kw) in whole numbers, and what 255 times their sum lacks of the real sum.

    At a border the taps inside are a rectangle, so sums from the first tap to each are rounded, not the taps.
    """
    sums = np.zeros((part.shape[0], part.shape[1] + 1, part.shape[2] + 1))
    for i in range(part.shape[1]):
        line = np.zeros(part.shape[0])
        for j in range(part.shape[2]):
            line = line - part[:, i, j]
            sums[:, i + 1, j + 1] = sums[:, i, j + 1] + line
    whole = np.rint(sums)
    taps = whole[:, 1:, 1:] - whole[:, :-1, 1:] - whole[:, 1:, :-1] + whole[:, :-1, :-1]
    return taps, np.rint(255.0 * (sums[:, -1, -1] - whole[:, -1, -1]))
