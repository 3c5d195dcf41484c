"""sign and its surrogate gradients.

Every function here has the same forward pass, Eq. 1 of the paper, and differs only in the gradient:

    sign(x) = +1 if x > 0 else -1          (so sign(0) = -1, and sign(NaN) = -1)

The output is exactly +1 or -1 in every floating dtype. The gradient is written with ordinary differentiable
operations, so `torch.compile`, `torch.export` and autocast see nothing special: with `slope` the stated
derivative and `c = x * slope`, the value `sign(x) + (c - c.detach())` is `sign(x)` plus an exact zero, and
its derivative is `slope`. Adding `x` itself, `x + (sign(x) - x).detach()`, would round in half precision and
give 0.996 for +1. In eager mode an `autograd.Function` computes the same two formulas in fewer passes over
memory; it is never used under compilation, where functions with a saved mask have been seen to lose the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Progress = float | Tensor
Surrogate = Callable[[Tensor, Progress], Tensor]

TANH_SHARPNESS_START = 0.1
TANH_SHARPNESS_END = 10.0


def hard_sign(x: Tensor) -> Tensor:
    """Eq. 1 without any gradient: +1 where x > 0, else -1, in the dtype of `x`.

    As `threshold(torch.sign(x))`, two vectorised passes: a tenth of the time of `torch.where` with two
    constants.
    """
    return torch.threshold(torch.sign(x.detach()), 0.0, -1.0)


def sign(x: Tensor, progress: Progress = 0.0) -> Tensor:
    """Eq. 1 with the straight-through gradient clipped at 1.

    forward:   sign(x) = +1 if x > 0 else -1
    gradient:  d/dx = 1 if |x| <= 1 else 0
    paper:     Courbariaux et al. 2016, "Binarized Neural Networks", https://arxiv.org/abs/1602.02830
    """
    if torch.compiler.is_compiling():
        carrier = torch.where(x.abs() <= 1, x, 0.0)
        return hard_sign(x) + (carrier - carrier.detach())
    return _apply_sign(_ClippedSign, x)


def polynomial_sign(x: Tensor, progress: Progress = 0.0) -> Tensor:
    """Eq. 1 with the derivative of Bi-Real Net's piecewise polynomial.

    forward:   sign(x) = +1 if x > 0 else -1
    gradient:  d/dx = 2 - 2|x| if |x| <= 1 else 0
    paper:     Liu et al. 2018, "Bi-Real Net", https://arxiv.org/abs/1808.00278
    """
    return _with_slope(x, torch.clamp(2 - 2 * x.detach().abs(), min=0))


def tanh_sign(x: Tensor, progress: Progress = 0.0) -> Tensor:
    """Eq. 1 with IR-Net's tanh, annealed from nearly linear to nearly a step as training goes on.

    forward:   sign(x) = +1 if x > 0 else -1
    gradient:  d/dx = k * t * (1 - tanh(t x)^2),  t = 0.1 * 100^progress,  k = max(1/t, 1)
    paper:     Qin et al. 2020, "Forward and Backward Information Retention ... Binary Neural Networks",
               https://arxiv.org/abs/1909.10788

    `progress` is the finished fraction of training, 0 to 1; as a tensor it may change without recompilation.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    fraction = torch.as_tensor(progress, dtype=dtype, device=x.device)
    sharpness = TANH_SHARPNESS_START * (TANH_SHARPNESS_END / TANH_SHARPNESS_START) ** fraction
    height = torch.clamp(1 / sharpness, min=1.0)
    tanh = torch.tanh(sharpness * x.detach().to(dtype))
    return _with_slope(x, (height * sharpness * (1 - tanh * tanh)).to(x.dtype))


SURROGATES: dict[str, Surrogate] = {
    "ste": sign,
    "polynomial": polynomial_sign,
    "tanh": tanh_sign,
}


def _with_slope(x: Tensor, slope: Tensor) -> Tensor:
    """sign(x) with derivative `slope`. Where that is 0 the carrier is 0 too: 0 * inf never appears."""
    if torch.compiler.is_compiling():
        carrier = torch.where(slope > 0, x * slope, 0.0)
        return hard_sign(x) + (carrier - carrier.detach())
    return _apply_sign(_SlopedSign, x, slope)


def _apply_sign(function: type[torch.autograd.Function], *arguments: Tensor) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _ClippedSign(torch.autograd.Function):
    """Eager `sign`: backward is one call of hardtanh's; its open interval (-1-eps, 1+eps) is |x| <= 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return hard_sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        bound = 1 + torch.finfo(x.dtype).eps
        grad: Tensor = torch.ops.aten.hardtanh_backward(grads[0], x, -bound, bound)
        return grad


class _SlopedSign(torch.autograd.Function):
    """Eager sign with a slope that was computed without gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return hard_sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None
