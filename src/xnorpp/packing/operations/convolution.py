"""Convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.operations.arguments import Handler, affine, pair, picture, shape_of
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_conv_weight


def conv2d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Node:  # fmt: skip
    source, w = picture(trace, trace.node(input)), trace.constant(weight)
    dilations = pair(dilation)
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilations, w.shape[2:])]
        if padding == "same" and any(r % 2 for r in reach):
            raise trace.fail(
                "with padding='same' pads unevenly here, which is not supported",
                "use an odd kernel size, or nn.ZeroPad2d before an unpadded convolution",
            )
        padding = [r // 2 for r in reach] if padding == "same" else 0
    attrs: dict[str, Any] = {
        "stride": pair(stride),
        "padding": pair(padding),
        "dilation": dilations,
        "groups": int(groups),
    }
    bits, pad_value = _padded_bits(source, attrs["padding"])
    if bits is not None and is_signs(w):
        taps = {**attrs, "padding": pad_value[1], "pad_value": pad_value[0]}
        dot = trace.emit("binary_conv2d", [bits], shape_of(result), taps, {"weight": pack_conv_weight(w)})
        return shifted(trace, dot, bias)
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": trace.constant(bias)}
    return trace.emit("conv2d", [source], shape_of(result), attrs, tensors)


def is_signs(weight: Array) -> bool:
    return bool(np.all(np.abs(weight) == 1))


def _padded_bits(source: Node, padding: list[int]) -> tuple[Node | None, tuple[int, list[int]]]:
    """The bits of a real value of -1 and +1, and what is around them: (bits, (pad value, padding))."""
    if source.op == "signs":
        return source.inputs[0], (0, padding)
    if source.op == "pad2d" and source.inputs[0].op == "signs" and padding == [0, 0]:
        front, back, top, bottom, left, right = source.attrs["padding"]
        even = front == back == 0 and top == bottom and left == right
        if even and source.attrs["value"] in (-1.0, 0.0, 1.0):
            return source.inputs[0].inputs[0], (int(source.attrs["value"]), [top, left])
    return None, (0, padding)


def shifted(trace: Trace, dot: Node, bias: Any) -> Node:
    b = None if bias is None else trace.constant(bias)
    return affine(trace, dot, None, b)


FUNCTIONS: dict[str, Handler] = {"conv2d": conv2d}
