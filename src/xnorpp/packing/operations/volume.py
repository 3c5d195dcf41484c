"""Convolutions and pools of volumes and videos, (c, depth, h, w), made of those of images.

The images of a volume lie under each other as one tall image, (c, depth*rows, w), with as many rows of zeros
between them as a window reaches over. So a convolution is one of images for each tap along the depth, and
their sum; weights are stored once. A pool is one over the planes, and one along the depth.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import reshaped, sliced
from xnorpp.packing.operations.arguments import Handler, affine, shape_of
from xnorpp.packing.operations.shape import surrounded
from xnorpp.packing.operations.window import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d
from xnorpp.packing.trace import Trace


def _triple(value: Any) -> list[int]:
    return [int(value)] * 3 if isinstance(value, int) else [int(v) for v in value]


def _volume(trace: Trace, input: Any) -> Node:
    node = trace.node(input)
    if len(node.shape) != 4:
        raise trace.fail(f"is applied to {len(node.shape) + 1} axes; (n, c, depth, h, w) is needed")
    return node


def conv3d(
    trace: Trace, result: Tensor, input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Node:  # fmt: skip
    node, w = _volume(trace, input), trace.constant(weight)
    stride, dilation = _triple(stride), _triple(dilation)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    if isinstance(padding, str):
        if padding == "same" and any(r % 2 == 0 for r in reach):
            raise trace.fail(f"with padding={padding!r} pads unevenly here", "use an odd kernel size")
        padding = [r // 2 for r in reach] if padding == "same" else 0
    padding = _triple(padding)
    _, depth, rows, _ = shape_of(result)
    # Rows of one image with its border, a multiple of the stride.
    slot = -((node.shape[2] + 2 * padding[1]) // -stride[1]) * stride[1]
    edges = [(0, 0), (padding[0],) * 2, (padding[1], slot - node.shape[2] - padding[1]), (0, 0)]
    node = surrounded(trace, node, edges, 0.0)
    made: Node | None = None
    for tap in range(w.shape[2]):
        first = tap * dilation[0]
        planes = sliced(trace, node, 1, first, first + (depth - 1) * stride[0] + 1, stride[0])
        attrs = {"stride": stride[1:], "padding": [0, padding[2]], "dilation": dilation[1:], "groups": groups}
        part = _planes(trace, planes, w[:, :, tap], attrs, reach[1], (depth, rows, result.shape[4]))
        made = part if made is None else trace.emit("add", [made, part], part.shape)
    assert made is not None
    return made if bias is None else affine(trace, made, None, trace.constant(bias))


def _planes(
    trace: Trace, node: Node, w: Array, attrs: dict[str, Any], reach: int, size: tuple[int, int, int]
) -> Node:
    """A convolution of each plane, (c, depth, slot, w), as one of a tall image."""
    c, depth, slot, width = node.shape
    tall = reshaped(trace, node, (c, depth * slot, width))
    more = max(0, reach - attrs["stride"][0])  # so that the last slot has as many results as the others
    tall = surrounded(trace, tall, [(0, 0), (0, more), (0, 0)], 0.0)
    each = slot // attrs["stride"][0]
    shape = (w.shape[0], depth * each, size[2])
    made = trace.emit("conv2d", [tall], shape, dict(attrs), {"weight": w})
    return sliced(trace, reshaped(trace, made, (w.shape[0], depth, each, size[2])), 2, 0, size[1])


def max_pool3d(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Node:  # fmt: skip
    kernel, dilation = _triple(kernel_size), _triple(dilation)
    steps, padding = _steps(stride, kernel), _triple(padding)
    more = {"ceil_mode": ceil_mode, "return_indices": return_indices}
    node, shape = _volume(trace, input), shape_of(result)
    flat, wide = _flat(trace, node, shape)
    made = max_pool2d(trace, wide, flat, kernel[1:], steps[1:], padding[1:], dilation[1:], **more)
    deep, long = _deep(trace, made, node, shape)
    along = ([kernel[0], 1], [steps[0], 1], [padding[0], 0], [dilation[0], 1])
    return reshaped(trace, max_pool2d(trace, long, deep, *along, **more), shape)


def avg_pool3d(
    trace: Trace, result: Tensor, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Node:  # fmt: skip
    if ceil_mode or divisor_override is not None:
        raise trace.fail("with ceil_mode or `divisor_override` is not supported", "leave both out")
    kernel = _triple(kernel_size)
    steps, padding = _steps(stride, kernel), _triple(padding)
    node, shape = _volume(trace, input), shape_of(result)
    flat, wide = _flat(trace, node, shape)
    made = avg_pool2d(
        trace, wide, flat, kernel[1:], steps[1:], padding[1:], count_include_pad=count_include_pad
    )
    deep, long = _deep(trace, made, node, shape)
    along = ([kernel[0], 1], [steps[0], 1], [padding[0], 0])
    made = avg_pool2d(trace, long, deep, *along, count_include_pad=count_include_pad)
    return reshaped(trace, made, shape)


def _adaptive(pool: Handler) -> Handler:
    def handler(
        trace: Trace, result: Tensor, input: Any, output_size: Any = None, return_indices: bool = False
    ) -> Node:
        node, shape = _volume(trace, input), shape_of(result)
        flat, wide = _flat(trace, node, shape)
        deep, long = _deep(trace, pool(trace, wide, flat), node, shape)
        return reshaped(trace, pool(trace, long, deep), shape)

    return handler


def _steps(stride: Any, kernel: list[int]) -> list[int]:
    return kernel if stride in (None, [], ()) else _triple(stride)


def _flat(trace: Trace, node: Node, shape: tuple[int, ...]) -> tuple[Node, tuple[int, int, int]]:
    """All planes as channels, and their shape after a pool."""
    c, depth, h, w = node.shape
    return reshaped(trace, node, (c * depth, h, w)), (c * depth, shape[2], shape[3])


def _deep(trace: Trace, made: Node, node: Node, shape: tuple[int, ...]) -> tuple[Node, tuple[int, int, int]]:
    """Planes that were pooled as the rows of an image, and its shape after a pool of rows."""
    c, depth = node.shape[:2]
    pixels = shape[2] * shape[3]
    return reshaped(trace, made, (c, depth, pixels)), (c, shape[1], pixels)


FUNCTIONS: dict[str, Handler] = {
    "conv3d": conv3d,
    "max_pool3d": max_pool3d,
    "avg_pool3d": avg_pool3d,
    "adaptive_avg_pool3d": _adaptive(adaptive_avg_pool2d),
    "adaptive_max_pool3d": _adaptive(adaptive_max_pool2d),
}
