"""Other tensors of a value's memory that no torch function gave, as `torch.autograd.Variable(x)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from xnorpp.packing.constants import memory_of

if TYPE_CHECKING:
    from xnorpp.packing.trace import Trace


class Aliases:
    """The tensors of a run by their memory."""

    def __init__(self) -> None:
        self._owners: dict[int, list[Tensor]] = {}

    def add(self, tensor: Tensor) -> None:
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            self._owners.setdefault(memory_of(tensor), []).append(tensor)

    def adopt(self, trace: Trace, tensor: Tensor) -> None:
        """Takes a tensor of unknown origin for the value whose memory it has, if there is one."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        memory = memory_of(tensor)
        values = [t for t in self._owners.get(memory, ()) if trace.is_value(t)] if memory else []
        if not values:
            return
        with torch._C.DisableTorchFunction():
            same = [t for t in values if id(t) in trace.nodes and _form(t) == _form(tensor)]
        if not same:  # another view of it, whose origin stays unknown
            return
        trace.nodes[id(tensor)] = trace.nodes[id(same[-1])]
        trace.follow(tensor, same[-1])
        trace.set_step(tensor, trace.step(same[-1]))
        if id(same[-1]) in trace.odd:
            trace.odd.add(id(tensor))
        trace.remember(tensor)


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
