"""Sums, products, quotients and batch norm, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.packing.composed import composed_value, whole
from xnorpp.packing.graph import Array, Node, same
from xnorpp.packing.moves.views import as_image, channels_back, channels_first, expanded, reshaped
from xnorpp.packing.operations.activation import emit_curve
from xnorpp.packing.operations.arguments import Handler, affine, finite, of_one, once, shape_of, spatial_parts
from xnorpp.packing.trace import Trace

_MOST_SUMMED = 4  # sums of sums


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


def _pair(trace: Trace, a: Any, b: Any) -> tuple[Node, Node, bool]:
    """Two values, and whether their shapes are equal; others must broadcast, axis by axis."""
    first, second = trace.node(a), trace.node(b)
    first, second = _unexpanded(first, second), _unexpanded(second, first)
    fits = len(first.shape) == len(second.shape) and all(
        n == m or 1 in (n, m) for n, m in zip(first.shape, second.shape)
    )
    if not fits:
        raise trace.fail(
            f"of shapes {first.shape} and {second.shape} is not supported",
            "give both values as many axes, with equal sizes or 1",
        )
    return first, second, first.shape == second.shape


def _unexpanded(node: Node, other: Node) -> Node:
    """What was repeated to the other value's shape, `y.expand_as(x)`: the operation repeats it by itself."""
    source = node.inputs[0] if node.op == "expand" else node
    alike = len(source.shape) == len(node.shape)
    return source if node.shape == other.shape and other.op != "expand" and alike else node


def mul(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
    if trace.is_value(a) and trace.is_value(b):
        first, second, equal = _pair(trace, a, b)
        written_out = _gated_curve(trace, first, second) or _gated_curve(trace, second, first)
        if written_out is not None:
            return written_out
        if second.shape == result.shape[1:] and first.shape != second.shape:
            first, second = second, first
        plain = equal or (first.shape == shape_of(result) and second.shape == (1, *first.shape[1:]))
        attrs = None if plain else {"broadcast": True}
        return trace.emit("mul", [first, second], shape_of(result), attrs)
    value, constant = (a, b) if trace.is_value(a) else (b, a)
    return times_constant(trace, _grown(trace, trace.node(value), result), constant)


def _gated_curve(trace: Trace, value: Node, gate: Node) -> Node | None:
    """`x * sigmoid(x)` and `x * tanh(softplus(x))`, as SiLU and Mish are often written: one operation instead
    of two or three, and none directly before a sign."""
    if gate.op == "sigmoid" and gate.inputs[0] is value:
        return emit_curve(trace, value, "silu", F.silu)
    if gate.op == "tanh" and gate.inputs[0].op == "softplus" and gate.inputs[0].inputs[0] is value:
        return emit_curve(trace, value, "mish", F.mish)
    return None


def _grown(trace: Trace, node: Node, result: Tensor) -> Node:
    """A value that a constant repeats along its axes of one element."""
    return expanded(trace, node, shape_of(result)) if len(node.shape) == result.dim() - 1 else node


def times_constant(trace: Trace, source: Node, constant: Any) -> Node:
    """A value times a constant that broadcasts to it."""
    c = trace.constant(constant)
    if c.size == 1:
        return affine(trace, source, c.reshape(1), None)
    return _times(trace, source, once(of_one(trace, len(source.shape), c)))


def _times(trace: Trace, source: Node, c: Array) -> Node:
    """One factor per channel; per position of another axis; per pixel of an image; or for each number."""
    axes = [axis for axis, n in enumerate(c.shape) if n > 1]
    if axes in ([], [0]):
        return affine(trace, source, c.reshape(-1), None)
    if len(axes) == 1 and (len(source.shape) != 3 or _channels_are_last(source)):
        made = affine(trace, channels_first(trace, source, axes[0]), c.reshape(-1), None)
        return channels_back(trace, made, axes[0])
    if len(source.shape) == 3:
        return affine(trace, source, None, None, spatial_parts(source, c))
    image = as_image(trace, source)
    full = np.broadcast_to(c, source.shape).reshape(image.shape)
    return reshaped(trace, affine(trace, image, None, None, {"full": full}), source.shape)


def _channels_are_last(node: Node) -> bool:
    """Whether a value of three axes comes from a permuted one: (h, w, c), not (c, h, w)."""
    for _ in range(16):
        if node.op == "permute" or not node.inputs or len(node.shape) != 3:
            break
        node = node.inputs[0]
    return node.op == "permute"


def div(trace: Trace, result: Tensor, a: Any, b: Any, *, rounding_mode: Any = None) -> Node:
    if rounding_mode is not None:
        return composed_value(trace, whole.divided, (a, b, rounding_mode), result)
    if trace.is_value(a) and trace.is_value(b):
        first, second, _ = _pair(trace, a, b)
        if second.op == "prelu" and second.inputs[0] is first and (second.tensors["slope"] == -1).all():
            return trace.emit("signs", [trace.emit_sign(first)], first.shape)  # x / |x|
        return trace.emit("div", [first, second], shape_of(result))
    if trace.is_value(b):
        inverse = emit_curve(trace, trace.node(b), "reciprocal", torch.reciprocal)
        return times_constant(trace, _grown(trace, inverse, result), a)
    source, c = _grown(trace, trace.node(a), result), trace.constant(b)
    if c.size > 1:
        c = once(of_one(trace, len(source.shape), c))
    if c.size == 1 or c.size == c.shape[0]:
        divisor = c.reshape(-1).astype(np.float32)
        return affine(trace, source, 1.0 / divisor.astype(np.float64), None, None, lambda v: v / divisor)
    return _times(trace, source, 1.0 / c.astype(np.float64))


def _plus(trace: Trace, result: Tensor, value: Any, constant: Any, sign: float) -> Node:
    return plus_constant(trace, _grown(trace, trace.node(value), result), constant, sign)


def plus_constant(trace: Trace, source: Node, constant: Any, sign: float = 1.0) -> Node:
    """A value and a constant that broadcasts to it; one number for each channel is an affine."""
    c = finite(sign * trace.constant(constant).astype(np.float64))
    if c.size == 1:
        return affine(trace, source, None, c.reshape(1))
    c = once(of_one(trace, len(source.shape), c))
    if c.size == c.shape[0]:
        return affine(trace, source, None, c.reshape(-1))
    if c.size == c.shape[-1]:
        made = affine(trace, channels_first(trace, source, c.ndim - 1), None, c.reshape(-1))
        return channels_back(trace, made, c.ndim - 1)
    return trace.emit("offset", [source], source.shape, None, {"value": c})


def add(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    if trace.is_value(a) and trace.is_value(b):
        first, second, equal = _pair(trace, a, b)
        if alpha != 1:
            second = affine(trace, second, np.array([float(alpha)]), None)
        return _sum(trace, first, second, result, equal)
    for value, constant in ((a, b), (b, a)) if alpha == 1 else ():
        step = _step_of(trace, value, constant, result)
        if step:
            trace.follow(result, value)
            trace.set_step(result, step)
            return trace.node(value, anywhere=True)
    if trace.is_value(a):
        return _plus(trace, result, a, b, float(alpha))
    if alpha != 1:
        scaled = affine(trace, _grown(trace, trace.node(b), result), np.array([float(alpha)]), None)
        return plus_constant(trace, scaled, a)
    return _plus(trace, result, b, a, 1.0)


def _step_of(trace: Trace, value: Any, constant: Any, result: Tensor) -> int:
    """How much more a constant is for each image, as `torch.arange(n) * k` beside whole numbers."""
    whole = (torch.int32, torch.int64)
    if not (trace.is_value(value) and isinstance(constant, Tensor)) or value.dtype not in whole:
        return 0
    axes = result.dim() if result.numel() != trace.batch else constant.dim()  # one for each image
    if value.shape != result.shape or constant.dim() != axes or constant.dtype not in whole:
        return 0
    if not trace.constants.is_computed(constant) or trace.batch_axis(value) or trace.merged(value) > 1:
        return 0
    c = trace.constant(constant)
    step = int(c.reshape(-1)[-1]) // (trace.batch - 1) if c.shape[0] == c.size == trace.batch > 1 else 0
    return step if step > 0 and np.array_equal(c.reshape(-1), step * np.arange(trace.batch)) else 0


def _sum(trace: Trace, first: Node, second: Node, result: Tensor, equal: bool) -> Node:
    """The sum of two values; `(q - x) + x` is q, as straight-through estimators write it."""
    parts = [_summands(node) for node in (first, second)] if equal else []
    if any(not part for part in parts):
        return first if parts[0] else second
    left = _left_over(*parts) if equal else None
    if left is None:
        return trace.emit("add", [first, second], shape_of(result), None if equal else {"broadcast": True})
    if not left:
        return affine(trace, first, np.zeros(1), None)
    negative = [affine(trace, node, np.array([-1.0]), None) for sign, node in left if sign < 0]
    made, *others = [node for sign, node in left if sign > 0] + negative
    for other in others:
        made = trace.emit("add", [made, other], shape_of(result))
    return made


def _summands(node: Node, sign: int = 1, steps: int = _MOST_SUMMED) -> list[tuple[int, Node]]:
    """A value as a sum of others or of their opposites; what is multiplied by 0 is none."""
    plain = node.op == "affine" and not node.spatial and not np.any(node.tensors.get("add", 0))
    factor = node.tensors.get("mult", np.ones(1)) if plain else np.ones(1)
    if not factor.any():
        return []
    if steps and plain and (factor == -1).all():
        return _summands(node.inputs[0], -sign, steps - 1)
    if steps and node.op == "add" and not node.attrs:
        return [part for source in node.inputs for part in _summands(source, sign, steps - 1)]
    return [(sign, node)]


def _left_over(
    first: list[tuple[int, Node]], second: list[tuple[int, Node]]
) -> list[tuple[int, Node]] | None:
    """What is left of two sums where summands of one cancel those of the other; None where none do."""
    left = list(first)
    for sign, node in second:
        opposite = next((i for i, (s, other) in enumerate(left) if s == -sign and same(other, node)), None)
        if opposite is None:
            left.append((sign, node))
        else:
            del left[opposite]
    return None if len(left) == len(first) + len(second) else left


def sub(trace: Trace, result: Tensor, a: Any, b: Any, *, alpha: float = 1) -> Node:
    if not trace.is_value(b):
        return _plus(trace, result, a, b, -float(alpha))
    if trace.is_value(a):
        first, second, equal = _pair(trace, a, b)
        if not equal:
            if alpha != 1:
                second = affine(trace, second, np.array([float(alpha)]), None)
            return trace.emit("sub", [first, second], shape_of(result))
        return _sum(trace, first, affine(trace, second, np.array([-float(alpha)]), None), result, True)
    negative = affine(trace, _grown(trace, trace.node(b), result), np.array([-float(alpha)]), None)
    return plus_constant(trace, negative, a)


def addcmul(
    trace: Trace, result: Tensor, input: Any, tensor1: Any, tensor2: Any, *, value: float = 1
) -> Node:
    """`input + value*tensor1*tensor2`, where up to two of the three may be constants."""
    if not trace.is_value(tensor1) and not trace.is_value(tensor2):
        for t in (tensor1, tensor2):
            trace.check_constant(t)
        product = value * tensor1 * tensor2
        trace.add_constant(product)
        return _plus(trace, result, input, product, 1.0)
    if trace.is_value(tensor1) and trace.is_value(tensor2):
        first, second, equal = _pair(trace, tensor1, tensor2)
        shape = tuple(max(n, m) for n, m in zip(first.shape, second.shape))
        product = trace.emit("mul", [first, second], shape, None if equal else {"broadcast": True})
    else:
        factor, other = (tensor2, tensor1) if trace.is_value(tensor1) else (tensor1, tensor2)
        product = times_constant(trace, _grown(trace, trace.node(other), result), factor)
    if value != 1:
        product = affine(trace, product, np.array([float(value)]), None)
    if not trace.is_value(input):
        return plus_constant(trace, _grown(trace, product, result), input)
    summand = trace.node(input)
    attrs = None if summand.shape == product.shape else {"broadcast": True}
    return trace.emit("add", [summand, product], shape_of(result), attrs)


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
    **dict.fromkeys(("rtruediv", "rdiv"), lambda trace, result, a, b: div(trace, result, b, a)),
    **dict.fromkeys(("neg", "negative"), neg),
    "addcmul": addcmul,
}
