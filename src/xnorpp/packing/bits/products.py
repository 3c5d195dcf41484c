"""Convolutions and linear layers of two numbers with filters of two numbers, counted in bits.

    x = half*s + middle,  w = alpha*t + beta:   x*w = (half*alpha) s*t + (half*beta) s + middle*w

`s*t` is the binary product. The sums of `s` under the window are one more filter, of ones, which all filters
share, and `middle*w` is a constant; where zeros that are none of the two numbers pad an image it depends on
the place, and is a convolution of one channel of ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xnorpp.packing.bits.borders import Border, border_of
from xnorpp.packing.bits.levels import two_numbers
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.transposed import filters_of_transposed, transposed
from xnorpp.packing.moves.views import sliced
from xnorpp.packing.operations.arguments import affine
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight

_SPREAD = (2.5e-7, 1e-6)  # absolute and relative: what `(q - w) + w` rounds
_CLEAR = 1e-3  # of half the distance of two numbers: more of a spread is a filter of real numbers
_SHARE = 1e-12  # of a filter's factor: a mean that is nothing beside the deviation


@dataclass(frozen=True)
class Filters:
    """Filters `alpha*signs + beta`, alpha and beta one for each of them."""

    signs: Array
    alpha: Array
    beta: Array


def filters_of(weight: Array) -> Filters | None:
    """Filters (o, ...) of two numbers each, or None where one has more."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    if not rows.size or not np.isfinite(rows).all():
        return None
    signs = np.where(rows > 0, 1.0, -1.0)
    alpha, beta = np.abs(rows).mean(1), np.zeros(len(rows))
    if not _fits(rows, signs, alpha, beta):
        signs = np.where(rows > (rows.max(1) + rows.min(1))[:, None] / 2, 1.0, -1.0)
        upper, lower = (
            np.where(part, rows, 0.0).sum(1) / np.maximum(part.sum(1), 1) for part in (signs > 0, signs < 0)
        )
        alpha, beta = (upper - lower) / 2, (upper + lower) / 2
        if rows.shape[1] < 3 or not _fits(rows, signs, alpha, beta):
            return None
    return Filters(signs.reshape(weight.shape).astype(np.float32), alpha, beta)


def _fits(rows: Array, signs: Array, alpha: Array, beta: Array) -> bool:
    off = np.abs(signs * alpha[:, None] + beta[:, None] - rows).max(1)
    allowed = _SPREAD[0] + _SPREAD[1] * np.abs(rows).max(1)
    return bool(((off <= allowed) & (off <= _CLEAR * np.abs(alpha))).all())


@dataclass(frozen=True)
class _Product:
    """The summands of a product in bits: those of `Filters` by `half`, and the products with `middle`."""

    bits: Node
    filters: Filters
    half: Array
    middle: Array
    constants: Array  # middle * w
    size: Array  # of what torch sums, times the roundings of its sum


def _product(trace: Trace, source: Node, weight: Array, groups: int = 1) -> _Product | None:
    value = None if weight.size == 0 else two_numbers(trace, source)
    if value is None:
        return None

    def by_inputs(numbers: Array) -> Array:
        """One number per input channel as factors of the filters."""
        each = np.broadcast_to(numbers, (source.shape[0],)).reshape(groups, 1, -1)
        wide = np.repeat(each, len(weight) // groups, 1)
        return wide.reshape(len(weight), -1, *[1] * (weight.ndim - 2))

    filters = filters_of(weight * by_inputs(value.half))
    if filters is None:
        return None
    largest = float(np.abs(value.half).max() + np.abs(value.middle).max())
    size = (
        (weight[0].size + 8) / 8 * largest * np.abs(weight.astype(np.float64)).reshape(len(weight), -1).sum(1)
    )
    return _Product(value.bits, filters, value.half, value.middle, weight * by_inputs(value.middle), size)


def bit_linear(trace: Trace, source: Node, weight: Array, bias: Array | None) -> Node | None:
    """A product of a vector with a matrix, or None where one of them has other numbers."""
    found = _product(trace, source, weight)
    if found is None:
        return None

    def counted(signs: Array) -> Node:
        return trace.emit(
            "binary_linear", [found.bits], (len(signs),), None, {"weight": pack_linear_weight(signs)}
        )

    shift = found.constants.sum(1) + (0.0 if bias is None else bias)
    made = counted(found.filters.signs)
    if found.filters.beta.any():
        total = affine(trace, counted(np.ones((1, weight.shape[1]), np.float32)), None, None)
        made = with_sums(trace, made, total, found.filters.alpha, shift, found.filters.beta)
    else:
        made = affine(trace, made, found.filters.alpha, _unless_zero(shift))
    return _with_size(made, found.size)


def bit_conv(
    trace: Trace, source: Node, weight: Array, bias: Array | None, attrs: dict[str, Any],
    shape: tuple[int, ...],
) -> Node | None:  # fmt: skip
    """A convolution, or None where value or filters have other numbers.

    `attrs` are those of conv2d; the value may be padded before it.
    """
    reach = [d * (k - 1) for d, k in zip(attrs["dilation"], weight.shape[2:])]
    border = border_of(trace, source, reach, attrs, shape)
    found = _bit_conv(trace, border, weight, bias, attrs)
    if found is None and border.source is not source:
        plain = Border(source, 0.0, attrs["padding"], (0, 0), shape, shape)
        found = _bit_conv(trace, plain, weight, bias, attrs)
    return found


def _bit_conv(
    trace: Trace, border: Border, weight: Array, bias: Array | None, attrs: dict[str, Any]
) -> Node | None:
    found = _product(trace, border.source, weight, int(attrs["groups"]))
    if found is None:
        return None
    edge = np.unique((border.filling - found.middle) / found.half) if any(border.padding) else np.zeros(1)
    even = len(edge) == 1 and edge[0] in (-1.0, 0.0, 1.0)  # what pads the image is a number of it, or none
    if not even and border.filling:
        return None
    window = {**attrs, "padding": border.padding, "pad_value": int(edge[0]) if even else 0}

    def counted(signs: Array) -> Node:
        tensors = {"weight": pack_conv_weight(signs)}
        return trace.emit("binary_conv2d", [found.bits], (len(signs), *border.wide[1:]), window, tensors)

    shift = np.zeros(len(weight)) + (0.0 if bias is None else bias)
    if even:
        shift = shift + found.constants.reshape(len(weight), -1).sum(1)
    made = counted(found.filters.signs)
    if found.filters.beta.any():
        groups = int(attrs["groups"])
        ones = np.ones((groups, *weight.shape[1:]), np.float32)
        total = affine(trace, counted(ones), None, None)
        made = with_sums(trace, made, total, found.filters.alpha, shift, found.filters.beta)
    else:
        made = affine(trace, made, found.filters.alpha, _unless_zero(shift))
    made = _with_size(made, found.size)
    if not even:
        place = {**attrs, "padding": border.padding, "groups": 1}
        summed = {"weight": found.constants.sum(1, keepdims=True)}
        by_place = trace.emit("conv2d", [_ones(trace, found.bits)], border.wide, place, summed)
        made = trace.emit("add", [made, by_place], border.wide)
    return border.cut(trace, made)


def bit_transposed(
    trace: Trace, source: Node, weight: Array, stride: list[int], padding: list[int], dilation: list[int],
    groups: int, shape: tuple[int, ...],
) -> Node | None:  # fmt: skip
    """A transposed convolution, or None where value or filters have other numbers."""
    found = _product(trace, source, filters_of_transposed(weight, groups), groups)
    if found is None:
        return None

    def summed(value: Node, filters: Array, parts: int, binary: bool) -> Node:
        taps = filters_of_transposed(filters, parts)
        place = (stride, padding, dilation, parts, (len(filters), *shape[1:]))
        return transposed(trace, value, taps, *place, binary=binary)

    made = summed(found.bits, found.filters.signs, groups, True)
    if found.filters.beta.any():
        ones = np.ones((groups, *found.filters.signs.shape[1:]), np.float32)
        total = affine(trace, summed(found.bits, ones, groups, True), None, None)
        made = with_sums(
            trace, made, total, found.filters.alpha, np.zeros(len(found.size)), found.filters.beta
        )
    else:
        made = affine(trace, made, found.filters.alpha, None)
    made = _with_size(made, found.size)
    if not found.middle.any():
        return made
    by_place = summed(_ones(trace, found.bits), found.constants.sum(1, keepdims=True), 1, False)
    return trace.emit("add", [made, by_place], shape)


def _ones(trace: Trace, bits: Node) -> Node:
    """One channel of ones, of the size of a value."""
    signs = trace.emit("signs", [bits], bits.shape)
    return affine(trace, sliced(trace, signs, 0, 0, 1), np.zeros(1), np.ones(1))


def _with_size(made: Node, size: Array) -> Node:
    """Sets the size of what is summed, of the first summand where the trained network has the sum alone."""
    (made.inputs[0] if made.op == "add" else made).size = size
    return made


def _unless_zero(shift: Array) -> Array | None:
    return shift if shift.any() else None


def with_sums(trace: Trace, y: Node, total: Node, factor: Array, constant: Array, share: Array) -> Node:
    """y*factor + constant + total*share, by channels; `total` has one channel, or one for each group.

    Where all channels share the sums they are added as they are, so that nothing of the output's size is made
    of them: (y*(factor/share) + constant/share + total) * share. A share that is next to nothing is raised to
    what still is, because its quotients must be finite.
    """
    if len(y.shape) == 3 and total.shape[0] == 1:
        least = np.maximum(np.abs(factor) * _SHARE, np.finfo(np.float32).tiny)
        share = np.where(np.abs(share) < least, least, share)
        made = affine(trace, y, factor / share, constant / share)
        attrs = {"broadcast": True} if y.shape[0] > 1 else None
        return affine(trace, trace.emit("add", [made, total], y.shape, attrs), share, None)
    if len(y.shape) == 1:
        spread = trace.emit("linear", [total], y.shape, None, {"weight": share.reshape(-1, 1)})
    else:
        plain: dict[str, Any] = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
        plain["groups"] = total.shape[0]
        spread = trace.emit("conv2d", [total], y.shape, plain, {"weight": share.reshape(-1, 1, 1, 1)})
    return trace.emit("add", [affine(trace, y, factor, constant), spread], y.shape)
