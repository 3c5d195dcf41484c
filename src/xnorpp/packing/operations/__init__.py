"""What each torch function means as nodes of a program: one file for each family of operations.

A handler is called with the trace, the result and the torch function's own arguments; `FUNCTIONS` of its
family has it under the function's name (without the `_` of in-place forms). `_IDENTITY` change nothing in
evaluation. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.nested import tensors_in
from xnorpp.packing.obstacles import Refusal, remedy_for
from xnorpp.packing.operations import (
    activation,
    arithmetic,
    convolution,
    moves,
    product,
    reduction,
    shape,
    window,
)
from xnorpp.packing.operations.arguments import Handler
from xnorpp.packing.trace import Trace

_IDENTITY = ("contiguous", "clone", "detach", "float", "to", "type", "type_as", "requires_grad_", "__get__")

FUNCTIONS: Mapping[str, Handler] = {
    **convolution.FUNCTIONS,
    **product.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **activation.FUNCTIONS,
    **window.FUNCTIONS,
    **reduction.FUNCTIONS,
    **shape.FUNCTIONS,
    **moves.FUNCTIONS,
}


# Functions that look at the last axes alone: where the batch is merged with another axis, that is one more.
_TRAILING = frozenset(
    (*activation.FUNCTIONS, *arithmetic.FUNCTIONS, *product.FUNCTIONS, *reduction.FUNCTIONS)
) - {"batch_norm", "group_norm", "instance_norm", "multi_head_attention_forward"}


def _apart(trace: Trace, name: str, args: Any, kwargs: Any, result: Any) -> tuple[Any, Any, Any]:
    """The call with images and what they are merged with as two axes, where the function allows it."""
    counts = {trace.merged(t) for t in tensors_in((args, kwargs)) if trace.is_value(t)}
    if counts == {0} or not isinstance(result, Tensor):
        return args, kwargs, result
    if name not in _TRAILING or len(counts) > 1:
        return args, kwargs, result  # the handler refuses it
    first = next(t for t in tensors_in((args, kwargs)) if trace.merged(t))
    (count,) = counts
    trace.set_merged(result, count)

    def changed(value: Any, key: Any) -> Any:
        if isinstance(value, Tensor):
            return trace.apart(value)
        if key == "dim" and isinstance(value, int):
            return value if value < 0 else value - first.dim()
        if key == "dim" and isinstance(value, list | tuple):
            return [d if d < 0 else d - first.dim() for d in value]
        return value

    takes_dim = name in _WITH_DIM
    places = ["dim" if i == 1 and takes_dim else None for i in range(len(args))]
    moved = [changed(value, place) for value, place in zip(args, places)]
    return tuple(moved), {key: changed(value, key) for key, value in kwargs.items()}, trace.apart(result)


_WITH_DIM = frozenset((*reduction.FUNCTIONS, "softmax", "log_softmax"))


def plain_name(name: str) -> str:
    """A function's name without the underscores of operators and in-place forms."""
    return name.strip("_") if name.startswith("__") else name.rstrip("_")


def record(trace: Trace, name: str, args: Any, kwargs: Any, result: Any) -> Node | list[Node]:
    """The node for one call of a torch function, or one for each tensor that it returns."""
    plain = plain_name(name)
    if name in _IDENTITY:
        if not result.is_floating_point() or (name == "__get__" and result.shape != args[0].shape):
            raise trace.fail("is not supported", remedy_for(plain))
        trace.set_batch_axis(result, trace.batch_axis(args[0]))
        trace.set_merged(result, trace.merged(args[0]))
        return trace.node(args[0], anywhere=True)
    handler = FUNCTIONS.get(plain)
    if handler is None:
        raise trace.fail("is not supported", remedy_for(plain))
    if plain not in moves.FUNCTIONS:
        args, kwargs, result = _apart(trace, plain, args, kwargs, result)
    try:
        made: Node | list[Node] = handler(trace, result, *args, **kwargs)
        if isinstance(result, Tensor) == isinstance(made, list):
            raise trace.fail("is not supported", remedy_for(plain))
        return made
    except Refusal:
        raise
    except (TypeError, ValueError, LookupError) as error:  # a form of the call that the handler does not know
        raise trace.fail(f"is not supported with these arguments ({error})") from error
