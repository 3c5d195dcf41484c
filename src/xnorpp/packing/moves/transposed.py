"""A transposed convolution as an ordinary one: no operation of its own, and no product with a zero between.

With stride s, row y of the uncut result is row q = y // s of phase r = y % s, and its inputs are the rows
q - j with the taps r + s*j. So the s*s phases of an output channel are s*s channels of an ordinary
convolution whose kernel is the s-th part, and a pixel shuffle puts them where they belong; the padding is cut
off at last. A kernel of 2 with stride 2 becomes a 1x1 convolution. Where s does not divide the kernel some
phases have a tap less: zero in a real kernel; where weights are bits, which have no zero, each phase is a
convolution of its own. So it is where a binary kernel is dilated, too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import joined, sliced
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_conv_weight


def transposed(
    trace: Trace, source: Node, weight: Array, stride: list[int], padding: list[int], dilation: list[int],
    groups: int, shape: tuple[int, ...], binary: bool,
) -> Node:  # fmt: skip
    """The nodes of a transposed convolution; `source` is bits where `binary`.

    Args:
        trace: Where they are recorded.
        source: The value (c, h, w).
        weight: (c, out/groups, kh, kw) as torch has it; -1 and +1 where `binary`.
        stride: Rows and columns.
        padding: How much of the result is cut off on each side.
        dilation: Of the kernel.
        groups: Of the channels.
        shape: Of the result.
        binary: Whether both factors are bits.
    """
    filters = filters_of_transposed(weight, groups)
    if stride != [1, 1] and dilation != [1, 1] and not binary:
        filters, dilation = _spread(filters, dilation), [1, 1]
    reach = [d * (k - 1) for d, k in zip(dilation, filters.shape[2:])]
    border = [r - p for r, p in zip(reach, padding)]
    size = [n + 2 * b - r for n, b, r in zip(source.shape[1:], border, reach)]
    if stride == [1, 1] and min(border) >= 0 and tuple(size) == shape[1:]:  # no `output_padding`
        padding = [0, 0]
        turned = filters[:, :, ::-1, ::-1]
        made = _conv(trace, source, turned, dilation, groups, (size[0], size[1]), border)
    else:
        made = _real(trace, _phases(trace, source, filters, stride, dilation, groups, binary))
    if stride[0] == stride[1]:
        if stride[0] > 1:
            made = _shuffled(trace, made, stride[0])
    else:
        made = _interleaved(trace, made, stride)
    for axis in (1, 2):
        begin, length = padding[axis - 1], shape[axis]
        missing = begin + length - made.shape[axis]
        if missing or begin:
            made = _real(trace, made)
        if missing > 0:  # `output_padding` beyond what the taps reach
            edges = [0] * 6
            edges[2 * axis + 1] = missing
            longer = tuple(n + missing if i == axis else n for i, n in enumerate(made.shape))
            made = trace.emit("pad2d", [made], longer, {"padding": edges, "value": 0.0})
        cut = made.shape[axis] - begin - length
        made = sliced(trace, made, axis, begin, -cut if cut else None)
    return made


def filters_of_transposed(weight: Array, groups: int) -> Array:
    """(c, out/groups, kh, kw) as (out, c/groups, kh, kw), and the way back."""
    c, each, kh, kw = weight.shape
    blocks = weight.reshape(groups, c // groups, each, kh, kw).transpose(0, 2, 1, 3, 4)
    return np.asarray(blocks.reshape(groups * each, c // groups, kh, kw))


def _spread(filters: Array, dilation: list[int]) -> Array:
    """A dilated kernel written out with its zeros."""
    o, fan, kh, kw = filters.shape
    wide = np.zeros((o, fan, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1), filters.dtype)
    wide[:, :, :: dilation[0], :: dilation[1]] = filters
    return wide


class _Phase(NamedTuple):
    """The taps of one phase along an axis, and how far they look back: `first` to `last` by `step`."""

    taps: slice
    first: int
    last: int
    step: int


def _taps_of(phase: int, kernel: int, stride: int, dilation: int) -> _Phase:
    """Tap k of a dilated kernel adds to row `dilation*k`, whose phase is the remainder by the stride."""
    own = [k for k in range(kernel) if dilation * k % stride == phase]
    if not own:
        return _Phase(slice(0, 0), 0, 0, 1)
    first, last = ((dilation * k - phase) // stride for k in (own[0], own[-1]))
    common = math.gcd(stride, dilation)
    return _Phase(slice(own[0], own[-1] + 1, stride // common), first, last, dilation // common)


def _phases(
    trace: Trace, source: Node, filters: Array, stride: list[int], dilation: list[int], groups: int,
    binary: bool,
) -> Node:  # fmt: skip
    """(out*sh*sw, rows, columns): the phases of each output channel one after the other."""
    o, fan, kh, kw = filters.shape
    sh, sw = stride
    th, tw = -(-kh // sh), -(-kw // sw)  # taps of the longest phase
    rows = source.shape[1] + (th - 1) * dilation[0]
    columns = source.shape[2] + (tw - 1) * dilation[1]
    if not binary or (kh % sh == 0 and kw % sw == 0 and dilation == [1, 1]):
        wide = np.zeros((o, fan, th * sh, tw * sw), filters.dtype)
        wide[:, :, :kh, :kw] = filters
        taps = wide.reshape(o, fan, th, sh, tw, sw)[:, :, ::-1, :, ::-1].transpose(0, 3, 5, 1, 2, 4)
        return _conv(trace, source, taps.reshape(o * sh * sw, fan, th, tw), dilation, groups, (rows, columns))
    across = [[_taps_of(r, *axis) for r in range(axis[1])] for axis in zip((kh, kw), stride, dilation)]
    rows, columns = (n + max(p.last for p in ps) for n, ps in zip(source.shape[1:], across))
    parts = []
    for i in across[0]:
        for j in across[1]:
            taps = filters[:, :, i.taps][:, :, :, j.taps][:, :, ::-1, ::-1]
            if 0 in taps.shape:
                value = np.zeros((o, rows, columns), np.float32)
                parts.append(trace.emit("constant", [trace.input], value.shape, None, {"value": value}))
                continue
            size = (source.shape[1] + i.last - i.first, source.shape[2] + j.last - j.first)
            part = _conv(trace, source, taps, [i.step, j.step], groups, size)
            edges = [0, 0, i.first, rows - size[0] - i.first, j.first, columns - size[1] - j.first]
            real = trace.emit("affine", [part], part.shape, None, {}, lambda v: v)
            if any(edges):
                attrs = {"padding": edges, "value": 0.0}
                real = trace.emit("pad2d", [real], (o, rows, columns), attrs)
            parts.append(real)
    # (phase, out) -> (out, phase)
    whole = joined(trace, parts, 0)
    return trace.emit("channel_shuffle", [whole], whole.shape, {"groups": sh * sw})


def _conv(
    trace: Trace, source: Node, filters: Array, dilation: list[int], groups: int, size: tuple[int, int],
    border: list[int] | None = None,
) -> Node:  # fmt: skip
    """An ordinary convolution, which reaches over every border where none is given."""
    if border is None:
        border = [d * (k - 1) for d, k in zip(dilation, filters.shape[2:])]
    attrs: dict[str, Any] = {"stride": [1, 1], "padding": border, "dilation": dilation, "groups": groups}
    shape = (filters.shape[0], *size)
    if source.op == "sign":
        packed = pack_conv_weight(np.ascontiguousarray(filters))
        return trace.emit("binary_conv2d", [source], shape, {**attrs, "pad_value": 0}, {"weight": packed})
    return trace.emit("conv2d", [source], shape, attrs, {"weight": np.ascontiguousarray(filters)})


def _shuffled(trace: Trace, node: Node, factor: int) -> Node:
    c, h, w = node.shape
    shape = (c // factor**2, h * factor, w * factor)
    return trace.emit("pixel_shuffle", [node], shape, {"factor": factor})


def _interleaved(trace: Trace, node: Node, stride: list[int]) -> Node:
    """As a pixel shuffle with different factors for rows and columns."""
    (c, h, w), (sh, sw) = node.shape, stride
    split = (c // (sh * sw), sh, sw, h, w)
    apart = trace.emit("reshape", [node], split, {"shape": list(split)})
    axes = [0, 3, 1, 4, 2]
    turned = trace.emit("permute", [apart], tuple(split[axis] for axis in axes), {"axes": axes})
    shape = (split[0], h * sh, w * sw)
    return trace.emit("reshape", [turned], shape, {"shape": list(shape)})


def _real(trace: Trace, node: Node) -> Node:
    """A dot product as a real number, which may be moved."""
    if node.op != "binary_conv2d":
        return node
    return trace.emit("affine", [node], node.shape, None, {}, lambda v: v)
