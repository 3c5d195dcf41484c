"""What a forward pass changes in a model: numbers in place, tensors that it replaces, and attributes."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from xnorpp.nn.scales import LearnedScale

_CONTAINERS = (dict, OrderedDict, list, set, deque)


class State:
    """A copy of a model's numbers and attributes.

    A lazy module, whose first forward pass gives it its size, keeps what it got: it is no part of the state.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
        self._bytes: dict[int, tuple[Tensor, Tensor]] = {}
        with torch._C.DisableTorchFunction():
            for module in model.modules():
                if not _is_unsized(module):
                    self._take(module)

    def _take(self, module: nn.Module) -> None:
        own = vars(module)
        self._attributes.append((own, dict(own)))
        for value in own.values():
            if type(value) in _CONTAINERS:
                self._containers.append((value, value.copy()))
                for item in value.values() if isinstance(value, dict) else value:
                    self._take_tensor(item)
            else:
                self._take_tensor(value)

    def _take_tensor(self, value: Any) -> None:
        if not isinstance(value, Tensor) or is_lazy(value) or value.layout != torch.strided:
            return
        if value.is_quantized or value.device.type == "meta":
            return
        self._tensors.append((value, value.detach(), dict(vars(value)) if hasattr(value, "__dict__") else {}))
        numbers = _memory(value)
        if numbers.numel() and numbers.data_ptr() not in self._bytes:
            self._bytes[numbers.data_ptr()] = (numbers, numbers.clone())

    def restore(self) -> bool:
        """Puts everything back; whether anything had changed."""
        changed = False
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for own, before in self._attributes:
                changed |= _put_back(own, before)
            for container, items in self._containers:
                if not _alike(container, items):
                    changed = True
                    container.clear()
                    (container.extend if isinstance(container, list | deque) else container.update)(items)
            for tensor, alias, attributes in self._tensors:
                if (tensor.data_ptr(), tensor.shape) != (alias.data_ptr(), alias.shape):
                    changed, tensor.data = True, alias
                if hasattr(tensor, "__dict__"):
                    changed |= _put_back(vars(tensor), attributes)
            for numbers, copy in self._bytes.values():
                if not torch.equal(numbers, copy):
                    changed = True
                    numbers.copy_(copy)
        return changed


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[bool]]:
    """Puts a model's state back at the end; the list then has whether anything had changed."""
    state = State(model)
    changed: list[bool] = []
    try:
        yield changed
    finally:
        changed.append(state.restore())


def _is_unsized(module: nn.Module) -> bool:
    return isinstance(module, LearnedScale) or any(
        p is not None and is_lazy(p) for p in (*module._parameters.values(), *module._buffers.values())
    )


def _memory(tensor: Tensor) -> Tensor:
    """All bytes that a tensor is a view of."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _put_back(own: dict[str, Any], before: dict[str, Any]) -> bool:
    added = own.keys() - before.keys()
    other = [key for key, value in before.items() if key not in own or own[key] is not value]
    for key in added:
        del own[key]
    for key in other:
        own[key] = before[key]
    return bool(added or other)


def _alike(container: Any, items: Any) -> bool:
    """Whether a container has the same objects in the same order."""
    if len(container) != len(items):
        return False
    if isinstance(container, dict):
        return all(a is b and container[a] is items[b] for a, b in zip(container, items))
    if isinstance(container, set):
        return bool(container == items)
    return all(a is b for a, b in zip(container, items))
