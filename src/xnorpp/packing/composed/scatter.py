"""Numbers that are put or summed at constant places of an axis: products with zeros and ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MOST = 1 << 24  # zeros and ones
_FEW = 256  # places of which each has a largest number


def _chosen(index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """A row for each number, which is one at its place."""
    if index.numel() * size > _MOST:
        raise ValueError(f"{index.numel()} places of {size}, which are too many")
    return torch.nn.functional.one_hot(index.long().reshape(-1) % size, size).to(dtype)


def _along(source: Tensor, dim: int, rows: Tensor) -> Tensor:
    return (source.movedim(dim, -1) @ rows).movedim(-1, dim)


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    made = _along(source, dim, _chosen(index, input.shape[dim], source.dtype))
    return input + (made if alpha == 1 else alpha * made)


def _put(input: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    places = index.long() % input.shape[dim]
    if torch.bincount(places).max() > 1:
        raise ValueError("places that occur twice")
    order = torch.full((input.shape[dim],), -1, dtype=torch.long)
    order[places] = torch.arange(places.numel())
    stays = (order < 0).reshape(-1, *[1] * (input.dim() - 1 - dim % input.dim()))
    if not isinstance(source, Tensor) or source.dim() == 0:
        return torch.where(stays, input, source)
    wide = source.index_select(dim, order.clamp(min=0))
    return torch.where(stays, input, wide)


def _one_index(index: Tensor, dim: int, source: Any) -> tuple[Tensor, Any]:
    """The places along an axis, where they are the same wherever else a number is; sources that are used."""
    rows = index.movedim(dim, -1).reshape(-1, index.shape[dim])
    if (rows != rows[:1]).any():
        raise ValueError("places that differ along other axes")
    if isinstance(source, Tensor) and source.dim():
        for axis, size in enumerate(index.shape):
            if axis and size < source.shape[axis]:
                source = source.narrow(axis, 0, size)
    return rows[0], source


def _fits(input: Tensor, dim: int, index: Tensor) -> None:
    if any(n != m for axis, (n, m) in enumerate(zip(input.shape, index.shape)) if axis != dim % input.dim()):
        raise ValueError(f"an index of shape {tuple(index.shape)}; expand it to the input's other axes")


def _scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    _fits(input, dim, index)
    places, source = _one_index(index, dim, src)
    return _index_add(input, dim, places, source)


def _scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    if reduce == "add":
        return _scatter_add(input, dim, index, src)
    if reduce is not None:
        raise ValueError(f"reduce={reduce!r}; use scatter_reduce")
    _fits(input, dim, index)
    places, source = _one_index(index, dim, value if src is None else src)
    return _put(input, dim, places, source)


def _scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    _fits(input, dim, index)
    return _index_reduce(input, dim, *_one_index(index, dim, src), reduce, include_self=include_self)


def _index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    size, places = input.shape[dim], index.long()
    if reduce in ("sum", "mean"):
        made = _along(source, dim, _chosen(places, size, source.dtype))
        counts = torch.bincount(places, minlength=size)
        tail = [1] * (input.dim() - 1 - dim % input.dim())
        if include_self:
            made, counts = input + made, counts + 1
        else:
            made = torch.where((counts > 0).reshape(-1, *tail), made, input)
        return made if reduce == "sum" else made / counts.clamp(min=1).to(source.dtype).reshape(-1, *tail)
    if reduce not in ("amax", "amin") or size > _FEW:
        raise ValueError(f"reduce={reduce!r} for {size} places; sum, mean, amax and amin are supported")
    parts = []
    extreme, both = (torch.amax, torch.maximum) if reduce == "amax" else (torch.amin, torch.minimum)
    for place in range(size):
        own = input.narrow(dim, place, 1)
        found = (places == place).nonzero().reshape(-1)
        if len(found):
            largest = extreme(source.index_select(dim, found), dim, True)
            own = both(own, largest) if include_self else largest
        parts.append(own)
    return torch.cat(parts, dim)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "index_add": _index_add,
    "index_copy": _put,
    "index_fill": _put,
    "index_reduce": _index_reduce,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
}
