"""Batch norm, activation and max pooling behind a real stem as one autograd node on CUDA.
 The stem's output is the largest tensor of a ResNet. Kept for the backward pass are that tensor as the
convolution wrote it and one byte an output, which says where the maximum was; the normalised and the
activated tensor are never written, and PyTorch's 8-byte indices are not needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn.fused import ACTIVATIONS, GRADIENT_DTYPE, ops, wanted, why_not_norm, why_not_tensor


def use_fused_pool(x: Any, norm: nn.Module, activation: nn.Module, pool: nn.Module) -> bool:
    """Whether `norm_pool` should be called for this input, by the backend that was set."""
    return wanted(x, lambda: why_not_tensor(x) or why_not_norm(norm) or _why_not_pool(activation, pool))


def _why_not_pool(activation: nn.Module, pool: nn.Module) -> str | None:
    if type(activation) not in ACTIVATIONS:
        return f"the activation is {type(activation).__name__}, not ReLU, PReLU or none"
    if not isinstance(pool, nn.MaxPool2d) or pool.ceil_mode or pool.return_indices or pool.dilation != 1:
        return "the pooling is not a plain nn.MaxPool2d"
    kernel = pool.kernel_size
    if (
        not isinstance(kernel, int)
        or kernel > 15
        or not isinstance(pool.stride, int)
        or pool.padding not in range(8)
    ):
        return "the pooling window is not a square of at most 15 pixels"
    return None


def stem_end(x: Tensor, norm: nn.Module, activation: nn.Module, pool: nn.Module) -> Tensor:
    """pool(activation(norm(x))), fused where that is possible and wanted; what the models call."""
    if use_fused_pool(x, norm, activation, pool):
        x = norm_pool(x, norm, activation, pool)
    else:
        x = pool(activation(norm(x)))
    return x


@torch.compiler.disable  # type: ignore[untyped-decorator]
def norm_pool(x: Tensor, norm: Any, activation: nn.Module, pool: Any) -> Tensor:
    """`stem_end` on the fused path."""
    slope = activation.weight if isinstance(activation, nn.PReLU) else None
    window = (pool.kernel_size, pool.stride, pool.padding)
    result: Tensor = _NormPool.apply(  # type: ignore[no-untyped-call]
        norm, ACTIVATIONS[type(activation)], window, x, norm.weight, norm.bias, slope
    )
    return result


class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        norm: nn.BatchNorm2d,
        activation: int,
        window: tuple[int, int, int],
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        slope: Tensor | None,
    ) -> Tensor:
        x = ops().channels_last(x)
        mean, inverse_std = ops().batch_statistics(x, None, norm)
        pooled, taps = ops().norm_pool(
            x, activation, slope, mean, inverse_std, weight, bias, window, GRADIENT_DTYPE
        )
        ctx.save_for_backward(x, taps, mean, inverse_std, weight, bias, slope)
        ctx.activation, ctx.window = activation, window
        result: Tensor = pooled
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, taps, mean, inverse_std, weight, bias, slope = ctx.saved_tensors
        grad = ops().channels_last(grads[0].to(GRADIENT_DTYPE))
        found = ops().norm_pool_backward(
            grad, taps, x, ctx.activation, slope, mean, inverse_std, weight, bias, ctx.window
        )
        return None, None, None, *found
