"""Sums, products, quotients and batch norm, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.operations.arguments import Handler, affine, constant_parts, shape_of
from xnorpp.packing.trace import Trace

_BROADCAST = (
    "give both values the same shape; where one scales whole channels, as in squeeze-excitation, leave this "
    "module unpacked: xnorpp.pack_submodules packs the modules around it"
)


def batch_norm(
    trace: Trace, result: Tensor, input: Any, running_mean: Any, running_var: Any, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Node:  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise trace.fail(
            "has no running statistics (track_running_stats=False), so it depends on the batch",
            "set track_running_stats=True",
        )
    source = trace.node(input)
    mean, var = trace.constant(running_mean), trace.constant(running_var)
    w = np.ones_like(mean) if weight is None else trace.constant(weight)
    b = np.zeros_like(mean) if bias is None else trace.constant(bias)
    # As torch computes it on a processor: alpha = weight * (1/std), beta = bias - mean*alpha, x*alpha + beta,
    # in float32, a multiply with its add rounded once. (float64 holds a product of two float32 exactly.)
    alpha = (w * (1 / np.sqrt(var + np.asarray(eps, var.dtype)))).astype(np.float32)
    wide, shift = alpha.astype(np.float64), mean.astype(np.float64) * alpha
    beta = (b - shift).astype(np.float32).astype(np.float64)
    size = np.abs(b.astype(np.float64)) + np.abs(shift)
    return affine(trace, source, wide, beta, None, lambda v: (v * wide + beta).astype(np.float32), size)


def mul(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
    if trace.is_value(a) and trace.is_value(b):
        first, second = trace.node(a), trace.node(b)
        if second.shape == result.shape[1:] and first.shape != second.shape:
            first, second = second, first
        if first.shape != shape_of(result) or second.shape not in (first.shape, (1, *first.shape[1:])):
            raise trace.fail(f"of shapes {first.shape} and {second.shape} is not supported", _BROADCAST)
        return trace.emit("mul", [first, second], first.shape)
    value, constant = (a, b) if trace.is_value(a) else (b, a)
    source = trace.node(value)
    vector, spatial = constant_parts(trace, source, constant)
    return affine(trace, source, vector, None, spatial)


def div(trace: Trace, result: Tensor, a: Any, b: Any, *, rounding_mode: Any = None) -> Node:
    if trace.is_value(b) or rounding_mode is not None:
        raise trace.fail("by a value computed from the input is not supported", "divide by a constant")
    source = trace.node(a)
    vector, spatial = constant_parts(trace, source, b)
    if vector is None:
        raise trace.fail(
            f"by a constant with {'row and col' if 'row' in spatial else 'pixels'} is not supported",
            "multiply by the reciprocal of the constant",
        )
    divisor = vector.astype(np.float32)
    return affine(trace, source, 1.0 / vector.astype(np.float64), None, None, lambda v: v / divisor)


def _plus(trace: Trace, value: Any, constant: Any, sign: float) -> Node:
    source = trace.node(value)
    vector, spatial = constant_parts(trace, source, constant)
    if vector is None or spatial:
        raise trace.fail(
            "of a constant that differs from pixel to pixel is not supported", "use one constant per channel"
        )
    return affine(trace, source, None, sign * vector.astype(np.float64))


def add(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    if trace.is_value(a) and trace.is_value(b):
        first, second = trace.node(a), trace.node(b)
        if first.shape != second.shape:
            raise trace.fail(
                f"of shapes {first.shape} and {second.shape} is not supported; equal ones are", _BROADCAST
            )
        if alpha != 1:
            second = affine(trace, second, np.array([float(alpha)]), None)
        return trace.emit("add", [first, second], first.shape)
    if trace.is_value(a):
        return _plus(trace, a, b, float(alpha))
    if alpha != 1:
        raise trace.fail("with `alpha` after a constant is not supported", "multiply the value first")
    return _plus(trace, b, a, 1.0)


def sub(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    if trace.is_value(b):
        if trace.is_value(a) and trace.node(a).shape != trace.node(b).shape:
            shapes = f"{trace.node(a).shape} and {trace.node(b).shape}"
            raise trace.fail(f"of shapes {shapes} is not supported; equal ones are", _BROADCAST)
        negative = affine(trace, trace.node(b), np.array([-float(alpha)]), None)
        if trace.is_value(a):
            return trace.emit("add", [trace.node(a), negative], negative.shape)
        vector, spatial = constant_parts(trace, negative, a)
        if vector is None or spatial:
            raise trace.fail(
                "from a constant that differs from pixel to pixel is not supported",
                "use one constant per channel",
            )
        return affine(trace, negative, None, vector)
    return _plus(trace, a, b, -float(alpha))


def rsub(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    return sub(trace, result, b, a, alpha=alpha)


def neg(trace: Trace, result: Tensor, input: Any) -> Node:
    return affine(trace, trace.node(input), np.array([-1.0]), None)


FUNCTIONS: dict[str, Handler] = {
    "batch_norm": batch_norm,
    **dict.fromkeys(("mul", "multiply", "imul", "rmul"), mul),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), div),
    **dict.fromkeys(("add", "iadd", "radd"), add),
    **dict.fromkeys(("sub", "subtract", "isub"), sub),
    "rsub": rsub,
    **dict.fromkeys(("neg", "negative"), neg),
}
