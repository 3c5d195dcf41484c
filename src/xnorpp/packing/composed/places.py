"""Rows of tables by whole numbers of the input, such as words, and numbers in order: products with zeros and
ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_MOST = 512  # numbers that are compared with each other


def ones_at(places: Tensor, size: int) -> Tensor:
    """A row of zeros for each whole number, with a one at its place."""
    return F.relu(1.0 - (places.unsqueeze(-1).float() - torch.arange(float(size))).abs())


def _embedding(
    input: Tensor, weight: Tensor, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    return ones_at(input, weight.shape[0]) @ weight


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Any = None, max_norm: Any = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    if offsets is not None or input.dim() != 2:
        raise ValueError("`offsets`; give it bags of one length, (n, length)")
    ones = ones_at(input, weight.shape[0])
    if mode == "max":
        if padding_idx is not None:
            raise ValueError("mode='max' and `padding_idx`")
        return (ones @ weight).amax(1)
    if per_sample_weights is not None:
        ones = ones * per_sample_weights.unsqueeze(-1)
    if padding_idx is not None:
        stays = torch.ones(weight.shape[0])
        stays[padding_idx] = 0.0
        ones = ones * stays
    counts = ones.sum(1)
    if mode == "sum":
        return counts @ weight
    length = float(input.shape[1]) if padding_idx is None else counts.sum(1, keepdim=True).clamp(min=1.0)
    return (counts @ weight) / length


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise ValueError("no `num_classes`, so that it depends on the input")
    return ones_at(tensor, num_classes).long()


def rows_of(table: Tensor, places: Tensor) -> Tensor:
    """`table[places]` of a constant table, from its end where a place is below 0."""
    made = _at(places, table.shape[0]) @ table.reshape(table.shape[0], -1)
    return made.reshape(*places.shape, *table.shape[1:])


def own_rows(input: Tensor, places: Tensor) -> Tensor:
    """`input[torch.arange(n), places]`, a row for each image."""
    ones = _at(places, input.shape[1])
    return (input * ones.reshape(*ones.shape, *[1] * (input.dim() - 2))).sum(1)


def own_places(input: Tensor, places: Tensor) -> Tensor:
    """`input[images, places]`: several rows for each image, where `images` counts them."""
    rows = _at(places, input.shape[1]).flatten(1, -2)
    wide = input.unsqueeze(-1) if input.dim() == 2 else input.flatten(2)
    return (rows @ wide).reshape(*places.shape, *input.shape[2:])


def gathered(input: Tensor, dim: int, index: Tensor) -> Tensor:
    for axis, size in enumerate(index.shape):
        if axis and axis != dim % input.dim() and size < input.shape[axis]:
            input = input.narrow(axis, 0, size)
    last, places = input.movedim(dim, -1), index.movedim(dim, -1)
    return (ones_at(places, last.shape[-1]) * last.unsqueeze(-2)).sum(-1).movedim(-1, dim)


def _put(input: Tensor, dim: int, index: Tensor, src: Any) -> tuple[Tensor, Tensor]:
    """What comes to each place, and how many numbers do."""
    if any(n != m for axis, (n, m) in enumerate(zip(input.shape, index.shape)) if axis != dim % input.dim()):
        raise ValueError(f"an index of shape {tuple(index.shape)}; expand it to the input's other axes")
    ones = ones_at(index.movedim(dim, -1), input.shape[dim])
    counts = ones.sum(-2).movedim(-1, dim)
    if not isinstance(src, Tensor) or src.dim() == 0:
        return counts * src, counts
    return (ones * src.movedim(dim, -1).unsqueeze(-1)).sum(-2).movedim(-1, dim), counts


def _scattered(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    if reduce is not None:
        raise ValueError(f"reduce={reduce!r} and places computed from the input")
    made, counts = _put(input, dim, index, value if src is None else src)
    return torch.where(counts > 0, made, input)


# In place of the functions of constant places (`scatter.py`), where these are computed from the input.
COMPUTED: dict[str, Callable[..., Any]] = {
    "scatter": _scattered,
    "scatter_add": lambda input, dim, index, src: input + _put(input, dim, index, src)[0],
}


def _at(places: Tensor, size: int) -> Tensor:
    return ones_at(torch.where(places < 0, places + size, places), size)


def _ranks(last: Tensor, largest: bool) -> Tensor:
    """How many numbers of the last axis come before each one, of equal ones those on its left."""
    size = last.shape[-1]
    if size > _MOST:
        raise ValueError(f"{size} numbers, which are too many to compare; {_MOST} are supported")
    one, other = last.unsqueeze(-1), last.unsqueeze(-2)
    before = torch.ones(size, size).tril(-1)  # whether the other one is on the left
    ahead = other > one if largest else other < one
    behind = other < one if largest else other > one
    return (ahead.float() + (1 - ahead.float() - behind.float()) * before).sum(-1)


def _ordered(last: Tensor, largest: bool, count: int) -> tuple[Tensor, Tensor]:
    """The first numbers of the last axis in order, and their places."""
    size = last.shape[-1]
    ones = ones_at(_ranks(last, largest), size).narrow(-1, 0, count)
    values = (ones * last.unsqueeze(-1)).sum(-2)
    return values, (ones * torch.arange(float(size)).unsqueeze(-1)).sum(-2).long()


def _sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[Tensor, Tensor]:
    values, places = _ordered(input.movedim(dim, -1), descending, input.shape[dim])
    return values.movedim(-1, dim), places.movedim(-1, dim)


def _topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = _ordered(input.movedim(dim, -1), largest, k)
    return values.movedim(-1, dim), places.movedim(-1, dim)


def _of_rank(input: Tensor, rank: int, dim: int | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The number of an axis with this many smaller ones, and its place."""
    if dim is None:
        raise ValueError("no axis, so that all images are compared")
    last = input.movedim(dim, -1)
    ones = F.relu(1.0 - (_ranks(last, False) - float(rank)).abs())
    found = (ones * last).sum(-1), (ones * torch.arange(float(last.shape[-1]))).sum(-1)
    values, places = (t.unsqueeze(dim) if keepdim else t for t in found)
    return values, places.long()


def _median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _of_rank(input, (input.shape[-1 if dim is None else dim] - 1) // 2, dim, keepdim)


def _quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The numbers in order times a constant matrix."""
    if dim is None:
        raise ValueError("no axis, so that all images are compared")
    size = input.shape[dim]
    shares = q if isinstance(q, Tensor) else torch.tensor(float(q))
    rows = []
    for share in shares.reshape(-1).tolist():
        place = share * (size - 1)
        low = math.floor(place)
        rest = {
            "linear": place - low,
            "lower": 0.0,
            "higher": float(place > low),
            "midpoint": 0.5 * (place > low),
        }
        part = rest.get(interpolation, round(place) - low)
        rows.append([(1 - part) * (i == low) + part * (i == low + 1) for i in range(size)])
    values = _ordered(input.movedim(dim, -1), False, size)[0] @ torch.tensor(rows, dtype=input.dtype).mT
    if shares.dim():
        values = values.unsqueeze(dim % input.dim()) if keepdim else values
        return values.movedim(-1, 0)
    return values.movedim(-1, dim) if keepdim else values.squeeze(-1)


def _bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """How many boundaries are below each number, or not above it."""
    wide = input.unsqueeze(-1)
    return (wide >= boundaries if right else wide > boundaries).float().sum(-1)


def _searchsorted(
    sorted_sequence: Tensor, input: Tensor, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    if sorter is not None:
        raise ValueError("`sorter`; give it the sorted numbers")
    rows = sorted_sequence if sorted_sequence.dim() == 1 else sorted_sequence.unsqueeze(-2)
    return _bucketize(input, rows, right=right or side == "right")


def _best(largest: bool) -> Callable[..., Tensor]:
    def best(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            raise ValueError("no axis, so that all images are compared")
        last = input.movedim(dim, -1)
        extreme = last.amax(-1, keepdim=True) if largest else last.amin(-1, keepdim=True)
        size = float(last.shape[-1])  # the first of equal ones
        found = torch.where(last >= extreme if largest else last <= extreme, torch.arange(size), size)
        first = found.amin(-1).long()
        return first.unsqueeze(dim) if keepdim else first

    return best


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "one_hot": _one_hot,
    "sort": _sort,
    "argsort": lambda input, dim=-1, descending=False, stable=False: _sort(input, dim, descending)[1],
    "topk": _topk,
    "median": _median,
    "kthvalue": lambda input, k, dim=-1, keepdim=False: _of_rank(input, k - 1, dim, keepdim),
    "quantile": _quantile,
    "bucketize": _bucketize,
    "searchsorted": _searchsorted,
    "argmax": _best(True),
    "argmin": _best(False),
}
