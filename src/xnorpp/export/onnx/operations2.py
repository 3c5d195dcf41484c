"""The operations of later sets in standard ONNX operators; `operations.py` has set 1 and the rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xnorpp.export.errors import refuse
from xnorpp.export.onnx.graph import Graph
from xnorpp.export.onnx.resampling import OPERATIONS as RESAMPLING
from xnorpp.runtime.format.ops import pooled_size
from xnorpp.runtime.format.program import Op, Program

Make = Callable[..., str]


def _fixed_size(t: Any, op: Op) -> None:
    if t.program.variable:
        reason = "its numbers depend on the size of the image, which is free; export one size with --size"
        raise refuse(op.name, op.op, t.target, reason)


def _silu(g: Graph, x: str) -> str:
    return g.node("Mul", x, g.node("Sigmoid", x))


def _mish(g: Graph, x: str) -> str:
    return g.node("Mul", x, g.node("Tanh", g.node("Softplus", x)))


def _gelu(g: Graph, x: str) -> str:
    inner = g.node("Erf", g.node("Mul", x, g.scalar(math.sqrt(0.5))))
    return g.node("Mul", g.node("Mul", x, g.scalar(0.5)), g.node("Add", inner, g.scalar(1.0)))


def _gelu_tanh(g: Graph, x: str) -> str:
    cube = g.node("Mul", g.node("Mul", x, g.node("Mul", x, x)), g.scalar(0.044715))
    inner = g.node("Tanh", g.node("Mul", g.node("Add", x, cube), g.scalar(math.sqrt(2 / math.pi))))
    return g.node("Mul", g.node("Mul", x, g.scalar(0.5)), g.node("Add", inner, g.scalar(1.0)))


def _named(operator: str) -> Make:
    return lambda t, op, *inputs: t.graph.node(operator, *inputs)


def _curve(function: Callable[[Graph, str], str]) -> Make:
    return lambda t, op, x: function(t.graph, x)


def _offset(t: Any, op: Op, x: str) -> str:
    return str(t.graph.node("Add", x, t.real(op, "value")))


def _permute(t: Any, op: Op, x: str) -> str:
    return str(t.graph.node("Transpose", x, perm=[0, *(axis + 1 for axis in op.attrs["axes"])]))


def _reshaped(t: Any, x: str, *shape: int) -> str:
    return str(t.graph.node("Reshape", x, t.graph.numbers(0, *shape)))


def _reshape(t: Any, op: Op, x: str) -> str:
    _fixed_size(t, op)
    return _reshaped(t, x, *op.attrs["shape"])


def _concat(t: Any, op: Op, *parts: str) -> str:
    return str(t.graph.node("Concat", *parts, axis=op.attrs["axis"] + 1))


def _slice(t: Any, op: Op, x: str) -> str:
    sizes = t.program.values[op.inputs[0]].shape
    rows = zip(op.attrs["start"], op.attrs["stop"], op.attrs["step"], sizes, strict=True)
    numbers = []
    for start, stop, step, size in rows:
        whole = start in (None, 0) and (stop is None or stop == size) and step in (None, 1)
        if not whole and t.program.variable:
            end = stop if stop is not None else 2**62
        else:
            end = size if stop is None else stop
        numbers.append((0 if start is None else start, end, 1 if step is None else step, whole))
    axes = [axis for axis, row in enumerate(numbers) if not row[3]]
    if not axes:
        return str(t.graph.node("Identity", x))
    starts, ends, steps = (t.graph.numbers(*(numbers[axis][i] for axis in axes)) for i in range(3))
    return str(t.graph.node("Slice", x, starts, ends, t.graph.numbers(*(axis + 1 for axis in axes)), steps))


def _flip(t: Any, op: Op, x: str) -> str:
    numbers = t.graph.numbers
    return str(
        t.graph.node("Slice", x, numbers(-1), numbers(-(2**62)), numbers(op.attrs["axis"] + 1), numbers(-1))
    )


def _expand(t: Any, op: Op, x: str) -> str:
    _fixed_size(t, op)
    return str(t.graph.node("Expand", x, t.graph.numbers(1, *op.attrs["shape"])))


_REDUCTIONS = {
    "mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "l2": "ReduceL2",
}  # fmt: skip


def _reduce(t: Any, op: Op, x: str) -> str:
    axes = t.graph.numbers(*(axis + 1 for axis in op.attrs["axes"]))
    return str(t.graph.node(_REDUCTIONS[op.attrs["function"]], x, axes, keepdims=1))


def _pixel_shuffle(t: Any, op: Op, x: str) -> str:
    return str(t.graph.node("DepthToSpace", x, blocksize=op.attrs["factor"], mode="CRD"))


def _pixel_unshuffle(t: Any, op: Op, x: str) -> str:
    _fixed_size(t, op)
    c, h, w = t.program.values[op.inputs[0]].shape
    r = op.attrs["factor"]
    blocks = t.graph.node("Transpose", _reshaped(t, x, c, h // r, r, w // r, r), perm=[0, 1, 3, 5, 2, 4])
    return _reshaped(t, blocks, c * r * r, h // r, w // r)


def _channel_shuffle(t: Any, op: Op, x: str) -> str:
    c = t.program.values[op.inputs[0]].shape[0]
    groups = op.attrs["groups"]
    turned = t.graph.node("Transpose", _reshaped(t, x, groups, c // groups, -1), perm=[0, 2, 1, 3])
    return str(t.graph.node("Reshape", turned, t.graph.node("Shape", x)))


def _edge_pad2d(t: Any, op: Op, x: str) -> str:
    modes = {"reflect": "reflect", "replicate": "edge"}
    if op.attrs["mode"] not in modes:
        raise refuse(op.name, op.op, t.target, f"opset 18 has no {op.attrs['mode']} padding")
    top, bottom, left, right = op.attrs["padding"]
    pads = t.graph.numbers(0, 0, top, left, 0, 0, bottom, right)
    return str(t.graph.node("Pad", x, pads, mode=modes[op.attrs["mode"]]))


def _dilated_max_pool2d(t: Any, op: Op, x: str) -> str:
    if op.attrs["ceil_mode"]:
        _fixed_size(t, op)
    kernel, stride, padding, dilation = (
        list(op.attrs[k]) for k in ("kernel", "stride", "padding", "dilation")
    )
    end = []
    for axis, size in enumerate(t.program.values[op.inputs[0]].shape[1:]):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        out = pooled_size(size, reach, stride[axis], padding[axis], op.attrs["ceil_mode"])
        beyond = (out - 1) * stride[axis] + reach - size - 2 * padding[axis]
        end.append(padding[axis] + (max(0, beyond) if op.attrs["ceil_mode"] else 0))
    attrs = {"kernel_shape": kernel, "strides": stride, "pads": [*padding, *end], "dilations": dilation}
    return str(t.graph.node("MaxPool", x, **attrs))


def _constant(t: Any, op: Op, x: str) -> str:
    """The same numbers for each image of the batch."""
    program: Program = t.program
    g = t.graph
    count = g.node("Shape", x, start=0, end=1)
    shape = g.node("Concat", count, g.numbers(*program.values[op.output].shape), axis=0)
    return str(g.node("Expand", t.real(op, "value"), shape))


OPERATIONS: dict[str, Make] = {
    "sub": _named("Sub"),
    "div": _named("Div"),
    "offset": _offset,
    "sigmoid": _named("Sigmoid"),
    "silu": _curve(_silu),
    "tanh": _named("Tanh"),
    "elu": lambda t, op, x: t.graph.node("Elu", x, alpha=float(op.attrs["alpha"])),
    "softplus": _named("Softplus"),
    "mish": _curve(_mish),
    "gelu": _curve(_gelu),
    "gelu_tanh": _curve(_gelu_tanh),
    "hardswish": _named("HardSwish"),
    "exp": _named("Exp"),
    "log": _named("Log"),
    "erf": _named("Erf"),
    "sqrt": _named("Sqrt"),
    "reciprocal": _named("Reciprocal"),
    "permute": _permute,
    "reshape": _reshape,
    "concat": _concat,
    "slice": _slice,
    "flip": _flip,
    "expand": _expand,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
    "edge_pad2d": _edge_pad2d,
    "dilated_max_pool2d": _dilated_max_pool2d,
    "constant": _constant,
    "reduce": _reduce,
    **RESAMPLING,
}
