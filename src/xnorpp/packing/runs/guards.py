"""Checks for NaN and infinity, as `assert not torch.isnan(x).any()`: a packed model goes without them.

They ask whether something went wrong, and their answer over a whole batch decides nothing but that. So it may
be read, where any other decision by the values of an image is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from xnorpp.packing.calls import tensors_in

if TYPE_CHECKING:
    from xnorpp.packing.trace import Trace

_TESTS = ("isnan", "isinf", "isfinite", "isposinf", "isneginf")
_WHOLE = ("any", "all")
_JOINED = (
    *("__invert__", "bitwise_not", "logical_not", "__or__", "bitwise_or", "logical_or", "__and__"),
    *("bitwise_and", "logical_and"),
)
_READ = ("__bool__", "item")


class Guards:
    """The answers of such tests, of every number or of all together."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def follow(self, trace: Trace, name: str, args: Any, kwargs: Any, result: Any) -> bool:
        """Whether a call only asks for them, so that nothing of it is packed. The trace keeps every tensor
        alive, so that no identity is used twice."""
        if name in _READ:
            return id(args[0]) in self._known and args[0].numel() == 1
        if not isinstance(result, Tensor):
            return False
        known = all(id(t) in self._known for t in tensors_in((args, kwargs)))
        if name in _TESTS or (known and name in _JOINED):
            self._known.add(id(result))
            trace.remember(result)
            if not known or result.dim():
                return False  # a mask of numbers, which may be chosen by
        elif not known or name not in _WHOLE or len(args) > 1 or kwargs:
            return False
        self._known.add(id(result))
        trace.leave_out([result])
        return True
