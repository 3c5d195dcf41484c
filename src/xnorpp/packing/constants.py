"""Tensors that do not depend on the input of a traced run, and whether a program may store their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from xnorpp.packing.calls import RANDOM, tensors_in


def memory_of(tensor: Tensor) -> int:
    """The address of a tensor's memory, which its views share; 0 where it has none."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()


class Constants:
    """The constants of a run: what a model owns, what was there before, and what was computed from these.

    The trace keeps every tensor alive, so that no identity and no memory is used twice. Random numbers and
    changes in place belong to the memory, so that every view of it is known by them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._known: set[int] = set()
        # Tensors that were there before the model ran, such as a name of its module's own, so that none
        # depends on the input; and whether one that is not among them was met.
        self.older: Mapping[int, Tensor] = {}
        self.met_unknown = False
        self.trusted = False  # whether those of unknown origin count as constants, ...
        self.unknown: list[Tensor] = []  # ... and copies of them
        # Arguments of unknown origin. Those that the next run meets too were there before it.
        self.strangers: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._made: set[int] = set()  # memory of what the run made
        self._random: set[int] = set()  # memory
        # Memory into which a value was put, and the tensor that it was put in by; None: several.
        self._changed: dict[int, Tensor | None] = {}
        for module in model.modules():
            own = [*module.parameters(False), *module.buffers(False), list(vars(module).values())]
            self._known.update(id(value) for value in tensors_in(own))
        self._owned = frozenset(self._known)
        owned = [*model.parameters(), *model.buffers()]
        self._owned_memory = {memory_of(value) for value in owned}

    def __contains__(self, tensor: Tensor) -> bool:
        if id(tensor) in self._known or self.older.get(id(tensor)) is tensor:
            return True
        memory = memory_of(tensor)  # another name of what the model owns or the run made, as Variable gives
        return bool(memory) and (memory in self._owned_memory or memory in self._made)

    def is_computed(self, tensor: Tensor) -> bool:
        """Whether the run made a constant, as `torch.arange(len(x))`, so that it may follow the batch."""
        return id(tensor) in self._known and id(tensor) not in self._owned

    def meet(self, tensors: Iterable[Tensor]) -> None:
        """Notes which of these, none of them a value, are of unknown origin."""
        for t in tensors:
            if t not in self:
                self.strangers[id(t)] = t

    def add(self, tensor: Tensor) -> None:
        self._known.add(id(tensor))
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            self._made.add(memory_of(tensor))

    def mark_random(self, tensors: Iterable[Tensor]) -> None:
        self._random.update(memory_of(t) for t in tensors if memory_of(t))

    def is_random(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of these has numbers that are others in every run."""
        return bool(self._random) and any(memory_of(t) in self._random for t in tensors)

    def mark_changed(self, tensor: Tensor) -> None:
        """A constant became a value in place; no view of its memory is a constant any more."""
        memory = memory_of(tensor)
        if memory:
            alone = self._changed.get(memory, tensor) is tensor
            self._changed[memory] = tensor if alone else None

    def is_changed(self, tensor: Tensor, by: object = None) -> bool:
        """Whether a value was put into a constant's memory, other than by this tensor, a view of it."""
        if not self._changed or memory_of(tensor) not in self._changed:
            return False
        return by is None or self._changed[memory_of(tensor)] is not by


class RandomState:
    """Whether a call draws random numbers: by its name, or because the generator of the processor moved."""

    def __init__(self, name: str) -> None:
        self._named = name in RANDOM
        self._before = torch.default_generator.get_state()

    def moved(self) -> bool:
        return self._named or not torch.equal(self._before, torch.default_generator.get_state())
