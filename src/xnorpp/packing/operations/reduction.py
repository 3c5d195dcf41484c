"""Sums, means and extremes along axes, and normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import channels_back, channels_first, reshaped
from xnorpp.packing.operations.activation import bounded, emit_curve, emit_power, emit_slope
from xnorpp.packing.operations.arguments import Handler, affine, mixes_images
from xnorpp.packing.operations.arithmetic import batch_norm, plus_constant, times_constant
from xnorpp.packing.trace import Trace

_LARGEST = float(np.finfo(np.float32).max)


def axes_of(trace: Trace, source: Node, dim: Any) -> list[int]:
    """Axes of a value that `dim` of its tensor names; all of them where it is None."""
    rank = len(source.shape)
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        raise trace.fail("over the whole batch is not supported")
    dims = sorted(int(d) % (rank + 1) for d in (dim if isinstance(dim, list | tuple) else [dim]))
    if 0 in dims:
        raise mixes_images(trace)
    return [d - 1 for d in dims]


def emit_reduce(trace: Trace, source: Node, function: str, axes: Sequence[int]) -> Node:
    """The value with these axes reduced to one element."""
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(source.shape))
    if function == "mean" and len(shape) == 3 and list(axes) == [1, 2]:
        return trace.emit("global_avg_pool", [source], shape)
    return trace.emit("reduce", [source], shape, {"function": function, "axes": list(axes)})


def _reduction(function: str) -> Handler:
    def handler(
        trace: Trace, result: Tensor, input: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any
    ) -> Node:
        if kwargs.get("dtype") not in (None, torch.float32, torch.float64):
            raise trace.fail("with this `dtype` is not supported", "leave `dtype` out")
        source = trace.node(input)
        axes = axes_of(trace, source, dim)
        return _without(trace, emit_reduce(trace, source, function, axes), axes, keepdim)

    return handler


def _without(trace: Trace, node: Node, axes: Sequence[int], keepdim: bool) -> Node:
    if keepdim:
        return node
    return reshaped(trace, node, [n for axis, n in enumerate(node.shape) if axis not in axes] or [1])


def norm(
    trace: Trace, result: Tensor, input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False,
    out: Any = None, dtype: Any = None,
) -> Node:  # fmt: skip
    source = trace.node(input)
    axes = axes_of(trace, source, dim)
    return _without(trace, _length(trace, source, p, axes), axes, keepdim)


def _length(trace: Trace, source: Node, p: Any, axes: list[int]) -> Node:
    """The root of squares, the sum or the largest of magnitudes along axes, which stay with one element."""
    if p in (2, "fro", None):
        return emit_reduce(trace, source, "l2", axes)
    if p not in (1, math.inf):
        raise trace.fail(f"with p={p} is not supported", "use p=1, 2 or infinity")
    return emit_reduce(trace, emit_slope(trace, source, np.array([-1.0])), "sum" if p == 1 else "max", axes)


def vector_norm(
    trace: Trace, result: Tensor, input: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False,
    **kwargs: Any,
) -> Node:  # fmt: skip
    return norm(trace, result, input, ord, dim, keepdim)


def normalize(
    trace: Trace, result: Tensor, input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, **kwargs: Any
) -> Node:
    """`x / max(|x|, eps)`."""
    source = trace.node(input)
    length = _length(trace, source, p, axes_of(trace, source, dim))
    return trace.emit("div", [source, bounded(trace, length, eps, _LARGEST)], source.shape)


def _variance(trace: Trace, source: Node, axes: list[int], correction: float) -> Node:
    mean = emit_reduce(trace, source, "mean", axes)
    centred = trace.emit("sub", [source, mean], source.shape)
    squares = trace.emit("mul", [centred, centred], source.shape)
    count = math.prod(source.shape[axis] for axis in axes)
    if count <= correction:
        raise trace.fail(f"of {count} numbers is not supported")
    found = emit_reduce(trace, squares, "mean", axes)
    return found if not correction else affine(trace, found, np.array([count / (count - correction)]), None)


def var(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, unbiased: Any = True, keepdim: bool = False,
    *, correction: Any = None,
) -> Node:  # fmt: skip
    source = trace.node(input)
    axes = axes_of(trace, source, dim)
    less = float(unbiased) if correction is None else float(correction)
    return _without(trace, _variance(trace, source, axes, less), axes, keepdim)


def std(trace: Trace, result: Tensor, *args: Any, **kwargs: Any) -> Node:
    return emit_curve(trace, var(trace, result, *args, **kwargs), "sqrt", torch.sqrt)


def emit_norm(trace: Trace, source: Node, groups: int, pixels: bool, centre: bool, eps: float) -> Node:
    attrs = {"groups": groups, "pixels": pixels, "centre": centre, "eps": float(eps)}
    return trace.emit("norm", [source], source.shape, attrs)


def _vectors(trace: Trace, weight: Any, bias: Any) -> tuple[Array | None, Array | None]:
    w, b = (None if t is None else trace.constant(t).reshape(-1) for t in (weight, bias))
    return w, b


def _trailing(
    trace: Trace, source: Node, axes: int, weight: Any, bias: Any, centre: bool, eps: float
) -> Node:
    """Normalisation over the last axes. Over the last alone it is that of the channels of each pixel, of a
    value with that axis first; over more, the axes before are groups of their own."""
    rank = len(source.shape)
    if axes > rank:
        raise mixes_images(trace)
    if axes == 1:
        first = channels_first(trace, source, rank - 1)
        made = emit_norm(trace, first, 1, False, centre, eps)
        if weight is not None or bias is not None:
            made = affine(trace, made, *_vectors(trace, weight, bias))
        return channels_back(trace, made, rank - 1)
    lead = math.prod(source.shape[: rank - axes])
    flat = source if axes == rank else reshaped(trace, source, (lead, *source.shape[rank - axes :]))
    made = emit_norm(trace, flat, 1 if axes == rank else lead, True, centre, eps)
    made = reshaped(trace, made, source.shape)
    made = made if weight is None else times_constant(trace, made, weight)
    return made if bias is None else plus_constant(trace, made, bias)


def layer_norm(
    trace: Trace, result: Tensor, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Node:  # fmt: skip
    return _trailing(trace, trace.node(input), len(normalized_shape), weight, bias, True, eps)


def rms_norm(
    trace: Trace, result: Tensor, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Node:
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _trailing(trace, trace.node(input), len(normalized_shape), weight, None, False, eps)


def group_norm(
    trace: Trace, result: Tensor, input: Any, num_groups: int, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Node:  # fmt: skip
    made = emit_norm(trace, trace.node(input), int(num_groups), True, True, eps)
    if weight is None and bias is None:
        return made
    return affine(trace, made, *_vectors(trace, weight, bias))


def instance_norm(
    trace: Trace, result: Tensor, input: Any, running_mean: Any = None, running_var: Any = None,
    weight: Any = None, bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Node:  # fmt: skip
    if not use_input_stats:
        return batch_norm(trace, result, input, running_mean, running_var, weight, bias, eps=eps)
    source = trace.node(input)
    return group_norm(trace, result, input, source.shape[0], weight, bias, eps)


def logsumexp(trace: Trace, result: Tensor, input: Any, dim: Any, keepdim: bool = False) -> Node:
    """`log(sum(exp(x - max))) + max`."""
    source = trace.node(input)
    axes = axes_of(trace, source, dim)
    most = emit_reduce(trace, source, "max", axes)
    small = trace.emit("sub", [source, most], source.shape)
    total = emit_reduce(trace, emit_curve(trace, small, "exp", torch.exp), "sum", axes)
    made = trace.emit("add", [emit_curve(trace, total, "log", torch.log), most], most.shape)
    return _without(trace, made, axes, keepdim)


def local_response_norm(
    trace: Trace,
    result: Tensor,
    input: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> Node:
    """`x / (k + alpha * the mean of squares of neighbouring channels) ** beta`, zeros beyond the ends."""
    source = trace.node(input)
    squares = trace.emit("mul", [source, source], source.shape)
    channels, pixels = source.shape[0], math.prod(source.shape[1:])
    rows = reshaped(trace, squares, (1, channels, pixels))
    edges = {"padding": [0, 0, size // 2, (size - 1) // 2, 0, 0], "value": 0.0}
    rows = trace.emit("pad2d", [rows], (1, channels + size - 1, pixels), edges)
    window = {"kernel": [size, 1], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    means = trace.emit("avg_pool2d", [rows], (1, channels, pixels), {**window, "count_include_pad": True})
    base = affine(trace, reshaped(trace, means, source.shape), np.array([float(alpha)]), np.array([float(k)]))
    return trace.emit("div", [source, emit_power(trace, base, float(beta))], source.shape)


FUNCTIONS: dict[str, Handler] = {
    "logsumexp": logsumexp,
    "local_response_norm": local_response_norm,
    "mean": _reduction("mean"),
    "sum": _reduction("sum"),
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "norm": norm,
    **dict.fromkeys(("vector_norm", "linalg_vector_norm"), vector_norm),
    "normalize": normalize,
    "var": var,
    "std": std,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
