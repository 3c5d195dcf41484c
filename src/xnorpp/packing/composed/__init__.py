"""Functions that are written with other torch functions: these run under the trace in their place.

Each is what torch's documentation defines the function as; one file for each family. Nothing here is an
operation of a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xnorpp.packing.calls import tensors_in
from xnorpp.packing.composed import (
    algebra,
    arrangement,
    cells,
    elementwise,
    inverse,
    places,
    quantised,
    reductions,
    sampling,
    scatter,
    volumes,
    whole,
)
from xnorpp.packing.graph import Node
from xnorpp.packing.trace import Consequence, Trace

COMPOSED: dict[str, Callable[..., Any]] = {
    **elementwise.FUNCTIONS,
    **algebra.FUNCTIONS,
    **reductions.FUNCTIONS,
    **arrangement.FUNCTIONS,
    **cells.FUNCTIONS,
    **scatter.FUNCTIONS,
    **volumes.FUNCTIONS,
    **whole.FUNCTIONS,
    **places.FUNCTIONS,
    **quantised.FUNCTIONS,
    **inverse.FUNCTIONS,
    **sampling.FUNCTIONS,
}


def composed(
    trace: Trace, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> Node | list[Node]:
    """The nodes of what `function` computes with these arguments, for the tensors that torch gave.

    Of the values that `verify` compares, torch's own results are left alone: what lies between was rounded as
    the packed model rounds it, not as torch does.
    """
    args = [_before(trace, value, result) for value in args]
    first, operation, outer = trace.serial, trace.operation, trace.composing
    trace.composing = outer or operation
    try:
        with trace:
            made = function(*_as_numbers(args, result), **kwargs)
    finally:
        trace.operation, trace.composing = operation, outer
    if trace.values is not None:
        trace.values = {serial: value for serial, value in trace.values.items() if serial <= first}
    nodes = [_taken_over(trace, new, old) for new, old in zip(tensors_in(made), tensors_in(result))]
    return nodes[0] if isinstance(result, Tensor) else nodes


def _as_numbers(args: list[Any], result: Any) -> list[Any]:
    """Truth values of a function of numbers as 0 and 1."""
    truth = args and isinstance(args[0], Tensor) and args[0].dtype == torch.bool
    number = isinstance(result, Tensor) and result.is_floating_point()
    return [args[0].float(), *args[1:]] if truth and number else args


def composed_value(trace: Trace, function: Callable[..., Any], args: Any, result: Tensor) -> Node:
    """The same for a function with one result."""
    made = composed(trace, function, args, {}, result)
    return made[0] if isinstance(made, list) else made


def _before(trace: Trace, value: Any, result: Any) -> Any:
    """An argument that the function changed in place, as it was: only `verify` reads its numbers."""
    if value is not result or trace.values is None:
        return value
    node = trace.node(value, anywhere=True)
    old = trace.placed(trace.values[node.serial], value).to(value.dtype, copy=True)
    trace.follow(old, value)
    trace.bind(old, node)
    return old


def _taken_over(trace: Trace, made: Tensor, result: Tensor) -> Node:
    if not trace.is_value(made):
        return _constant(trace, made, result)
    node = trace.node(made, anywhere=True)
    if node.op == "opaque":  # of something that was refused and noted
        raise Consequence
    trace.follow(result, made)
    return node


def _constant(trace: Trace, made: Tensor, result: Tensor) -> Node:
    """A constant among several results, such as those of `broadcast_tensors`; one for all images."""
    value = trace.constant(made)
    if result.shape[:1] != (trace.batch,) or (value != value[:1]).any():
        raise trace.fail("gives a constant that differs from image to image", "give every image the same")
    return trace.emit("constant", [trace.input], value.shape[1:], None, {"value": value[0]})
