"""Products of matrices and vectors, products along an axis, norms and distances."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.packing.composed.elementwise import logaddexp

_MOST_FACTORS = 64  # of a product along an axis
_LARGEST_MATRIX = 4  # of a determinant, whose terms are as many as its permutations
_REAL = (None, torch.float32, torch.float64)


def _addmm(input: Any, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = first @ second if alpha == 1 else alpha * (first @ second)
    return product if beta == 0 else product + (input if beta == 1 else beta * input)


def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """One matrix for each output between two vectors."""
    outputs, first, second = weight.shape
    rows = input1 @ weight.permute(1, 0, 2).reshape(first, -1)
    made = (rows.reshape(*rows.shape[:-1], outputs, second) * input2.unsqueeze(-2)).sum(-1)
    return made if bias is None else made + bias


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> Tensor:
    if isinstance(dims, int):
        dims = [list(range(a.dim() - dims, a.dim())), list(range(dims))]
    pairs = {second % b.dim(): first % a.dim() for first, second in zip(*dims)}
    left = list(range(a.dim()))
    right = [pairs.get(axis, a.dim() + axis) for axis in range(b.dim())]
    stay = [i for i in left if i not in pairs.values()] + [i for i in right if i >= a.dim()]
    return torch.einsum(a, left, b, right, stay)


def _real(input: Tensor, dtype: Any) -> Tensor:
    """The factors or summands as real numbers, in which whole numbers and truth values are exact."""
    if dtype not in _REAL:
        raise ValueError(f"dtype={dtype}; leave `dtype` out")
    return input if input.is_floating_point() else input.float()


def _factors(input: Tensor, dim: int | None, dtype: Any) -> list[Tensor]:
    if dim is None:
        raise ValueError("no axis, so that all images are multiplied")
    if input.shape[dim] > _MOST_FACTORS:
        raise ValueError(f"{input.shape[dim]} factors; up to {_MOST_FACTORS} are supported")
    return list(_real(input, dtype).unbind(dim))


def _prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Products of pairs, and of pairs of those."""
    parts = _factors(input, dim, dtype)
    while len(parts) > 1:
        last = parts[-1:] if len(parts) % 2 else []
        parts = [a * b for a, b in zip(parts[::2], parts[1::2])] + last
    return parts[0].unsqueeze(dim) if keepdim and dim is not None else parts[0]


def _cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return torch.stack(list(itertools.accumulate(_factors(input, dim, dtype), torch.mul)), dim)


def _cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """A product with a matrix of ones on and above its diagonal."""
    input = _real(input, dtype)
    ones = torch.ones(input.shape[dim], input.shape[dim], dtype=input.dtype, device=input.device).triu()
    return (input.movedim(dim, -1) @ ones).movedim(-1, dim)


def _running(both: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """What a function makes of all numbers up to each: of two, of four, of eight and so on."""

    def running(input: Tensor, dim: int) -> Tensor:
        reach = 1
        while reach < input.shape[dim]:
            rest = input.shape[dim] - reach
            later, earlier = input.narrow(dim, reach, rest), input.narrow(dim, 0, rest)
            input = torch.cat([input.narrow(dim, 0, reach), both(later, earlier)], dim)
            reach *= 2
        return input

    return running


def _cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Along the first axis of three numbers where none is named."""
    dim = list(input.shape).index(3) if dim is None else dim
    first, second = ([t.roll(-1, dim), t.roll(-2, dim)] for t in (input, other))
    return first[0] * second[1] - first[1] * second[0]


def _linalg_norm(
    A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Of vectors along one axis, and along any without `ord`; of matrices along two."""
    A = _real(A, dtype)
    dims = [dim] if isinstance(dim, int) else dim
    if ord is None or (dims is not None and len(dims) == 1):
        return torch.linalg.vector_norm(A, 2 if ord is None else ord, dims, keepdim)
    if dims is None:
        raise ValueError("no axes, so that the batch is one of them")
    return _matrix_norm(A, ord, dims, keepdim)


def _matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    A = _real(A, dtype)
    if ord == "fro":
        return torch.linalg.vector_norm(A, 2, dim, keepdim)
    if ord not in (1, math.inf):
        raise ValueError(f"the norm {ord!r} of a matrix; 'fro', 1 and infinity are supported")
    rows, columns = (d % A.dim() for d in dim)
    added, largest = (rows, columns) if ord == 1 else (columns, rows)
    made = A.abs().sum(added, keepdim=True).amax(largest, keepdim=True)
    return made if keepdim else made.squeeze((rows, columns))


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return (F.normalize(x1, dim=dim, eps=eps) * F.normalize(x2, dim=dim, eps=eps)).sum(dim)


def _pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Any:
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _outer(input: Tensor, vec2: Tensor) -> Tensor:
    return input.unsqueeze(1) * vec2.unsqueeze(0)


def _addr(input: Any, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = alpha * _outer(vec1, vec2)
    return product if beta == 0 else product + beta * input


def _kron(input: Tensor, other: Tensor) -> Tensor:
    """Each number of the one times the whole of the other."""
    rank = max(input.dim(), other.dim())
    one, two = (t.reshape(*[1] * (rank - t.dim()), *t.shape) for t in (input, other))
    for axis in range(rank):
        one, two = one.unsqueeze(2 * axis + 1), two.unsqueeze(2 * axis)
    sizes = [n * m for n, m in zip(one.shape[::2], two.shape[1::2])]
    return (one * two).reshape(sizes)


def _matrix_power(input: Tensor, n: int) -> Tensor:
    if not 1 <= n <= _MOST_FACTORS:
        raise ValueError(f"the power {n}; powers from 1 to {_MOST_FACTORS} are supported")
    if n == 1:
        return input * 1.0
    half = _matrix_power(input, n // 2) if n > 3 else input
    square = half @ half
    return square @ input if n % 2 else square


def _minor(input: Tensor, row: int, column: int) -> Tensor:
    for axis, place in ((-2, row), (-1, column)):
        size = input.shape[axis]
        parts = [input.narrow(axis, 0, place), input.narrow(axis, place + 1, size - place - 1)]
        input = torch.cat([part for part in parts if part.numel()], axis)
    return input


def _det(input: Tensor) -> Any:
    """By the first row, of matrices that are small."""
    size = input.shape[-1]
    if size > _LARGEST_MATRIX:
        raise ValueError(
            f"matrices of {size}x{size}; up to {_LARGEST_MATRIX}x{_LARGEST_MATRIX} are supported"
        )
    if size == 1:
        return input[..., 0, 0]
    parts = [(-1) ** i * input[..., 0, i] * _det(_minor(input, 0, i)) for i in range(size)]
    return functools.reduce(torch.add, parts)


def _inverse(A: Tensor) -> Any:
    """Determinants of what is left of a matrix without a row and a column, by that of the whole."""
    size, whole = A.shape[-1], _det(A)
    if size == 1:
        return 1.0 / A
    rows = [
        torch.stack([(-1) ** (i + j) * _det(_minor(A, j, i)) for j in range(size)], -1) for i in range(size)
    ]
    return torch.stack(rows, -2) / whole.unsqueeze(-1).unsqueeze(-1)


def _chain(*matrices: Any) -> Tensor:
    """Products of several matrices, from the left."""
    made: Tensor = functools.reduce(torch.matmul, matrices[0] if len(matrices) == 1 else matrices)
    return made


def _trapezoid(y: Tensor, x: Any = None, *, dx: Any = 1.0, dim: int = -1, running: bool = False) -> Tensor:
    size = y.shape[dim]
    if isinstance(x, Tensor) and x.dim() == 1:
        x = x.reshape(-1, *[1] * (y.dim() - 1 - dim % y.dim()))
    width = dx if x is None else torch.diff(x, dim=dim if x.dim() == y.dim() else 0)
    parts = (y.narrow(dim, 1, size - 1) + y.narrow(dim, 0, size - 1)) * (width * 0.5)
    return parts.cumsum(dim) if running else parts.sum(dim)


def _renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    if dim % input.dim():
        raise ValueError("an axis other than the first, so that all images have one norm")
    size = torch.linalg.vector_norm(input, p, list(range(1, input.dim())), True)
    return input * torch.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "addmv": _addmm,
    "mv": lambda input, vec: input @ vec,
    **dict.fromkeys(("outer", "ger"), _outer),
    "addr": _addr,
    "kron": _kron,
    **dict.fromkeys(("matrix_power", "linalg_matrix_power"), _matrix_power),
    **dict.fromkeys(("chain_matmul", "linalg_multi_dot"), _chain),
    **dict.fromkeys(("trapezoid", "trapz"), _trapezoid),
    "cumulative_trapezoid": functools.partial(_trapezoid, running=True),
    "renorm": _renorm,
    "linalg_matmul": torch.matmul,
    **dict.fromkeys(("det", "linalg_det"), _det),
    **dict.fromkeys(("inverse", "linalg_inv"), _inverse),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "inner": lambda input, other: input @ other.mT,
    **dict.fromkeys(("vecdot", "linalg_vecdot"), lambda x, y, *, dim=-1: (x * y).sum(dim)),
    "tensordot": _tensordot,
    "bilinear": _bilinear,
    "prod": _prod,
    "cumprod": _cumprod,
    "cumsum": _cumsum,
    "cummax": _running(torch.maximum),
    "cummin": _running(torch.minimum),
    "logcumsumexp": _running(logaddexp),
    "cross": _cross,
    "linalg_cross": lambda input, other, *, dim=-1: _cross(input, other, dim),
    "linalg_norm": _linalg_norm,
    "linalg_matrix_norm": _matrix_norm,
    "cosine_similarity": _cosine_similarity,
    "pairwise_distance": _pairwise_distance,
    "cdist": _cdist,
}
