"""Numbers that a computed mask chooses, `x[mask]`, up to where they are put back: `x[mask] = x[mask] * 2`.

How many they are depends on the image, so that no value of a program has their shape. What is done to each of
them is done to all numbers beside them instead, and the mask chooses what is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xnorpp.packing.calls import tensors_in
from xnorpp.packing.graph import Node, same
from xnorpp.packing.obstacles import Obstacle

if TYPE_CHECKING:
    from xnorpp.packing.trace import Trace

COMPUTED = "use slices; where a mask chooses numbers, torch.where(mask, x, y) leaves all others in place"
REASON = "with an index computed from the input is not supported"


class Masked:
    """Tensors of chosen numbers by identity: all numbers as they became, and the mask."""

    def __init__(self) -> None:
        self._all: dict[int, tuple[Tensor, Tensor]] = {}
        self._refusals: dict[int, Obstacle] = {}  # where no more is done with them

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._all

    def __bool__(self) -> bool:
        return bool(self._all)

    def follow(
        self, trace: Trace, func: Callable[..., Any], name: str, args: Any, kwargs: Any, result: Any
    ) -> bool:
        """Whether a call chooses numbers, does something to each, or puts them back, and was recorded."""
        if name == "__getitem__" and _is_mask(trace, args[1]) and args[0].dim() >= args[1].dim():
            with trace:
                whole = args[0].clone()
            self._set(trace, result, whole, args[1])
            self._refusals[id(result)] = trace.fail(REASON, COMPUTED).obstacle
            return True
        chosen = [t for t in tensors_in((args, kwargs)) if t in self]
        if not chosen:
            return False
        masks = [self._all[id(t)][1] for t in chosen]
        if name == "__setitem__" and args[2] in self and _is_mask(trace, args[1]):
            if not self._is_one(trace, [args[1], *masks]):
                raise trace.fail(REASON, COMPUTED)
            return False  # recorded as any other, with `whole_of`
        alike = all(t in self or t.dim() == 0 for t in tensors_in((args, kwargs)))
        if (
            not alike
            or not self._is_one(trace, masks)
            or not isinstance(result, Tensor)
            or result.shape != chosen[0].shape
        ):
            raise trace.fail(REASON, COMPUTED)
        given, named = _each([list(args), kwargs], self.whole_of)
        with trace:
            whole = func(*given, **named)
        if not isinstance(whole, Tensor) or whole.shape != self._all[id(chosen[0])][0].shape:
            raise trace.fail(REASON, COMPUTED)
        self._set(trace, result, whole, masks[0])
        self._refusals[id(result)] = self._refusals[id(chosen[0])]
        return True

    def obstacle(self, tensor: Tensor) -> Obstacle:
        """That of a tensor of chosen numbers that a model returns."""
        return self._refusals[id(tensor)]

    def _is_one(self, trace: Trace, masks: list[Tensor]) -> bool:
        """Whether masks are one, or made by the same operations."""
        first, *others = (trace.node(mask, anywhere=True) for mask in masks)
        return all(same(first, other) for other in others)

    def whole_of(self, value: Any) -> Any:
        """All numbers in place of chosen ones."""
        return self._all[id(value)][0] if isinstance(value, Tensor) and value in self else value

    def _set(self, trace: Trace, result: Tensor, whole: Tensor, mask: Tensor) -> None:
        self._all[id(result)] = (whole, mask)
        trace.nodes[id(result)] = Node(
            "masked", [trace.nodes[id(whole)]] if id(whole) in trace.nodes else [], ()
        )
        trace.alive.append(result)


def _is_mask(trace: Trace, index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool and trace.is_value(index)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_each(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return change(value)
