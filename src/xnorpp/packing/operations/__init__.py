"""What each torch function means as nodes of a program: one file for each family of operations.

A handler is called with the trace, the result and the torch function's own arguments; `FUNCTIONS` of its
family has it under the function's name (without the `_` of in-place forms). `_IDENTITY` change nothing in
evaluation. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from xnorpp.packing.composed import COMPOSED, composed
from xnorpp.packing.graph import Node
from xnorpp.packing.obstacles import Refusal, remedy_for
from xnorpp.packing.operations import (
    activation,
    arithmetic,
    batches,
    choice,
    convolution,
    einsum,
    moves,
    product,
    recurrent,
    reduction,
    shape,
    unfold,
    volume,
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
    **choice.FUNCTIONS,
    **einsum.FUNCTIONS,
    **unfold.FUNCTIONS,
    **volume.FUNCTIONS,
    **recurrent.FUNCTIONS,
}
_PLACED = frozenset((*moves.FUNCTIONS, *einsum.FUNCTIONS))  # which find the batch axis by themselves


def plain_name(name: str) -> str:
    """A function's name without the underscores of operators, in-place forms and torch's own `_threshold`."""
    return name.strip("_")


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
    if handler is None and plain not in COMPOSED:
        raise trace.fail("is not supported", remedy_for(plain))
    try:
        if handler is None:
            return composed(trace, COMPOSED[plain], args, kwargs, result)
        if plain in _PLACED or isinstance(result, list | tuple):
            made: Node | list[Node] = handler(trace, result, *args, **kwargs)
        else:
            made = batches.called(trace, plain, handler, args, kwargs, result)
        if isinstance(result, Tensor) == isinstance(made, list):
            raise trace.fail("is not supported", remedy_for(plain))
        for tensor, node in zip(*(([result], [made]) if isinstance(made, Node) else (result, made))):
            if tensor.dim() == 1 and node.shape == (1,) and not trace.merged(tensor):
                trace.set_merged(tensor, 1)  # one number for each image, without an axis of its own
        return made
    except Refusal:
        raise
    except (TypeError, ValueError, LookupError) as error:  # a form of the call that the handler does not know
        raise trace.fail(f"is not supported with these arguments ({error})") from error
