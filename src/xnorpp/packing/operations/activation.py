"""Functions of one number, and what changes nothing in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.packing.bits.zeros import ThreeWay
from xnorpp.packing.composed import composed_value, elementwise
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import sliced
from xnorpp.packing.operations.arguments import Handler, affine, as_number
from xnorpp.packing.trace import Trace

_MOST_FACTORS = 16  # of a power
_ABOVE_ZERO = ("exp", "sigmoid", "softmax", "softplus")


def relu(trace: Trace, result: Tensor, input: Any, inplace: bool = False) -> Node:
    source = trace.node(input)
    return trace.emit("relu", [source], source.shape, trained=lambda v: np.maximum(v, np.float32(0)))


def emit_slope(trace: Trace, source: Node, slope: Array) -> Node:
    """`x if x > 0 else slope*x`, one slope or one for each channel."""
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
    return emit_slope(trace, trace.node(input), trace.constant(weight))


def leaky_relu(
    trace: Trace, result: Tensor, input: Any, negative_slope: float = 0.01, inplace: bool = False
) -> Node:
    return emit_slope(trace, trace.node(input), np.array([negative_slope]))


def absolute(trace: Trace, result: Tensor, input: Any) -> Node:
    return emit_slope(trace, trace.node(input), np.array([-1.0]))


def hardtanh(
    trace: Trace,
    result: Tensor,
    input: Any,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> Node:
    return bounded(trace, trace.node(input), min_val, max_val)


def bounded(trace: Trace, source: Node, least: float, most: float) -> Node:
    """`min(max(x, least), most)`."""
    low, high = float(np.float32(least)), float(np.float32(most))

    def trained(v: Array) -> Array:
        return np.clip(v, np.float32(low), np.float32(high))

    return trace.emit("hardtanh", [source], source.shape, {"min": low, "max": high}, None, trained)


def relu6(trace: Trace, result: Tensor, input: Any, inplace: bool = False) -> Node:
    return hardtanh(trace, result, input, 0.0, 6.0)


def sign(trace: Trace, result: Tensor, input: Any) -> Node:
    """torch.sign is 0 at 0: half of `sign(x) - sign(-x)`, each of which is -1 there. It is one bit with
    `threshold(., 0, -1)` after it, as in `xnorpp.nn.sign`, and of numbers that are 0 by chance alone
    (`bits/zeros.py`)."""
    source = trace.node(input)
    zeros = trace.signs.next_share(input, result, trace.modules[-1][1])
    if zeros == 0:
        made = trace.emit("signs", [trace.emit_sign(source)], source.shape)
        trace.signs.one_bit[id(made)] = made
        return made
    opposite = affine(trace, source, np.array([-1.0]), None)
    trace.keep(opposite, source, torch.neg)
    halves = [
        affine(trace, trace.emit("signs", [trace.emit_sign(node)], node.shape), np.array([0.5]), None)
        for node in (source, opposite)
    ]
    node = trace.emit("sub", halves, source.shape)
    trace.signs.three_way[id(node)] = ThreeWay(node, source, zeros)
    return node


def threshold(
    trace: Trace, result: Tensor, input: Any, threshold: float, value: float, inplace: bool = False
) -> Node:
    source = trace.node(input)
    if id(source) in trace.signs.three_way and threshold == 0 and value == -1:
        argument = trace.signs.three_way[id(source)].argument
        return trace.emit("signs", [trace.emit_sign(argument)], source.shape)
    if source.op == "signs" and threshold == 0 and value == -1:
        return source
    if threshold == 0 and value == 0:
        return relu(trace, result, input)
    return composed_value(trace, elementwise.threshold, (input, threshold, value), result)


def dropout(
    trace: Trace, result: Tensor, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Node:
    if training and p > 0:
        raise trace.fail("is active in evaluation too", "pass training=self.training")
    return trace.node(input)


def curve(name: str, torch_function: Callable[..., Tensor], size: float | None = None) -> Handler:
    """A handler for a function of one number; `size` is the largest magnitude of its value below 0 or where
    it is bounded, whose rounding a threshold after it must allow for."""

    def handler(trace: Trace, result: Tensor, input: Any, inplace: bool = False, *, out: Any = None) -> Node:
        return emit_curve(trace, trace.node(input), name, torch_function, size)

    return handler


def emit_curve(
    trace: Trace, source: Node, name: str, torch_function: Callable[..., Tensor], size: float | None = None,
    attrs: dict[str, Any] | None = None,
) -> Node:  # fmt: skip
    def trained(v: Array) -> Array:
        return torch_function(torch.from_numpy(np.array(v, np.float32))).numpy()

    node = trace.emit(name, [source], source.shape, attrs, None, trained)
    node.size = None if size is None else np.array([size])
    return node


def gelu(trace: Trace, result: Tensor, input: Any, approximate: str = "none") -> Node:
    name = "gelu" if approximate == "none" else "gelu_tanh"
    return emit_curve(trace, trace.node(input), name, lambda v: F.gelu(v, approximate=approximate))


def elu(trace: Trace, result: Tensor, input: Any, alpha: float = 1.0, inplace: bool = False) -> Node:
    alpha = float(alpha)
    size, attrs = abs(alpha), {"alpha": float(np.float32(alpha))}
    return emit_curve(trace, trace.node(input), "elu", lambda v: F.elu(v, alpha), size, attrs)


def celu(trace: Trace, result: Tensor, input: Any, alpha: float = 1.0, inplace: bool = False) -> Node:
    """`alpha * elu(x / alpha)`."""
    inner = affine(trace, trace.node(input), np.array([1.0 / alpha]), None)
    node = emit_curve(trace, inner, "elu", lambda v: F.elu(v, 1.0), 1.0, {"alpha": 1.0})
    return affine(trace, node, np.array([float(alpha)]), None)


def selu(trace: Trace, result: Tensor, input: Any, inplace: bool = False) -> Node:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    source, attrs = trace.node(input), {"alpha": float(np.float32(alpha))}
    node = emit_curve(trace, source, "elu", lambda v: F.elu(v, alpha), alpha, attrs)
    return affine(trace, node, np.array([scale]), None)


def softplus(trace: Trace, result: Tensor, input: Any, beta: float = 1, threshold: float = 20) -> Node:
    """`log(1 + exp(beta*x)) / beta`; where torch gives x itself, beyond the threshold, the two agree."""
    source = trace.node(input)
    if threshold < 15:
        return composed_value(trace, elementwise.softplus, (input, beta, threshold), result)
    if beta != 1:
        source = affine(trace, source, np.array([float(beta)]), None)
    node = emit_curve(trace, source, "softplus", F.softplus)
    return node if beta == 1 else affine(trace, node, np.array([1.0 / beta]), None)


def logsigmoid(trace: Trace, result: Tensor, input: Any) -> Node:
    negative = affine(trace, trace.node(input), np.array([-1.0]), None)
    return affine(trace, emit_curve(trace, negative, "softplus", F.softplus), np.array([-1.0]), None)


def hardsigmoid(trace: Trace, result: Tensor, input: Any, inplace: bool = False) -> Node:
    """`min(max(x/6 + 1/2, 0), 1)`."""
    moved = affine(trace, trace.node(input), np.array([1.0 / 6.0]), np.array([0.5]))
    return bounded(trace, moved, 0.0, 1.0)


def softsign(trace: Trace, result: Tensor, input: Any) -> Node:
    source = trace.node(input)
    size = affine(trace, emit_slope(trace, source, np.array([-1.0])), None, np.array([1.0]))
    return trace.emit("div", [source, size], source.shape)


def square(trace: Trace, result: Tensor, input: Any) -> Node:
    source = trace.node(input)
    return trace.emit("mul", [source, source], source.shape)


def power(trace: Trace, result: Tensor, input: Any, exponent: Any) -> Node:
    value = as_number(trace, exponent)
    if value is None or not trace.is_value(input):
        if _is_plain(trace, input, exponent):
            return composed_value(trace, elementwise.power, (input, exponent), result)
        e = np.zeros(1) if trace.is_value(exponent) else trace.constant(exponent)
        args = (input, exponent, bool((e != np.rint(e)).any()))
        return composed_value(trace, elementwise.any_power, args, result)
    source = trace.node(input)
    if value == 0:
        return affine(trace, source, np.array([0.0]), np.array([1.0]))
    if abs(value) == 0.5:
        root = emit_curve(trace, source, "sqrt", torch.sqrt)
        return root if value > 0 else emit_curve(trace, root, "reciprocal", torch.reciprocal)
    if not value.is_integer():
        return emit_power(trace, source, value)
    if not 1 <= abs(value) <= _MOST_FACTORS:
        raise trace.fail(
            f"with the exponent {value:g} is not supported", f"use 1 to {_MOST_FACTORS}, or a fraction"
        )
    made = _whole_power(trace, source, int(abs(value)))
    return made if value > 0 else emit_curve(trace, made, "reciprocal", torch.reciprocal)


def _is_plain(trace: Trace, base: Any, exponent: Any) -> bool:
    """Whether a power is one by exp and log: of numbers above 0, or where torch has none of others."""
    if not trace.is_value(base):
        return bool((trace.constant(base) > 0).all())
    e = None if trace.is_value(exponent) else trace.constant(exponent)
    if e is not None and not (e == np.rint(e)).any():
        return True
    node = trace.node(base)
    if node.op == "relu":
        return e is not None and bool((e > 0).all())
    return node.op in _ABOVE_ZERO or (node.op == "hardtanh" and node.attrs["min"] > 0)


def _whole_power(trace: Trace, source: Node, count: int) -> Node:
    """A product of as many factors, which may be negative, by squares of squares."""
    if count == 1:
        return source
    half = _whole_power(trace, source, count // 2)
    made = trace.emit("mul", [half, half], source.shape)
    return trace.emit("mul", [made, source], source.shape) if count % 2 else made


def emit_power(trace: Trace, source: Node, exponent: float) -> Node:
    """A power of numbers that are not negative, by exp and log."""
    natural = emit_curve(trace, source, "log", torch.log)
    return emit_curve(trace, affine(trace, natural, np.array([exponent]), None), "exp", torch.exp)


def log1p(trace: Trace, result: Tensor, input: Any) -> Node:
    more = affine(trace, trace.node(input), None, np.array([1.0]))
    return emit_curve(trace, more, "log", torch.log)


def expm1(trace: Trace, result: Tensor, input: Any) -> Node:
    return affine(trace, emit_curve(trace, trace.node(input), "exp", torch.exp), None, np.array([-1.0]))


def _log_of_base(base: float) -> Handler:
    def handler(trace: Trace, result: Tensor, input: Any) -> Node:
        natural = emit_curve(trace, trace.node(input), "log", torch.log)
        return affine(trace, natural, np.array([1.0 / np.log(base)]), None)

    return handler


def glu(trace: Trace, result: Tensor, input: Any, dim: int = -1) -> Node:
    """`a * sigmoid(b)`, the halves of an axis."""
    source = trace.node(input)
    axis = int(dim) % (len(source.shape) + 1) - 1
    if axis < 0:
        raise trace.fail("along the batch axis is not supported", "use an axis of each image")
    half = source.shape[axis] // 2
    value, gate = sliced(trace, source, axis, 0, half), sliced(trace, source, axis, half, None)
    gate = emit_curve(trace, gate, "sigmoid", torch.sigmoid, 1.0)
    return trace.emit("mul", [value, gate], value.shape)


def rsqrt(trace: Trace, result: Tensor, input: Any) -> Node:
    root = emit_curve(trace, trace.node(input), "sqrt", torch.sqrt)
    return emit_curve(trace, root, "reciprocal", torch.reciprocal)


FUNCTIONS: dict[str, Handler] = {
    "sigmoid": curve("sigmoid", torch.sigmoid, 1.0),
    "silu": curve("silu", F.silu),
    "tanh": curve("tanh", torch.tanh, 1.0),
    "mish": curve("mish", F.mish),
    "hardswish": curve("hardswish", F.hardswish),
    "exp": curve("exp", torch.exp),
    "log": curve("log", torch.log),
    "erf": curve("erf", torch.erf, 1.0),
    "sqrt": curve("sqrt", torch.sqrt),
    "reciprocal": curve("reciprocal", torch.reciprocal),
    "rsqrt": rsqrt,
    "log1p": log1p,
    "expm1": expm1,
    "log2": _log_of_base(2.0),
    "log10": _log_of_base(10.0),
    "glu": glu,
    "square": square,
    "pow": power,
    "gelu": gelu,
    "elu": elu,
    "celu": celu,
    "selu": selu,
    "softplus": softplus,
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), logsigmoid),
    "hardsigmoid": hardsigmoid,
    "softsign": softsign,
    "relu": relu,
    "prelu": prelu,
    "leaky_relu": leaky_relu,
    "hardtanh": hardtanh,
    "relu6": relu6,
    **dict.fromkeys(("sign", "sgn"), sign),
    "threshold": threshold,
    **dict.fromkeys(("abs", "absolute"), absolute),
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"), dropout
    ),
}
