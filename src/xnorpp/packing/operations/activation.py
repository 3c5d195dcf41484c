"""Functions of one number, and what changes nothing in evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.operations.arguments import Handler
from xnorpp.packing.trace import Trace

_LARGEST = float(np.finfo(np.float32).max)


def relu(trace: Trace, result: Tensor, input: Any, inplace: bool = False) -> Node:
    source = trace.node(input)
    return trace.emit("relu", [source], source.shape, trained=lambda v: np.maximum(v, np.float32(0)))


def _slope(trace: Trace, input: Any, slope: Array) -> Node:
    source = trace.node(input)
    s = slope.reshape(-1).astype(np.float32)
    return trace.emit(
        "prelu",
        [source],
        source.shape,
        None,
        {"slope": s},
        lambda v: np.where(v > 0, v, v * s).astype(np.float32),
    )


def prelu(trace: Trace, result: Tensor, input: Any, weight: Any) -> Node:
    return _slope(trace, input, trace.constant(weight))


def leaky_relu(
    trace: Trace, result: Tensor, input: Any, negative_slope: float = 0.01, inplace: bool = False
) -> Node:
    return _slope(trace, input, np.array([negative_slope]))


def absolute(trace: Trace, result: Tensor, input: Any) -> Node:
    return _slope(trace, input, np.array([-1.0]))


def hardtanh(
    trace: Trace,
    result: Tensor,
    input: Any,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> Node:
    low, high = float(np.float32(min_val)), float(np.float32(max_val))
    source = trace.node(input)

    def trained(v: Array) -> Array:
        return np.clip(v, np.float32(low), np.float32(high))

    return trace.emit("hardtanh", [source], source.shape, {"min": low, "max": high}, None, trained)


def relu6(trace: Trace, result: Tensor, input: Any, inplace: bool = False) -> Node:
    return hardtanh(trace, result, input, 0.0, 6.0)


def clamp(trace: Trace, result: Tensor, input: Any, min: Any = None, max: Any = None) -> Node:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        raise trace.fail("with tensor limits is not supported", "use numbers as the limits")
    if min == 0 and max is None:
        return relu(trace, result, input)
    return hardtanh(trace, result, input, -_LARGEST if min is None else min, _LARGEST if max is None else max)


def sign(trace: Trace, result: Tensor, input: Any) -> Node:
    """torch.sign is 0 at 0; it packs only with `threshold(., 0, -1)` after it, as in `xnorpp.nn.sign`."""
    source = trace.node(input)
    return trace.emit("three_way_sign", [source], source.shape)


def threshold(
    trace: Trace, result: Tensor, input: Any, threshold: float, value: float, inplace: bool = False
) -> Node:
    source = trace.node(input)
    if source.op == "three_way_sign" and threshold == 0 and value == -1:
        return trace.emit("signs", [trace.emit_sign(source.inputs[0])], source.shape)
    if threshold == 0 and value == 0:
        return relu(trace, result, input)
    raise trace.fail("is not supported")


def dropout(
    trace: Trace, result: Tensor, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Node:
    if training and p > 0:
        raise trace.fail("is active in evaluation too", "pass training=self.training")
    return trace.node(input)


FUNCTIONS: dict[str, Handler] = {
    "relu": relu,
    "prelu": prelu,
    "leaky_relu": leaky_relu,
    "hardtanh": hardtanh,
    "relu6": relu6,
    **dict.fromkeys(("clamp", "clip", "clamp_min"), clamp),
    "clamp_max": lambda trace, result, input, max: clamp(trace, result, input, None, max),
    "sign": sign,
    "threshold": threshold,
    **dict.fromkeys(("abs", "absolute"), absolute),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "alpha_dropout", "feature_alpha_dropout"), dropout),
}
