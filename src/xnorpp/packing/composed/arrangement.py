"""Joining, splitting, turning, and parts of matrices: numbers at other places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _column_stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t if t.dim() > 1 else t.unsqueeze(1) for t in tensors], 1)


def _dstack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t if t.dim() > 2 else t.unsqueeze(2) for t in tensors], 2)


def _split_along(dim: int) -> Callable[..., Any]:
    def split(input: Tensor, *given: Any, **named: Any) -> Any:
        (places,) = (*given, *named.values())  # `sections` or `indices`
        return input.tensor_split(places, dim)

    return split


def _broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = np.broadcast_shapes(*(tuple(t.shape) for t in tensors))
    return [t.expand(shape) for t in tensors]


def _diff(input: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    for _ in range(n):
        size = input.shape[dim]
        input = input.narrow(dim, 1, size - 1) - input.narrow(dim, 0, size - 1)
    return input


def _rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    first, second = dims
    if k % 4 == 2:
        return input.flip(first, second)
    return input.transpose(first, second).flip(first if k % 4 == 1 else second) if k % 4 else input.clone()


def _shifted(back: bool) -> Callable[..., Tensor]:
    """The first half of axes behind the second one."""

    def shift(input: Tensor, dim: Any = None) -> Tensor:
        if dim is None:
            raise ValueError("no axes, so that the batch is one of them")
        dims = [dim] if isinstance(dim, int) else list(dim)
        sizes = [input.shape[d] for d in dims]
        return input.roll([(n + 1) // 2 if back else n // 2 for n in sizes], dims)

    return shift


def _triangle(part: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def masked(input: Tensor, diagonal: int = 0) -> Tensor:
        return input * part(torch.ones(input.shape[-2:], dtype=input.dtype, device=input.device), diagonal)

    return masked


def _diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    last = input.movedim((dim1, dim2), (-2, -1))
    rows, columns = last.shape[-2:]
    places = torch.arange(rows * columns).reshape(rows, columns).diagonal(offset)
    return last.flatten(-2)[..., places]


def _diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Each row of the matrix is one number of the input, or zero, times a row of zeros and a one."""
    zeros = [input.new_zeros(*input.shape[:-1], abs(offset))] if offset else []
    rows = torch.cat([input, *zeros] if offset > 0 else [*zeros, input], -1)
    ones = torch.ones(input.shape[-1], dtype=input.dtype, device=input.device)
    return (rows.unsqueeze(-1) * torch.diag(ones, offset)).movedim((-2, -1), (dim1, dim2))


def _copy(input: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.to(input.dtype).expand_as(input)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "copy": _copy,
    "zero": torch.zeros_like,
    "fill": torch.full_like,
    "hstack": lambda tensors: torch.cat(list(tensors), 1),
    "column_stack": _column_stack,
    "dstack": _dstack,
    "hsplit": _split_along(1),
    "dsplit": _split_along(2),
    "broadcast_tensors": _broadcast,
    "diff": _diff,
    "rot90": _rot90,
    "flipud": lambda input: input.flip(0),
    "fliplr": lambda input: input.flip(1),
    "tril": _triangle(torch.tril),
    "triu": _triangle(torch.triu),
    "diagonal": _diagonal,
    "fft_fftshift": _shifted(False),
    "fft_ifftshift": _shifted(True),
    "linalg_diagonal": lambda A, *, offset=0, dim1=-2, dim2=-1: _diagonal(A, offset, dim1, dim2),
    "diag_embed": _diag_embed,
}
