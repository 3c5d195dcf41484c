"""Several reductions at once, truth values along an axis, softmin, and pooling by a power."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _softmin(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return F.softmax(-input, dim, dtype=dtype)


def _var_mean(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    return torch.var(input, dim, *args, **kwargs), torch.mean(input, dim, keepdim=keepdim)


def _std_mean(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    variance, mean = _var_mean(input, dim, *args, **kwargs)
    return torch.sqrt(variance), mean


def _aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    return torch.amin(input, dim, keepdim), torch.amax(input, dim, keepdim)


def _truth_along(extreme: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Whether any number along axes is not 0: the largest one of 0 and 1. Whether all are: the smallest."""

    def along(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            raise ValueError("no axis, so that all images are one answer")
        return extreme(input.bool().float(), dim, keepdim) > 0.5

    return along


def _count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    if dim is None:
        raise ValueError("no axis, so that all images are counted")
    return input.bool().float().sum(dim)


def _lp_pool(pool: Callable[..., Tensor], axes: int) -> Callable[..., Tensor]:
    def pooled(
        input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Tensor:
        sizes = [kernel_size] * axes if isinstance(kernel_size, int) else kernel_size
        means = pool(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
        return (means * float(math.prod(sizes))).pow(1.0 / norm_type)

    return pooled


def _nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if dim is None:
        raise ValueError("no axis, so that all images are summed")
    return torch.nan_to_num(input).sum(dim, keepdim)


def _nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    numbers = (~torch.isnan(input)).float()
    return _nansum(input, dim, keepdim) / numbers.sum(dim, keepdim)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nansum": _nansum,
    "nanmean": _nanmean,
    "softmin": _softmin,
    "var_mean": _var_mean,
    "std_mean": _std_mean,
    "aminmax": _aminmax,
    "any": _truth_along(torch.amax),
    "all": _truth_along(torch.amin),
    "count_nonzero": _count_nonzero,
    "lp_pool1d": _lp_pool(F.avg_pool1d, 1),
    "lp_pool2d": _lp_pool(F.avg_pool2d, 2),
}
