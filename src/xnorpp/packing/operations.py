"""What each torch function and each of our layers means as nodes of a program.

A function here is called with the trace, the result and the torch function's own arguments, and has its name
(without the `_` of in-place forms). `_IDENTITY` change nothing in evaluation. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Array, Node, Trained
from xnorpp.packing.obstacles import Refusal, remedy_for
from xnorpp.packing.spatial import (
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
    avg_pool2d,
    cat,
    getitem,
    max_pool2d,
    mean,
    pad,
    pair,
    picture,
    reshape,
    shape_of,
)
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight

_IDENTITY = ("contiguous", "clone", "detach", "float", "to", "type", "type_as", "requires_grad_", "__get__")
_BROADCAST = (
    "give both values the same shape; where one scales whole channels, as in squeeze-excitation, leave this "
    "module unpacked: xnorpp.pack_submodules packs the modules around it"
)
_LARGEST = float(np.finfo(np.float32).max)


def plain_name(name: str) -> str:
    """A function's name without the underscores of operators and in-place forms."""
    return name.strip("_") if name.startswith("__") else name.rstrip("_")


def record(trace: Trace, name: str, args: Any, kwargs: Any, result: Tensor) -> Node:
    """The node for one call of a torch function."""
    plain = plain_name(name)
    if name in _IDENTITY:
        if not result.is_floating_point() or (
            name == "__get__" and tuple(result.shape[1:]) != trace.node(args[0]).shape
        ):
            raise trace.fail("is not supported", remedy_for(plain))
        return trace.node(args[0])
    handler = _FUNCTIONS.get(plain)
    if handler is None:
        raise trace.fail("is not supported", remedy_for(plain))
    try:
        return handler(trace, result, *args, **kwargs)
    except Refusal:
        raise
    except (TypeError, ValueError, LookupError) as error:  # a form of the call that the handler does not know
        raise trace.fail(f"is not supported with these arguments ({error})") from error


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
    if bits is not None and _is_signs(w):
        taps = {**attrs, "padding": pad_value[1], "pad_value": pad_value[0]}
        dot = trace.emit("binary_conv2d", [bits], shape_of(result), taps, {"weight": pack_conv_weight(w)})
        return _shifted(trace, dot, bias)
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": trace.constant(bias)}
    return trace.emit("conv2d", [source], shape_of(result), attrs, tensors)


def linear(trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None) -> Node:
    source, w = trace.node(input), trace.constant(weight)
    if len(source.shape) != 1:
        raise trace.fail(
            f"is applied to {len(source.shape) + 1} axes; (n, c) is needed",
            "flatten its input with nn.Flatten(), or use a 1x1 nn.Conv2d to mix the channels of each pixel",
        )
    if source.op == "signs" and _is_signs(w):
        dot = trace.emit(
            "binary_linear", [source.inputs[0]], shape_of(result), None, {"weight": pack_linear_weight(w)}
        )
        return _shifted(trace, dot, bias)
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": trace.constant(bias)}
    return trace.emit("linear", [source], shape_of(result), None, tensors)


def _is_signs(weight: Array) -> bool:
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


def _shifted(trace: Trace, dot: Node, bias: Any) -> Node:
    b = None if bias is None else trace.constant(bias)
    return affine(trace, dot, None, b)


def affine(
    trace: Trace, source: Node, mult: Array | None, add: Array | None,
    spatial: dict[str, Array] | None = None, trained: Trained | None = None, size: Array | None = None,
) -> Node:  # fmt: skip
    """`(x*spatial)*mult + add` with per-channel vectors; `trained` defaults to just that in float32."""
    channels = source.shape[0]
    tensors = dict(spatial or {})
    if mult is not None:
        tensors["mult"] = np.broadcast_to(mult.astype(np.float64).reshape(-1), (channels,))
    if add is not None:
        tensors["add"] = np.broadcast_to(add.astype(np.float64).reshape(-1), (channels,))
    if trained is None:
        m = None if mult is None else mult.reshape(-1).astype(np.float32)
        a = None if add is None else add.reshape(-1).astype(np.float32)

        def trained(v: Array) -> Array:
            v = v if m is None else v * m
            return v if a is None else v + a

    node = trace.emit("affine", [source], source.shape, None, tensors, trained)
    node.size = np.abs(tensors["add"]) if size is None and add is not None else size
    return node


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


def _constant_parts(trace: Trace, node: Node, constant: Any) -> tuple[Array | None, dict[str, Array]]:
    """A constant that broadcasts against a value, as (per-channel vector, spatial factor); one is empty."""
    c = trace.constant(constant)
    if c.size == 1:
        return c.reshape(1), {}
    rank = len(node.shape) + 1
    if c.ndim > rank or (c.ndim == rank and c.shape[0] != 1):
        raise trace.fail(
            f"has a constant of shape {c.shape}, which does not fit one image",
            "give the constant the shape of one image, or one that broadcasts to it",
        )
    shape = (1,) * (rank - c.ndim) + c.shape
    c = c.reshape(shape)[0]
    if len(node.shape) == 1:
        return c, {}
    channels, h, w = c.shape
    if h == w == 1:
        return c.reshape(-1), {}
    if channels > 1:
        return None, {"full": np.broadcast_to(c, node.shape)}
    if h > 1 and w > 1:
        return None, {"map": c[0]}
    row, col = (c[0, :, 0], np.ones(node.shape[2])) if h > 1 else (np.ones(node.shape[1]), c[0, 0])
    return None, {"row": row, "col": col}


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
    vector, spatial = _constant_parts(trace, source, constant)
    return affine(trace, source, vector, None, spatial)


def div(trace: Trace, result: Tensor, a: Any, b: Any, *, rounding_mode: Any = None) -> Node:
    if trace.is_value(b) or rounding_mode is not None:
        raise trace.fail("by a value computed from the input is not supported", "divide by a constant")
    source = trace.node(a)
    vector, spatial = _constant_parts(trace, source, b)
    if vector is None:
        raise trace.fail(
            f"by a constant with {'row and col' if 'row' in spatial else 'pixels'} is not supported",
            "multiply by the reciprocal of the constant",
        )
    divisor = vector.astype(np.float32)
    return affine(trace, source, 1.0 / vector.astype(np.float64), None, None, lambda v: v / divisor)


def _plus(trace: Trace, value: Any, constant: Any, sign: float) -> Node:
    source = trace.node(value)
    vector, spatial = _constant_parts(trace, source, constant)
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
        vector, spatial = _constant_parts(trace, negative, a)
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


def dropout(
    trace: Trace, result: Tensor, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Node:
    if training and p > 0:
        raise trace.fail("is active in evaluation too", "pass training=self.training")
    return trace.node(input)


_FUNCTIONS: dict[str, Callable[..., Node]] = {
    **{
        f.__name__: f
        for f in (
            conv2d, linear, batch_norm, mul, div, add, sub, rsub, neg, relu, prelu, leaky_relu, hardtanh,
            relu6, clamp, sign, threshold, max_pool2d, avg_pool2d, adaptive_avg_pool2d, adaptive_max_pool2d,
            mean, reshape, getitem, pad, cat, softmax, dropout,
        )
    },
    **dict.fromkeys(("multiply", "imul", "rmul"), mul),
    **dict.fromkeys(("divide", "true_divide", "truediv", "itruediv"), div),
    **dict.fromkeys(("iadd", "radd"), add),
    **dict.fromkeys(("subtract", "isub"), sub),
    **dict.fromkeys(("clip", "clamp_min", "clamp_max"), clamp),
    **dict.fromkeys(("concat", "concatenate"), cat),
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze", "view_as", "reshape_as"), reshape),
    **dict.fromkeys(("dropout1d", "dropout2d", "alpha_dropout", "feature_alpha_dropout"), dropout),
    **dict.fromkeys(("abs", "absolute"), absolute),
    "negative": neg,
}  # fmt: skip
_FUNCTIONS["clamp_max"] = lambda trace, result, input, max: clamp(trace, result, input, None, max)
