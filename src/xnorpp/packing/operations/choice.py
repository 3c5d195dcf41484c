"""Comparisons, and choices by them: truth values are the numbers 0 and 1, made of signs.

`a > b` is the sign of `a - b`, which rounding never changes. A choice between two values is a sum of both,
one of them times 0; so it is exact where the values are finite. Masks that are the same for every image are
constants.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.composed import COMPOSED, composed_value, elementwise
from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import expanded, reshaped
from xnorpp.packing.obstacles import Refusal
from xnorpp.packing.operations.activation import bounded, emit_slope, hardtanh, relu
from xnorpp.packing.operations.arguments import Handler, affine, finite, shape_of
from xnorpp.packing.operations.arithmetic import plus_constant, sub, times_constant
from xnorpp.packing.operations.reduction import axes_of, emit_reduce
from xnorpp.packing.operations.rounding import any_rounding
from xnorpp.packing.trace import Trace

_LARGEST = float(np.finfo(np.float32).max)
_MOST_STEPS, _MOST = 3, 1e6  # of a rounding: those of two bits; a larger number is no limit
_ROUNDINGS: dict[str, Any] = {"round": (np.rint, 0.5), "floor": (np.floor, 1.0), "ceil": (np.ceil, 0.0)}
_BOUNDED = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "softmax": (0.0, 1.0), "erf": (-1.0, 1.0)}
# Operations that give what is no number of finite ones.
_UNDEFINED = ("div", "reciprocal", "sqrt", "log", "exp", "softmax", "attention")
_OF_SOME = ("sqrt", "log", "reciprocal", "div")
_POINTWISE = (
    "affine",
    "relu",
    "prelu",
    "hardtanh",
    "exp",
    "sigmoid",
    "tanh",
    "softplus",
    "silu",
    "gelu",
    "elu",
)
_OF_TWO = ("mul", "add", "sub")
_MOST_GUARDED = 12  # operations before a choice
_MOVED = ("reshape", "flatten", "permute", "slice", "max_pool2d", "global_avg_pool", "flip")


def _is_mask(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype == torch.bool


def _comparison(turned: bool, opposite: bool) -> Handler:
    """`a > b`; with `turned` `b > a`, with `opposite` not that."""

    def handler(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
        if turned:
            a, b = b, a
        difference = sub(trace, result, a, b)
        sources = [t for t in (a, b) if trace.is_value(t)]
        if len(sources) == 1:
            other = a if sources[0] is b else b
            trace.keep(
                difference, trace.node(sources[0]), lambda t: other - t if sources[0] is b else t - other
            )
        signs = trace.emit("signs", [trace.emit_sign(difference)], difference.shape)
        half = np.array([-0.5 if opposite else 0.5])
        return affine(trace, signs, half, np.array([0.5]))

    return handler


def logical_not(trace: Trace, result: Tensor, input: Any) -> Node:
    if not _is_mask(input):
        return composed_value(trace, torch.eq, (input, 0.0), result)
    return affine(trace, trace.node(input), np.array([-1.0]), np.array([1.0]))


def bitwise_not(trace: Trace, result: Tensor, input: Any) -> Node:
    """Of a whole number, -1 less it."""
    if not _is_mask(input):
        return affine(trace, trace.node(input), np.array([-1.0]), np.array([-1.0]))
    return logical_not(trace, result, input)


def logical_and(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
    return _masks(trace, result, a, b, either=False)


def logical_or(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
    return _masks(trace, result, a, b, either=True)


def _masks(trace: Trace, result: Tensor, a: Any, b: Any, either: bool) -> Node:
    """Both, or not (neither)."""
    if not (_is_mask(a) and _is_mask(b)):
        if trace.operation.rpartition(".")[2].startswith("logical_"):
            function = elementwise.either if either else elementwise.both
            return composed_value(trace, function, (a, b), result)
        raise trace.fail("of numbers is not supported", "compare the numbers with 0 first")
    parts = [_filled(trace, t, result) for t in (a, b)]
    opposite = (np.array([-1.0]), np.array([1.0]))
    if either:
        parts = [affine(trace, part, *opposite) for part in parts]
    made = trace.emit("mul", parts, parts[0].shape)
    return affine(trace, made, *opposite) if either else made


def _filled(trace: Trace, t: Any, result: Tensor) -> Node:
    """A value or a constant as a value of the result's shape."""
    shape = shape_of(result)
    if trace.is_value(t):
        node = trace.node(t)
        if t.dim() != result.dim():
            raise trace.fail(
                f"of shapes {tuple(t.shape)} and {tuple(result.shape)} is not supported",
                "give both values as many axes, with equal sizes or 1",
            )
        return expanded(
            trace, reshaped(trace, node, (1,) * (len(shape) - len(node.shape)) + node.shape), shape
        )
    value = np.ascontiguousarray(np.broadcast_to(_finite(trace, t, result), shape))
    return trace.emit("constant", [trace.input], shape, None, {"value": value})


def _finite(trace: Trace, t: Any, result: Tensor) -> Array:
    """A constant for one image, with as many axes as it has; infinite numbers as large ones."""
    c = finite(trace.constant(t))
    rank = result.dim()
    c = np.asarray(c.reshape((1,) * (rank - c.ndim) + c.shape))
    if c.shape[0] != 1 and (c != c[:1]).any():
        raise trace.fail("has a constant that differs from image to image", "give every image the same")
    return np.asarray(c[0])


def where(trace: Trace, result: Tensor, condition: Any, a: Any = None, b: Any = None) -> Node:
    if a is None or not _is_mask(condition):
        raise trace.fail("with one argument is not supported", "name both values: torch.where(mask, a, b)")
    if trace.is_value(condition):
        mask = _filled(trace, condition, result)
        between = None if trace.is_value(a) or trace.is_value(b) else _between(trace, a, b, result)
        if between is not None:
            return _plus(trace, _times(trace, mask, between[0]), between[1])
        rest = affine(trace, mask, np.array([-1.0]), np.array([1.0]))
        chosen = [
            trace.emit("mul", [_guarded(trace, _filled(trace, value, result), share), share], mask.shape)
            for value, share in ((a, mask), (b, rest))
        ]
        return trace.emit("add", chosen, mask.shape)
    fixed = _finite(trace, condition, result)
    parts: list[Any] = []
    for t, share in ((a, fixed), (b, 1 - fixed)):
        if trace.is_value(t):
            parts.append(_times(trace, _filled(trace, t, result), share))
        else:
            parts.append(np.broadcast_to(_finite(trace, t, result) * share, shape_of(result)))
    if isinstance(parts[0], Node) and isinstance(parts[1], Node):
        return trace.emit("add", parts, shape_of(result))
    values = [part for part in parts if isinstance(part, Node)]
    (constant,) = (part for part in parts if not isinstance(part, Node))
    return _plus(trace, values[0], constant)


def _guarded(trace: Trace, node: Node, share: Node, steps: int = _MOST_GUARDED) -> Node:
    """A value that is the same where `share` is 1, and where it is 0 a number, which a root, a logarithm or a
    quotient there may not be: 0 times it would not be 0. Composed functions see to it themselves."""
    if trace.composing and not trace.composing.endswith("__setitem__"):
        return node
    if node.op not in (*_POINTWISE, *_OF_TWO, *_OF_SOME) or node.shape != share.shape or not steps:
        return node
    inputs = [_guarded(trace, source, share, steps - 1) for source in node.inputs]
    if node.op in _OF_SOME and inputs[-1].shape == share.shape:
        chosen = trace.emit("mul", [inputs[-1], share], share.shape)
        others = affine(trace, share, np.array([-1.0]), np.array([1.0]))
        inputs[-1] = trace.emit("add", [chosen, others], share.shape)
    if all(new is old for new, old in zip(inputs, node.inputs)):
        return node
    made = trace.emit(node.op, inputs, node.shape, node.attrs, node.tensors, node.trained)
    made.size = node.size
    return made


def _between(trace: Trace, a: Any, b: Any, result: Tensor) -> tuple[Array, Array] | None:
    """For two constants the factor and the shift that make them of 1 and 0, or None where that rounds."""
    upper, lower = (_finite(trace, t, result).astype(np.float32) for t in (a, b))
    step = upper - lower
    return (step, lower) if np.array_equal(step + lower, np.broadcast_to(upper, step.shape)) else None


def _times(trace: Trace, node: Node, c: Array) -> Node:
    return times_constant(trace, node, _own(trace, c[None]))


def _plus(trace: Trace, node: Node, c: Array) -> Node:
    return plus_constant(trace, node, _own(trace, c[None])) if np.any(c) else node


def _own(trace: Trace, array: Array) -> Tensor:
    tensor = torch.from_numpy(np.array(array, order="C"))
    trace.add_constant(tensor)
    return tensor


def masked_fill(trace: Trace, result: Tensor, input: Any, mask: Any, value: Any) -> Node:
    return where(trace, result, mask, value, input)


def maximum(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
    return _chosen(trace, result, True, a, b)


def minimum(trace: Trace, result: Tensor, a: Any, b: Any) -> Node:
    return _chosen(trace, result, False, a, b)


def _chosen(trace: Trace, result: Tensor, larger: bool, a: Any, b: Any) -> Node:
    first, second = (_filled(trace, t, result) for t in (a, b))
    return _larger(trace, first, second, larger)


def _larger(trace: Trace, first: Node, second: Node, larger: bool) -> Node:
    """The larger one of two values of one shape, or the smaller one."""
    negative = affine(trace, second, np.array([-1.0]), None)
    difference = trace.emit("add", [first, negative], first.shape)
    bits = trace.emit("signs", [trace.emit_sign(difference)], first.shape)
    half = np.array([0.5 if larger else -0.5])
    shares = [affine(trace, bits, sign * half, np.array([0.5])) for sign in (1, -1)]
    parts = [trace.emit("mul", [v, share], v.shape) for v, share in zip((first, second), shares)]
    return trace.emit("add", parts, first.shape)


def clamp(trace: Trace, result: Tensor, input: Any, min: Any = None, max: Any = None) -> Node:
    """Limits may be tensors; the upper one holds where they cross, as torch has it."""
    smallest, largest = _number(trace, min, -np.inf), _number(trace, max, np.inf)
    if smallest is None and largest is None:
        return trace.node(input)
    if not isinstance(smallest, Tensor) and not isinstance(largest, Tensor):
        if None not in (smallest, largest) and smallest > largest:  # as torch has it
            return affine(trace, trace.node(input), np.zeros(1), np.array([float(largest)]))
        if smallest == 0 and largest is None:
            return relu(trace, result, input)
        return hardtanh(
            trace,
            result,
            input,
            -_LARGEST if smallest is None else smallest,
            _LARGEST if largest is None else largest,
        )
    node = _filled(trace, input, result)
    for limit, larger in ((smallest, True), (largest, False)):
        if limit is not None:
            node = _larger(trace, node, _filled(trace, limit, result), larger)
    return node


def _number(trace: Trace, limit: Any, none: float) -> Any:
    """A limit as a number where it is one; None where it limits nothing."""
    if isinstance(limit, Tensor) and limit.numel() == 1 and not trace.is_value(limit):
        limit = float(trace.constant(limit).reshape(()))
    return None if not isinstance(limit, Tensor) and limit == none else limit


def extreme(function: str) -> Any:
    """`max` and `min`: of two values, or along one axis, and their places."""

    def handler(
        trace: Trace, result: Any, input: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any
    ) -> Any:
        if isinstance(dim, Tensor) or "other" in kwargs:
            other = kwargs.get("other", dim)
            return (maximum if function == "max" else minimum)(trace, result, input, other)
        if dim is not None and (trace.batch_axis(input) or trace.merged(input)):
            along = partial(torch.amax if function == "max" else torch.amin, dim=dim, keepdim=keepdim)
            return [composed_value(trace, along, (input,), result[0])]
        source = trace.node(input)
        axes = axes_of(trace, source, dim)
        made = emit_reduce(trace, source, function, axes)
        if not keepdim:
            made = reshaped(trace, made, [n for axis, n in enumerate(made.shape) if axis not in axes] or [1])
        return [made, *_places(trace, f"arg{function}", result, (input, dim, keepdim))]

    return handler


def _places(trace: Trace, function: str, result: Any, args: tuple[Any, ...]) -> list[Node]:
    """The places of extremes, as `argmax` has them; none where these do not pack: few models use them."""
    if not isinstance(result, tuple):
        return []
    obstacles = list(trace.obstacles)
    try:
        return [composed_value(trace, COMPOSED[function], args, result[1])]
    except Refusal:
        trace.obstacles[:] = obstacles
        return []


def _rounding(function: str) -> Handler:
    """`round`, `floor` and `ceil` of numbers between two limits, as a quantizer of one or two bits has them:
    a step at each place where the whole number changes. `round` goes to the even one at its places. Any other
    number is rounded by a large summand."""

    def handler(trace: Trace, result: Tensor, input: Any, decimals: int = 0) -> Node:
        source = trace.node(input)
        ends = _ends(source)
        if decimals or ends is None or np.abs(ends).max() > _MOST:
            return any_rounding(trace, function, result, input, decimals)
        rule, place = _ROUNDINGS[function]
        first, last = (int(rule(end)) for end in ends)
        if last - first > _MOST_STEPS:
            return any_rounding(trace, function, result, input, decimals)
        made = affine(trace, source, np.zeros(1), np.array([float(first)]))
        for whole in range(first, last):
            shift = whole + place
            at_place = function == "floor" or (function == "round" and whole % 2 == 1)
            sign = -1.0 if at_place else 1.0  # the step is where the opposite is not above 0
            difference = affine(trace, source, np.array([sign]), np.array([-sign * shift]))
            trace.keep(difference, source, partial(_moved, sign, shift))
            signs = trace.emit("signs", [trace.emit_sign(difference)], source.shape)
            base = 0.5 + (float(first) if whole == first else 0.0)
            step = affine(trace, signs, np.array([0.5 * sign]), np.array([base]))
            made = step if whole == first else trace.emit("add", [made, step], source.shape)
        return made

    return handler


def _moved(sign: float, shift: float, t: Tensor) -> Tensor:
    return sign * (t - shift)


def _ends(node: Node) -> tuple[float, float] | None:
    """The limits of the numbers of a value, where its operation has some; rounded as they are."""
    chain: list[Node] = []
    while node.op in (*_MOVED, "affine"):
        chain += [node] if node.op == "affine" else []
        (node,) = node.inputs
    ends = (node.attrs["min"], node.attrs["max"]) if node.op == "hardtanh" else _BOUNDED.get(node.op)
    if ends is None or any(link.spatial for link in chain):
        return None
    low, high = ends
    for link in reversed(chain):
        assert link.trained is not None
        both = link.trained(np.array([[low], [high]], np.float32) * np.ones(link.shape[0], np.float32))
        low, high = float(both.min()), float(both.max())
    return low, high


def nan_to_num(
    trace: Trace, result: Tensor, input: Any, nan: float | None = 0.0, posinf: Any = None, neginf: Any = None
) -> Node:
    """Limits, where all before it gives numbers; of a quotient, 0 where both are 0."""
    source, plain = trace.node(input), posinf is None and neginf is None
    quotient = source.op == "div" and source.inputs[0].shape == source.inputs[1].shape and not nan and plain
    stack, seen = list(source.inputs if quotient else [source]), set()
    while stack:
        node = stack.pop()
        if node.op in _UNDEFINED:
            raise trace.fail(
                f"of what may be no number ({node.line}) is not supported",
                "keep divisors and arguments of roots and logarithms above 0, as by y.clamp(min=1e-6)",
            )
        if id(node) not in seen:
            seen.add(id(node))
            stack.extend(node.inputs)
    if not plain:
        return composed_value(trace, elementwise.without_infinite, (input, posinf, neginf), result)
    if not quotient:
        return bounded(trace, source, -_LARGEST, _LARGEST)
    upper, lower = source.inputs
    zero = affine(
        trace, _bit(trace, emit_slope(trace, lower, np.array([-1.0]))), np.array([-0.5]), np.array([0.5])
    )
    rest = trace.emit("div", [upper, trace.emit("add", [lower, zero], lower.shape)], lower.shape)
    signs = trace.emit(
        "sub", [_bit(trace, upper), _bit(trace, affine(trace, upper, np.array([-1.0]), None))], lower.shape
    )
    beyond = affine(trace, trace.emit("mul", [zero, signs], lower.shape), np.array([0.5 * _LARGEST]), None)
    return bounded(trace, trace.emit("add", [rest, beyond], lower.shape), -_LARGEST, _LARGEST)


def _bit(trace: Trace, node: Node) -> Node:
    return trace.emit("signs", [trace.emit_sign(node)], node.shape)


FUNCTIONS: dict[str, Handler] = {
    **{function: _rounding(function) for function in _ROUNDINGS},
    **dict.fromkeys(("gt", "greater"), _comparison(turned=False, opposite=False)),
    **dict.fromkeys(("lt", "less"), _comparison(turned=True, opposite=False)),
    **dict.fromkeys(("le", "less_equal"), _comparison(turned=False, opposite=True)),
    **dict.fromkeys(("ge", "greater_equal"), _comparison(turned=True, opposite=True)),
    "logical_not": logical_not,
    **dict.fromkeys(("bitwise_not", "invert"), bitwise_not),
    **dict.fromkeys(("logical_and", "bitwise_and", "and", "iand", "rand"), logical_and),
    **dict.fromkeys(("logical_or", "bitwise_or", "or", "ior", "ror"), logical_or),
    "where": where,
    "nan_to_num": nan_to_num,
    "masked_fill": masked_fill,
    "maximum": maximum,
    "minimum": minimum,
    **dict.fromkeys(("clamp", "clip", "clamp_min"), clamp),
    "clamp_max": lambda trace, result, input, max: clamp(trace, result, input, None, max),
    "max": extreme("max"),
    "min": extreme("min"),
}
