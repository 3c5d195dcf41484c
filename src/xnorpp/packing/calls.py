"""Calls of torch functions and modules: kinds of functions, and the tensors in arguments and results."""

from __future__ import annotations

import dataclasses
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_PACKAGES = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))
_OUTERMOST = "run_traced"  # the function of `record.py` around a model's run

# Questions about a tensor that do not read its values.
METADATA = (
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point"),
    *("is_complex", "get_device", "element_size", "storage_offset", "__len__", "__hash__", "__repr__"),
    *("is_signed", "is_conj", "is_neg", "is_inference", "is_pinned", "is_shared", "is_same_size", "data_ptr"),
    *("result_type", "can_cast", "is_tensor", "is_storage", "has_names", "dim_order"),
)
# Fresh tensors that take no more than shape and type from a value.
FRESH = (
    *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor"),
    *("new_empty", "empty_like", "rand_like", "randn_like", "randint_like"),
)
# What a constant becomes by the shape or type of a value is a constant.
LIKE = ("type_as", "to", "expand_as", "view_as", "reshape_as")
# Properties that move axes, or are a part of complex numbers.
TURNED = ("T", "mT", "H", "mH", "real", "imag")
# Parts by numbers, which may be no part at all: the same for every image.
PARTS = ("__getitem__", "narrow", "split", "split_with_sizes", "chunk", "tensor_split")
# Tensors of no numbers yet: they would be others in every run.
UNSET = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
# Functions that draw random numbers.
RANDOM = (
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "poisson"),
    *("bernoulli", "multinomial", "normal_", "uniform_", "bernoulli_", "exponential_", "random_", "cauchy_"),
    *("log_normal_", "geometric_", "gumbel_softmax"),
)
# What makes numbers of Python, or a decision, of a tensor's numbers.
READS = (
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__array__"),
    *("__bool__", "__int__", "__float__", "__index__"),
)
# Operators that change their first argument.
_IN_PLACE = (
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__"),
    *("__imod__", "__ifloordiv__"),
    *("__iand__", "__ior__", "__ixor__"),
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a module. `shape`, that of one input image, is None unless it maps one tensor to one."""

    shape: tuple[int, ...] | None
    changed_input: bool  # in place


def function_name(func: Callable[..., Any]) -> str:
    """The name of a function, or of a property that moves axes, whose function is called `__get__`."""
    turned = getattr(getattr(func, "__self__", None), "__name__", "")
    return turned if turned in TURNED else getattr(func, "__name__", str(func))


def changes_first(name: str) -> bool:
    """Whether a function of this name changes its first argument in place."""
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument or result: in tuples, lists, slices, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, slice):
        yield from tensors_in([value.start, value.stop, value.step])
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


def is_description(result: Any) -> bool:
    """Whether a result is a type, a device or a shape, which do not depend on numbers, as of `x.type()`."""
    return isinstance(result, str | torch.dtype | torch.device | torch.layout | torch.Size)


def is_empty(result: Any) -> bool:
    """Whether a result has tensors, and no number in any of them, as a slice of no tokens."""
    sizes = [t.numel() for t in tensors_in(result)]
    return bool(sizes) and not any(sizes)


def keep_value(values: dict[int, Tensor], rounded: dict[int, Tensor], serial: int, value: Tensor) -> None:
    """Adds a value by its serial; of another one under the same serial, how far their numbers are apart."""
    value = value.clone() if value.is_floating_point() else value.float()
    first = values.setdefault(serial, value)
    if first is not value and not torch.equal(first, value):
        equal = (first == value) | (first.isnan() & value.isnan())
        off = (first.double() - value.double()).abs().masked_fill(equal, 0)
        rounded[serial] = off.maximum(rounded.get(serial, off))


def source_line() -> str | None:
    """`file:line: source` of the innermost frame of the model outside torch and this package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _OUTERMOST:
        if _is_the_models(frame.f_code.co_filename):
            return _line(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def failing_line(error: BaseException) -> str | None:
    """The same for what a model raised."""
    found, inside, place = None, False, error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        inside = inside or code.co_name == _OUTERMOST
        if inside and _is_the_models(code.co_filename):
            found = _line(code.co_filename, place.tb_lineno)
        place = place.tb_next
    return found


def _is_the_models(file: str) -> bool:
    return not file.startswith(_PACKAGES) and not file.startswith("<")


def _line(file: str, number: int) -> str:
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"
