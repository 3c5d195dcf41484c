"""Pools and means over windows of an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.operations.arguments import Handler, pair, picture, shape_of
from xnorpp.packing.trace import Trace


def max_pool2d(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Node:  # fmt: skip
    if pair(dilation) != [1, 1]:
        raise trace.fail(f"with dilation={dilation} is not supported", "use dilation=1 and a larger kernel")
    kernel = pair(kernel_size)
    attrs = {
        "kernel": kernel,
        "stride": pair(stride) if stride not in (None, [], ()) else kernel,
        "padding": pair(padding),
        "ceil_mode": bool(ceil_mode),
    }
    return trace.emit("max_pool2d", [picture(trace, trace.node(input))], shape_of(result), attrs)


def avg_pool2d(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Node:  # fmt: skip
    if divisor_override is not None:
        raise trace.fail("with `divisor_override` is not supported", "multiply the pooled value instead")
    kernel = pair(kernel_size)
    attrs = {
        "kernel": kernel,
        "stride": pair(stride) if stride not in (None, [], ()) else kernel,
        "padding": pair(padding),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(count_include_pad),
    }
    return trace.emit("avg_pool2d", [picture(trace, trace.node(input))], shape_of(result), attrs)


def _adaptive_kernel(trace: Trace, source: Node, shape: tuple[int, ...]) -> list[int]:
    sizes = list(zip(source.shape[1:], shape[1:]))
    if any(size % out for size, out in sizes):
        raise trace.fail(
            f"from {source.shape[1:]} to {shape[1:]} has windows of different sizes, which is not supported",
            f"choose an output size that divides {source.shape[1:]}, such as 1, or an input size to match",
        )
    return [size // out for size, out in sizes]


def adaptive_avg_pool2d(trace: Trace, result: Tensor, input: Any, output_size: Any) -> Node:
    source = picture(trace, trace.node(input))
    if shape_of(result)[1:] == (1, 1):
        return trace.emit("global_avg_pool", [source], shape_of(result))
    if shape_of(result) == source.shape:
        return source
    return avg_pool2d(trace, result, input, _adaptive_kernel(trace, source, shape_of(result)))


def adaptive_max_pool2d(
    trace: Trace, result: Tensor, input: Any, output_size: Any, return_indices: bool = False
) -> Node:
    source = picture(trace, trace.node(input))
    return max_pool2d(trace, result, input, _adaptive_kernel(trace, source, shape_of(result)))


def mean(
    trace: Trace, result: Tensor, input: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Node:
    source = trace.node(input)
    dims = (
        sorted(d % 4 for d in (dim if isinstance(dim, list | tuple) else [dim])) if dim is not None else None
    )
    if len(source.shape) != 3 or dims != [2, 3] or kwargs.get("dtype") is not None:
        raise trace.fail(
            f"over dim={dim} is not supported; over (2, 3) it is",
            "reduce rows and columns at once, x.mean((2, 3)), or use nn.AdaptiveAvgPool2d(1)",
        )
    pooled = trace.emit("global_avg_pool", [source], (source.shape[0], 1, 1))
    return pooled if keepdim else trace.emit("flatten", [pooled], (source.shape[0],))


FUNCTIONS: dict[str, Handler] = {
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "adaptive_max_pool2d": adaptive_max_pool2d,
    "mean": mean,
}
