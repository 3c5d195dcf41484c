"""Linear layers, and softmax."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import on_last_axis
from xnorpp.packing.operations.arguments import Handler, shape_of
from xnorpp.packing.operations.convolution import is_signs, shifted
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_linear_weight


def linear(trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None) -> Node:
    """A product with the last axis; where there are others, a 1x1 convolution over that axis as channels."""
    source, w = trace.node(input), trace.constant(weight)
    if len(source.shape) != 1:
        tensors = {"weight": w[:, :, None, None]}
        if bias is not None:
            tensors["bias"] = trace.constant(bias)

        def conv(image: Node) -> Node:
            attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
            return trace.emit("conv2d", [image], (w.shape[0], *image.shape[1:]), attrs, tensors)

        return on_last_axis(trace, source, conv)
    if source.op == "signs" and is_signs(w):
        dot = trace.emit(
            "binary_linear", [source.inputs[0]], shape_of(result), None, {"weight": pack_linear_weight(w)}
        )
        return shifted(trace, dot, bias)
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": trace.constant(bias)}
    return trace.emit("linear", [source], shape_of(result), None, tensors)


def softmax(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> Node:
    source = trace.node(input)
    if len(source.shape) != 1 or dim not in (None, 1, -1) or dtype is not None:
        raise trace.fail(
            f"over dim={dim} of {len(source.shape) + 1} axes is not supported; over (n, c) it is",
            "apply it to the packed model's output, or flatten its input first",
        )
    return trace.emit("softmax", [source], source.shape)


FUNCTIONS: dict[str, Handler] = {"linear": linear, "softmax": softmax}
