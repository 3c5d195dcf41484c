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
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight

_IDENTITY = ("contiguous", "clone", "detach", "float", "to", "type", "type_as", "requires_grad_", "__get__")
_LARGEST = float(np.finfo(np.float32).max)


def record(trace: Trace, name: str, args: Any, kwargs: Any, result: Tensor) -> Node:
    """The node for one call of a torch function."""
    plain = name.strip("_") if name.startswith("__") else name.rstrip("_")
    if name in _IDENTITY:
        if not result.is_floating_point() or (
            name == "__get__" and tuple(result.shape[1:]) != trace.node(args[0]).shape
        ):
            raise trace.fail("is not supported")
        return trace.node(args[0])
    handler = _FUNCTIONS.get(plain)
    if handler is None:
        raise trace.fail("is not supported")
    try:
        return handler(trace, result, *args, **kwargs)
    except TypeError as error:
        raise trace.fail(f"is not supported with these arguments ({error})") from error


def _pair(trace: Trace, value: Any) -> list[int]:
    if isinstance(value, int):
        return [value, value]
    values = [int(v) for v in value]
    return values * 2 if len(values) == 1 else values


def _shape(result: Tensor) -> tuple[int, ...]:
    return tuple(result.shape[1:])


def picture(trace: Trace, node: Node) -> Node:
    if len(node.shape) != 3:
        raise trace.fail(
            f"is applied to shape (n, {', '.join(map(str, node.shape))}); (n, c, h, w) is needed"
        )
    return node


def conv2d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Node:  # fmt: skip
    source, w = picture(trace, trace.node(input)), trace.constant(weight)
    dilations = _pair(trace, dilation)
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilations, w.shape[2:])]
        if padding == "same" and any(r % 2 for r in reach):
            raise trace.fail("with padding='same' pads unevenly here, which is not supported")
        padding = [r // 2 for r in reach] if padding == "same" else 0
    attrs: dict[str, Any] = {
        "stride": _pair(trace, stride),
        "padding": _pair(trace, padding),
        "dilation": dilations,
        "groups": int(groups),
    }
    bits, pad_value = _padded_bits(source, attrs["padding"])
    if bits is not None and _is_signs(w):
        taps = {**attrs, "padding": pad_value[1], "pad_value": pad_value[0]}
        dot = trace.emit("binary_conv2d", [bits], _shape(result), taps, {"weight": pack_conv_weight(w)})
        return _shifted(trace, dot, bias)
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": trace.constant(bias)}
    return trace.emit("conv2d", [source], _shape(result), attrs, tensors)


def linear(trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None) -> Node:
    source, w = trace.node(input), trace.constant(weight)
    if len(source.shape) != 1:
        raise trace.fail(f"is applied to {len(source.shape) + 1} axes; (n, c) is needed")
    if source.op == "signs" and _is_signs(w):
        dot = trace.emit(
            "binary_linear", [source.inputs[0]], _shape(result), None, {"weight": pack_linear_weight(w)}
        )
        return _shifted(trace, dot, bias)
    tensors = {"weight": w} if bias is None else {"weight": w, "bias": trace.constant(bias)}
    return trace.emit("linear", [source], _shape(result), None, tensors)


def _is_signs(weight: Array) -> bool:
    return bool(np.all(np.abs(weight) == 1))


def _padded_bits(source: Node, padding: list[int]) -> tuple[Node | None, tuple[int, list[int]]]:
    """The bits behind a real value of -1 and +1, and what is around them: (bits, (pad value, padding))."""
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
        raise trace.fail("has no running statistics (track_running_stats=False), so it depends on the batch")
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
        raise trace.fail(f"has a constant of shape {c.shape}, which does not fit one image")
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
        if first.shape != _shape(result) or second.shape not in (first.shape, (1, *first.shape[1:])):
            raise trace.fail(f"of shapes {first.shape} and {second.shape} is not supported")
        return trace.emit("mul", [first, second], first.shape)
    value, constant = (a, b) if trace.is_value(a) else (b, a)
    source = trace.node(value)
    vector, spatial = _constant_parts(trace, source, constant)
    return affine(trace, source, vector, None, spatial)


def div(trace: Trace, result: Tensor, a: Any, b: Any, *, rounding_mode: Any = None) -> Node:
    if trace.is_value(b) or rounding_mode is not None:
        raise trace.fail("by a value computed from the input is not supported")
    source = trace.node(a)
    vector, spatial = _constant_parts(trace, source, b)
    if vector is None:
        raise trace.fail(
            f"by a constant with {'row and col' if 'row' in spatial else 'pixels'} is not supported"
        )
    divisor = vector.astype(np.float32)
    return affine(trace, source, 1.0 / vector.astype(np.float64), None, None, lambda v: v / divisor)


def _plus(trace: Trace, value: Any, constant: Any, sign: float) -> Node:
    source = trace.node(value)
    vector, spatial = _constant_parts(trace, source, constant)
    if vector is None or spatial:
        raise trace.fail("of a constant that differs from pixel to pixel is not supported")
    return affine(trace, source, None, sign * vector.astype(np.float64))


def add(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    if trace.is_value(a) and trace.is_value(b):
        first, second = trace.node(a), trace.node(b)
        if first.shape != second.shape:
            raise trace.fail(f"of shapes {first.shape} and {second.shape} is not supported; equal ones are")
        if alpha != 1:
            second = affine(trace, second, np.array([float(alpha)]), None)
        return trace.emit("add", [first, second], first.shape)
    if trace.is_value(a):
        return _plus(trace, a, b, float(alpha))
    if alpha != 1:
        raise trace.fail("with `alpha` behind a constant is not supported")
    return _plus(trace, b, a, 1.0)


def sub(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    if trace.is_value(b):
        negative = affine(trace, trace.node(b), np.array([-float(alpha)]), None)
        if trace.is_value(a):
            return trace.emit("add", [trace.node(a), negative], negative.shape)
        vector, spatial = _constant_parts(trace, negative, a)
        if vector is None or spatial:
            raise trace.fail("from a constant that differs from pixel to pixel is not supported")
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
        raise trace.fail("with tensor limits is not supported")
    if min == 0 and max is None:
        return relu(trace, result, input)
    return hardtanh(trace, result, input, -_LARGEST if min is None else min, _LARGEST if max is None else max)


def sign(trace: Trace, result: Tensor, input: Any) -> Node:
    """torch.sign is 0 at 0; it packs only with `threshold(., 0, -1)` behind it, as in `xnorpp.nn.sign`."""
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


def max_pool2d(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Node:  # fmt: skip
    if _pair(trace, dilation) != [1, 1]:
        raise trace.fail(f"with dilation={dilation} is not supported")
    kernel = _pair(trace, kernel_size)
    attrs = {
        "kernel": kernel,
        "stride": _pair(trace, stride) if stride not in (None, [], ()) else kernel,
        "padding": _pair(trace, padding),
        "ceil_mode": bool(ceil_mode),
    }
    return trace.emit("max_pool2d", [picture(trace, trace.node(input))], _shape(result), attrs)


def avg_pool2d(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Node:  # fmt: skip
    if divisor_override is not None:
        raise trace.fail("with `divisor_override` is not supported")
    kernel = _pair(trace, kernel_size)
    attrs = {
        "kernel": kernel,
        "stride": _pair(trace, stride) if stride not in (None, [], ()) else kernel,
        "padding": _pair(trace, padding),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(count_include_pad),
    }
    return trace.emit("avg_pool2d", [picture(trace, trace.node(input))], _shape(result), attrs)


def _adaptive_kernel(trace: Trace, source: Node, shape: tuple[int, ...]) -> list[int]:
    sizes = list(zip(source.shape[1:], shape[1:]))
    if any(size % out for size, out in sizes):
        raise trace.fail(
            f"from {source.shape[1:]} to {shape[1:]} has windows of different sizes; not supported"
        )
    return [size // out for size, out in sizes]


def adaptive_avg_pool2d(trace: Trace, result: Tensor, input: Any, output_size: Any) -> Node:
    source = picture(trace, trace.node(input))
    if _shape(result)[1:] == (1, 1):
        return trace.emit("global_avg_pool", [source], _shape(result))
    if _shape(result) == source.shape:
        return source
    return avg_pool2d(trace, result, input, _adaptive_kernel(trace, source, _shape(result)))


def adaptive_max_pool2d(
    trace: Trace, result: Tensor, input: Any, output_size: Any, return_indices: bool = False
) -> Node:
    source = picture(trace, trace.node(input))
    return max_pool2d(trace, result, input, _adaptive_kernel(trace, source, _shape(result)))


def mean(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Node:
    source = trace.node(input)
    dims = (
        sorted(d % 4 for d in (dim if isinstance(dim, list | tuple) else [dim])) if dim is not None else None
    )
    if len(source.shape) != 3 or dims != [2, 3] or kwargs.get("dtype") is not None:
        raise trace.fail(f"over dim={dim} is not supported; over (2, 3) it is")
    pooled = trace.emit("global_avg_pool", [source], (source.shape[0], 1, 1))
    return pooled if keepdim else trace.emit("flatten", [pooled], (source.shape[0],))


def reshape(trace: Trace, result: Tensor, input: Any, *args: Any, **kwargs: Any) -> Node:
    """Any reshaping: nothing where the shape stays, `flatten` where an image becomes a vector."""
    source, shape = trace.node(input), _shape(result)
    if result.shape[0] == trace.batch and shape == source.shape:
        return source
    if result.shape[0] != trace.batch or len(shape) != 1:
        raise trace.fail(f"from {source.shape} to {shape} is not supported; flattening an image is")
    return trace.emit("flatten", [source], shape)


def getitem(trace: Trace, result: Tensor, input: Any, index: Any) -> Node:
    """`x[:, :, ::s, ::t]`, a pooling over single pixels; and `x[:, :, 0, 0]` of a picture of one pixel."""
    source = trace.node(input)
    parts = index if isinstance(index, tuple) else (index,)
    everything = slice(None)
    if all(part == everything or part is Ellipsis for part in parts):
        return source
    if len(source.shape) == 3 and len(parts) == 4 and parts[0] == parts[1] == everything:
        if parts[2] == parts[3] == 0 and source.shape[1:] == (1, 1):
            return trace.emit("flatten", [source], _shape(result))
        rows, cols = parts[2], parts[3]
        if all(isinstance(p, slice) and p.start in (None, 0) and p.stop is None for p in (rows, cols)):
            steps = [rows.step or 1, cols.step or 1]
            return max_pool2d(trace, result, input, [1, 1], steps)
    raise trace.fail("is not supported; x[:, :, ::s, ::s] is")


def pad(
    trace: Trace, result: Tensor, input: Any, pad: Any, mode: str = "constant", value: Any = None
) -> Node:
    source = picture(trace, trace.node(input))
    edges = [int(p) for p in pad] + [0] * (8 - len(pad))
    if mode != "constant" or min(edges) < 0 or edges[6:] != [0, 0]:
        raise trace.fail(f"with mode={mode!r} and pad={tuple(pad)} is not supported; constant padding is")
    attrs = {
        "padding": [edges[4], edges[5], edges[2], edges[3], edges[0], edges[1]],
        "value": float(np.float32(value or 0.0)),
    }
    return trace.emit("pad2d", [source], _shape(result), attrs)


def cat(trace: Trace, result: Tensor, tensors: Any, dim: int = 0, **kwargs: Any) -> Node:
    """Joined channels as a sum: each part padded with channels of zeros to the whole width."""
    parts = [picture(trace, trace.node(t)) for t in tensors]
    if dim not in (1, -3) or kwargs:
        raise trace.fail(f"along dim={dim} is not supported; along 1 it is")
    total, begin, joined = result.shape[1], 0, None
    for part in parts:
        edges = [begin, total - begin - part.shape[0], 0, 0, 0, 0]
        wide = trace.emit("pad2d", [part], _shape(result), {"padding": edges, "value": 0.0})
        joined = wide if joined is None else trace.emit("add", [joined, wide], _shape(result))
        begin += part.shape[0]
    if joined is None:
        raise trace.fail("of nothing is not supported")
    return joined


def softmax(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> Node:
    source = trace.node(input)
    if len(source.shape) != 1 or dim not in (None, 1, -1) or dtype is not None:
        raise trace.fail(
            f"over dim={dim} of {len(source.shape) + 1} axes is not supported; over (n, c) it is"
        )
    return trace.emit("softmax", [source], source.shape)


def dropout(
    trace: Trace, result: Tensor, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Node:
    if training and p > 0:
        raise trace.fail("is active in evaluation too; pass training=self.training")
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
