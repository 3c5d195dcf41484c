"""Pools and means over windows of an image, or of a sequence as an image of one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.views import reshaped
from xnorpp.packing.operations.arguments import Handler, affine, check_image, pair, shape_of
from xnorpp.packing.trace import Trace

Shape = tuple[int, ...]


def _strides(stride: Any, kernel: list[int]) -> list[int]:
    return pair(stride) if stride not in (None, [], ()) else kernel


def _within(
    trace: Trace, node: Node, kernel: list[int], stride: Any, padding: Any, beyond: bool
) -> tuple[list[int], list[int]]:
    """Kernel and stride. With `ceil_mode` a window may be larger than the image: it is the image then, where
    the size of this is fixed."""
    step = _strides(stride, kernel)
    if not beyond or pair(padding) != [0, 0] or trace.any_size:
        return kernel, step
    pairs = list(zip(node.shape[1:], kernel, step))
    return [min(size, one) for size, one, _ in pairs], [size if size < one else by for size, one, by in pairs]


def max_pool2d(
    trace: Trace, result: Tensor | Shape, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Node:  # fmt: skip
    if return_indices:
        raise trace.fail("with return_indices=True is not supported", "use return_indices=False")
    node = _image(trace, input)
    kernel, step = _within(
        trace, node, pair(kernel_size), stride, padding, ceil_mode and pair(dilation) == [1, 1]
    )
    attrs = {"kernel": kernel, "stride": step, "padding": pair(padding), "ceil_mode": bool(ceil_mode)}
    if pair(dilation) != [1, 1]:
        attrs["dilation"] = pair(dilation)
        return trace.emit("dilated_max_pool2d", [node], _shape(result), attrs)
    return trace.emit("max_pool2d", [node], _shape(result), attrs)


def avg_pool2d(
    trace: Trace, result: Tensor | Shape, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Node:  # fmt: skip
    node = _image(trace, input)
    kernel, step = _within(
        trace, node, pair(kernel_size), stride, padding, ceil_mode and divisor_override is None
    )
    attrs = {
        "kernel": kernel,
        "stride": step,
        "padding": pair(padding),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(count_include_pad) or divisor_override is not None,
    }
    pooled = trace.emit("avg_pool2d", [node], _shape(result), attrs)
    if divisor_override is None:
        return pooled
    if ceil_mode:
        raise trace.fail("with `divisor_override` and ceil_mode=True is not supported", "use ceil_mode=False")
    factor = np.array([kernel[0] * kernel[1] / float(divisor_override)])
    return affine(trace, pooled, factor, None)


def _image(trace: Trace, input: Any) -> Node:
    return check_image(trace, input if isinstance(input, Node) else trace.node(input))


def _shape(result: Tensor | Shape) -> Shape:
    return result if isinstance(result, tuple) else shape_of(result)


def _adaptive(trace: Trace, source: Node, shape: Shape, kind: str) -> Node:
    """Windows of one size are an ordinary pool."""
    sizes = list(zip(source.shape[1:], shape[1:]))
    if any(size % out for size, out in sizes) or trace.any_size:
        return trace.emit(f"adaptive_{kind}_pool2d", [source], shape, {"size": list(shape[1:])})
    kernel = [size // out for size, out in sizes]
    pool = max_pool2d if kind == "max" else avg_pool2d
    return pool(trace, shape, source, kernel)


def adaptive_avg_pool2d(trace: Trace, result: Tensor | Shape, input: Any, output_size: Any = None) -> Node:
    source, shape = _image(trace, input), _shape(result)
    if shape[1:] == (1, 1):
        return trace.emit("global_avg_pool", [source], shape)
    return source if shape == source.shape else _adaptive(trace, source, shape, "avg")


def adaptive_max_pool2d(
    trace: Trace, result: Tensor | Shape, input: Any, output_size: Any = None, return_indices: bool = False
) -> Node:
    source, shape = _image(trace, input), _shape(result)
    return source if shape == source.shape else _adaptive(trace, source, shape, "max")


def _of_sequences(pool: Callable[..., Node], *lists: str) -> Handler:
    """A pool of sequences, as that of images of one row; `lists` are its arguments in order."""
    fill = {"padding": 0}

    def handler(trace: Trace, result: Tensor, input: Any, *args: Any, **kwargs: Any) -> Node:
        source = trace.node(input)
        if len(source.shape) != 2:
            raise trace.fail(f"is applied to {len(source.shape) + 1} axes; (n, c, length) is needed")
        given = {**dict(zip(lists, args)), **kwargs}
        for name in ("kernel_size", "stride", "padding", "dilation"):
            value = given.get(name)
            if value is not None and value not in ([], ()):
                given[name] = [fill.get(name, 1), value if isinstance(value, int) else value[0]]
        given.pop("output_size", None)
        image = reshaped(trace, source, (source.shape[0], 1, source.shape[1]))
        made = pool(trace, (result.shape[1], 1, result.shape[2]), image, **given)
        return reshaped(trace, made, shape_of(result))

    return handler


_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")


FUNCTIONS: dict[str, Handler] = {
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "adaptive_max_pool2d": adaptive_max_pool2d,
    "max_pool1d": _of_sequences(max_pool2d, *_MAX),
    "avg_pool1d": _of_sequences(avg_pool2d, *_AVG),
    "adaptive_avg_pool1d": _of_sequences(adaptive_avg_pool2d, "output_size"),
    "adaptive_max_pool1d": _of_sequences(adaptive_max_pool2d, "output_size", "return_indices"),
}
