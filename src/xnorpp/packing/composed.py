"""Functions that are written with other torch functions: these run under the trace in their place.

Each is what torch's documentation defines the function as. Nothing here is an operation of a program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.packing.graph import Node
from xnorpp.packing.nested import tensors_in
from xnorpp.packing.trace import Trace


def composed(
    trace: Trace, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> Node | list[Node]:
    """The nodes of what `function` computes with these arguments, for the tensors that torch gave.

    Of the values that `verify` compares, torch's own results are left alone: what lies between was rounded as
    the packed model rounds it, not as torch does.
    """
    args = [_before(trace, value, result) for value in args]
    first = trace.serial
    with trace:
        made = function(*args, **kwargs)
    if trace.values is not None:
        trace.values = {serial: value for serial, value in trace.values.items() if serial <= first}
    nodes = [_taken_over(trace, new, old) for new, old in zip(tensors_in(made), tensors_in(result))]
    return nodes[0] if isinstance(result, Tensor) else nodes


def composed_value(trace: Trace, function: Callable[..., Any], args: Any, result: Tensor) -> Node:
    """The same for a function with one result."""
    made = composed(trace, function, args, {}, result)
    return made[0] if isinstance(made, list) else made


def _before(trace: Trace, value: Any, result: Any) -> Any:
    """An argument that the function changed in place, as it was: only `verify` reads its numbers."""
    if value is not result or trace.values is None:
        return value
    node = trace.node(value)
    old = trace.values[node.serial].clone()
    trace.bind(old, node)
    return old


def _taken_over(trace: Trace, made: Tensor, result: Tensor) -> Node:
    node = trace.node(made, anywhere=True)
    trace.set_batch_axis(result, trace.batch_axis(made))
    trace.set_merged(result, trace.merged(made))
    return node


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """`x if x > threshold else value`."""
    return torch.where(input > threshold, input, value)


def power(base: Any, exponent: Any) -> Tensor:
    """A power of a number that is not negative: one exponent for each channel, or computed ones."""
    natural = torch.log(base) if isinstance(base, Tensor) else math.log(base)
    return torch.exp(natural * exponent)


def _rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    return F.leaky_relu(input, (lower + upper) / 2)


def softplus(input: Tensor, beta: float, threshold: float) -> Tensor:
    """Softplus up to a threshold below which the curve is not yet x itself."""
    return torch.where(input * beta > threshold, input, F.softplus(input, beta))


def _softmin(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return F.softmax(-input, dim, dtype=dtype)


def _lerp(input: Any, end: Any, weight: Any) -> Any:
    return input + weight * (end - input)


def _addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    return input + value * (tensor1 / tensor2)


def _addmm(input: Any, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = first @ second if alpha == 1 else alpha * (first @ second)
    return product if beta == 0 else product + (input if beta == 1 else beta * input)


def _var_mean(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    return torch.var(input, dim, *args, **kwargs), torch.mean(input, dim, keepdim=keepdim)


def _std_mean(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    variance, mean = _var_mean(input, dim, *args, **kwargs)
    return torch.sqrt(variance), mean


def _aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    return torch.amin(input, dim, keepdim), torch.amax(input, dim, keepdim)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return (F.normalize(x1, dim=dim, eps=eps) * F.normalize(x2, dim=dim, eps=eps)).sum(dim)


def _hstack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors), 1)


def _broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = np.broadcast_shapes(*(tuple(t.shape) for t in tensors))
    return [t.expand(shape) for t in tensors]


def _diff(input: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    for _ in range(n):
        size = input.shape[dim]
        input = input.narrow(dim, 1, size - 1) - input.narrow(dim, 0, size - 1)
    return input


def _cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """A product with a matrix of ones on and above its diagonal."""
    ones = torch.ones(input.shape[dim], input.shape[dim], dtype=input.dtype, device=input.device).triu()
    return (input.movedim(dim, -1) @ ones).movedim(-1, dim)


def _rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    first, second = dims
    if k % 4 == 2:
        return input.flip(first, second)
    return input.transpose(first, second).flip(first if k % 4 == 1 else second) if k % 4 else input.clone()


def _lp_pool(pool: Callable[..., Tensor], axes: int) -> Callable[..., Tensor]:
    def pooled(
        input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Tensor:
        sizes = [kernel_size] * axes if isinstance(kernel_size, int) else kernel_size
        means = pool(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
        return (means * float(math.prod(sizes))).pow(1.0 / norm_type)

    return pooled


def _triangle(part: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def masked(input: Tensor, diagonal: int = 0) -> Tensor:
        return input * part(torch.ones(input.shape[-2:], dtype=input.dtype, device=input.device), diagonal)

    return masked


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


COMPOSED: dict[str, Callable[..., Any]] = {
    "rrelu": _rrelu,
    "softmin": _softmin,
    "exp2": lambda input: torch.exp(input * math.log(2.0)),
    "rpow": lambda exponent, base: power(base, exponent),
    "lerp": _lerp,
    "addcdiv": _addcdiv,
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "inner": lambda input, other: input @ other.mT,
    **dict.fromkeys(("vecdot", "linalg_vecdot"), lambda x, y, *, dim=-1: (x * y).sum(dim)),
    "tensordot": _tensordot,
    "var_mean": _var_mean,
    "std_mean": _std_mean,
    "aminmax": _aminmax,
    "cosine_similarity": _cosine_similarity,
    "hstack": _hstack,
    "broadcast_tensors": _broadcast,
    "tril": _triangle(torch.tril),
    "triu": _triangle(torch.triu),
    "bilinear": _bilinear,
    "diff": _diff,
    "cumsum": _cumsum,
    "rot90": _rot90,
    "lp_pool1d": _lp_pool(F.avg_pool1d, 1),
    "lp_pool2d": _lp_pool(F.avg_pool2d, 2),
}
