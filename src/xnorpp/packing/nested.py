"""The tensors inside of what a module takes and returns: tuples, lists, mappings and dataclasses of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument or result: in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(list(vars(value).values()))


def named_outputs(result: Any) -> dict[str, Tensor]:
    """The tensors that a model returns by name: keys, field names or positions; "output" for a single one."""
    if isinstance(result, Tensor):
        return {"output": result}
    if isinstance(result, Mapping):
        items = [(str(key), value) for key, value in result.items()]
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        items = list(vars(result).items())
    elif isinstance(result, list | tuple):
        items = list(zip(getattr(result, "_fields", map(str, range(len(result)))), result))
    else:
        return {}
    found: dict[str, Tensor] = {}
    for name, value in items:
        for inner, tensor in named_outputs(value).items():
            found[name if isinstance(value, Tensor) else f"{name}.{inner}"] = tensor
    return found
