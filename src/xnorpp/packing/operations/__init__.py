"""What each torch function means as nodes of a program: one file for each family of operations.

A handler is called with the trace, the result and the torch function's own arguments; `FUNCTIONS` of its
family has it under the function's name (without the `_` of in-place forms). `_IDENTITY` change nothing in
evaluation. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.packing.calls import tensors_in
from xnorpp.packing.composed import COMPOSED, composed, composed_value
from xnorpp.packing.composed.complexes import any_complex, complex_node
from xnorpp.packing.composed.places import COMPUTED
from xnorpp.packing.composed.whole import truncated
from xnorpp.packing.graph import Node
from xnorpp.packing.moves import indexing
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
    reduction,
    shape,
    unfold,
    volume,
    window,
)
from xnorpp.packing.operations.arguments import Handler
from xnorpp.packing.sequences import attention, recurrent
from xnorpp.packing.trace import Trace

_IDENTITY = frozenset(
    (
        *("contiguous", "clone", "detach", "requires_grad_", "positive", "__get__", "real", "as_tensor"),
        *(
            "cpu",
            "cuda",
            "pin_memory",
            "asarray",
            "conj",
            "conj_physical",
            "resolve_conj",
            "resolve_neg",
            "alias",
        ),
    )
)
_CASTS = frozenset(
    ("to", "type", "type_as", "float", "double", "half", "bfloat16", "bool", "int", "long", "short")
)
# Whole numbers that a program has as real ones; the others wrap around at a few hundred or thousand.
_WHOLE = (torch.int32, torch.int64)
# Functions whose result is a truth value of numbers.
_ANSWERS = frozenset(
    (
        *("gt", "greater", "lt", "less", "ge", "greater_equal", "le", "less_equal"),
        *(
            "eq",
            "ne",
            "not_equal",
            "any",
            "all",
            "count_nonzero",
            "logical_not",
            "logical_and",
            "logical_or",
            "logical_xor",
            "one_hot",
            "argmax",
        ),
        *("argmin", "argsort", "bucketize", "searchsorted", "isnan", "isinf", "isfinite", "isclose"),
        *("signbit", "isneginf", "isposinf", "isin"),
    )
)
# The names of numpy's arguments, which torch's functions take too, and torch's own ones.
_NUMPY = {"axis": "dim", "keepdims": "keepdim", "axis0": "dim0", "axis1": "dim1"}
# Which argument is a number that becomes one of the result's kind.
_PUT = {"setitem": 2, "masked_fill": 2, "pad": 3}

FUNCTIONS: Mapping[str, Handler] = {
    **convolution.FUNCTIONS,
    **product.FUNCTIONS,
    **attention.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **activation.FUNCTIONS,
    **window.FUNCTIONS,
    **reduction.FUNCTIONS,
    **shape.FUNCTIONS,
    **moves.FUNCTIONS,
    **indexing.FUNCTIONS,
    **choice.FUNCTIONS,
    **einsum.FUNCTIONS,
    **unfold.FUNCTIONS,
    **volume.FUNCTIONS,
    **recurrent.FUNCTIONS,
}
_PLACED = frozenset(
    (*moves.FUNCTIONS, *indexing.FUNCTIONS, *einsum.FUNCTIONS)
)  # which find the batch axis by themselves

# Functions that may give places too, which are not packed.
_POOLS = frozenset((*window.FUNCTIONS, *volume.FUNCTIONS))


def plain_name(name: str) -> str:
    """A function's name without the underscores of operators, in-place forms and torch's own `_threshold`,
    and without the prefix of `torch.special`."""
    return name.strip("_").removeprefix("special_")


def record(trace: Trace, name: str, args: Any, kwargs: Any, result: Any) -> Node | list[Node]:
    """The node for one call of a torch function, or one for each tensor that it returns."""
    plain = plain_name(name)
    args, kwargs = _in_order(plain, args, kwargs)
    if isinstance(kwargs.get("out"), Tensor):  # which is the result
        del kwargs["out"]
    with_complex = any_complex(args, kwargs, result)
    if not with_complex and (name in _IDENTITY or name in _CASTS):
        return _same(trace, name, args[0], result)
    made: Node | list[Node]
    pool = plain.removesuffix("_with_indices")
    if pool in _POOLS and isinstance(result, tuple) and plain not in COMPOSED:
        kwargs.pop("return_indices", None)
        return [batches.called(trace, pool, FUNCTIONS[pool], args, kwargs, result[0])]
    if pool == plain and pool in _POOLS and args and _lacks_channels(trace, pool, args[0]):
        return composed(trace, partial(_of_one_channel, getattr(F, pool)), args, kwargs, result)
    handler = FUNCTIONS.get(plain)
    if handler is None and plain not in COMPOSED and not with_complex:
        raise trace.fail("is not supported", remedy_for(plain))
    try:
        if with_complex:
            return complex_node(trace, plain, args, kwargs, result)
        if handler is None:
            index = kwargs.get("index", args[2] if len(args) > 2 else None)
            computed = plain in COMPUTED and trace.is_value(index)
            function = (COMPUTED if computed else COMPOSED)[plain]
            made = composed(trace, function, args, kwargs, result)
            _check_kind(trace, plain, args, kwargs, result)
            return made
        if plain in _PLACED or isinstance(result, list | tuple):
            made = handler(trace, result, *args, **kwargs)
        else:
            made = batches.called(trace, plain, handler, args, kwargs, result)
        if isinstance(result, Tensor) == isinstance(made, list):
            raise trace.fail("is not supported", remedy_for(plain))
        _check_kind(trace, plain, args, kwargs, result)
        for tensor, node in zip(*(([result], [made]) if isinstance(made, Node) else (result, made))):
            if tensor.dim() == 1 and node.shape == (1,) and not trace.merged(tensor):
                trace.set_merged(tensor, 1)  # one number for each image, without an axis of its own
        return made
    except Refusal:
        raise
    except Exception as error:  # a form of the call that the handler does not know
        raise trace.fail(f"is not supported with these arguments ({error})") from error


def _lacks_channels(trace: Trace, pool: str, input: Any) -> bool:
    """Whether what torch takes for the channels of one image are the images of a batch."""
    alone = trace.is_value(input) and not trace.batch_axis(input) and not trace.merged(input)
    return alone and pool[-2:] in ("1d", "2d", "3d") and input.dim() == int(pool[-2]) + 1


def _of_one_channel(function: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return function(input.unsqueeze(1), *args, **kwargs).squeeze(1)


def _in_order(plain: str, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Arguments under torch's own names, and the values by their places, which are the first ones."""
    kwargs = {_NUMPY.get(key, key): _python(value) for key, value in kwargs.items()}
    args = tuple(_python(value) for value in args)
    for place, name in enumerate((*(["condition"] if plain == "where" else []), "input", "other")):
        if name in kwargs and len(args) == place:
            args = (*args, kwargs.pop(name))
    return args, kwargs


def _python(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _same(trace: Trace, name: str, input: Tensor, result: Tensor) -> Node:
    """The value itself, perhaps of another type: truth values are numbers, and numbers are float32."""
    if name == "__get__" and result.shape != input.shape:
        raise trace.fail("is not supported", remedy_for(name))
    if result.dtype == torch.bool and input.dtype != torch.bool:
        return composed_value(trace, torch.ne, (input, 0.0), result)
    if input.is_floating_point() and result.dtype in _WHOLE:
        return composed_value(trace, truncated, (input,), result)
    if result.dtype != input.dtype:
        _check_cast(trace, input.dtype, result.dtype)
    trace.follow(result, input)
    return trace.node(input, anywhere=True)


def _check_cast(trace: Trace, before: torch.dtype, after: torch.dtype) -> None:
    kind = str(after).removeprefix("torch.")
    if after.is_floating_point:
        if after.itemsize < torch.float32.itemsize and after != trace.dtype:
            remedy = "leave the numbers float32, as the packed model has them"
            raise trace.fail(f"rounds to {kind}, which is not supported", remedy)
    elif before.is_floating_point:
        raise trace.fail(f"rounds to {kind}, which is not supported", "leave the numbers real")
    elif after not in _WHOLE:
        remedy = "use int64 or float32"
        raise trace.fail(f"gives {kind}, whose numbers wrap around, which is not supported", remedy)


def _check_kind(trace: Trace, plain: str, args: Any, kwargs: Any, result: Any) -> None:
    """Raises where torch computes whole numbers or truth values in a way that real numbers do not follow."""
    if not isinstance(result, Tensor) or result.is_floating_point() or plain in _ANSWERS:
        return
    truth = result.dtype == torch.bool
    kind = str(result.dtype).removeprefix("torch.")
    if truth and plain in ("add", "iadd", "radd"):
        raise trace.fail("of truth values is not supported", "use | for either, or .float() to count them")
    moved = plain in _PLACED and plain not in ("setitem", "einsum")
    if not truth and not moved and result.dtype not in _WHOLE:
        raise trace.fail(f"in {kind}, whose numbers wrap around, is not supported", "use .long() or .float()")
    place = _PUT.get(plain, len(args))
    put = kwargs.get("value", args[place] if len(args) > place else None)
    odd_tensor = truth and isinstance(put, Tensor) and put.dtype != torch.bool
    odd_number = isinstance(put, int | float) and (put not in (0, 1) if truth else put != int(put))
    if odd_tensor or odd_number or any(t.is_floating_point() for t in tensors_in((args, kwargs))):
        raise trace.fail(f"rounds to {kind}, which is not supported", "leave the numbers real")
