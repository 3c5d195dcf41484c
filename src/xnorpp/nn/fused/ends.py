"""The real ends of a network in few passes on CUDA: stem convolution, stem end, head.

stem_conv    a 7x7 convolution with stride 2 on an image of few channels is, exactly, a 4x4 convolution with
             stride 1 on the image whose 2x2 squares became channels; tensor cores read 16 channels at once,
             so the second form wastes far less.
stem_end     batch norm, activation and 3x3 max pooling as one autograd node. The stem's output is the largest
             tensor of a ResNet. Saved are that tensor as the convolution wrote it, and for each output its
             winner and a byte with its position; the normalised and the activated tensor are never
             written.
head         batch norm, activation and the mean over all pixels as one node.
halve        2x2 average pooling: PyTorch's own took a tenth of a real ResNet-18's step on CIFAR-10.

Each has a `use_...` question. `stem` and `mean_head` ask them for whole ends of a network; where it is
answered with no, they call the layers one by one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.fused.dispatch import (
    ACTIVATIONS,
    GRADIENT_DTYPE,
    _module,
    get_backend,
    wanted,
    why_not_activation,
    why_not_hooks,
    why_not_kernels,
    why_not_norm,
    why_not_tensor,
)


def use_stem_conv(x: Any, conv: nn.Conv2d) -> bool:
    """Whether `stem_conv` should be called for this input; quietly no where it does not apply."""
    return (
        isinstance(x, Tensor)
        and type(conv) is nn.Conv2d
        and (conv.kernel_size, conv.stride, conv.padding, conv.dilation) == ((7, 7), (2, 2), (3, 3), (1, 1))
        and conv.in_channels <= 4
        and conv.groups == 1
        and conv.bias is None
        and conv.padding_mode == "zeros"
        and not x.requires_grad
        and x.shape[-2] % 2 == 0
        and x.shape[-1] % 2 == 0
        and not why_not_hooks(conv)
        and wanted(x, lambda: why_not_tensor(x))
    )


def use_stem_end(x: Any, norm: nn.Module, activation: nn.Module, pool: Any) -> bool:
    """Whether `stem_end` should be called for this input, by the backend that was set."""
    plain = isinstance(pool, nn.MaxPool2d) and not pool.ceil_mode and not pool.return_indices
    window = plain and (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (3, 2, 1, 1)
    return window and _use_norm(x, norm, activation, pool)


def use_head(x: Any, norm: nn.Module, activation: nn.Module, pool: nn.Module) -> bool:
    """Whether `head` should be called for this input, by the backend that was set."""
    plain = isinstance(pool, nn.AdaptiveAvgPool2d) and pool.output_size in (1, (1, 1))
    return plain and _use_norm(x, norm, activation, pool)


def use_halve(x: Any, pool: nn.AvgPool2d) -> bool:
    """Whether `halve` should be called for this input; also where gradients are off, as in a teacher."""
    return (
        isinstance(x, Tensor)
        and (pool.kernel_size, pool.stride, pool.padding) == (2, 2, 0)
        and x.dtype == GRADIENT_DTYPE
        and x.dim() == 4
        and x.shape[-2] % 2 == 0
        and x.shape[-1] % 2 == 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and get_backend() != "reference"
        and not torch.compiler.is_compiling()
        and not why_not_kernels(x)
    )


def _use_norm(x: Any, norm: nn.Module, activation: nn.Module, pool: nn.Module) -> bool:
    def why_not() -> str | None:
        return (
            why_not_tensor(x)
            or why_not_norm(norm)
            or why_not_activation(activation)
            or why_not_hooks(norm, activation, pool)
        )

    # Unlike a chain, plain layers here are no fault: a network may have another activation at its ends.
    return why_not_activation(activation) is None and wanted(x, why_not)


def stem(x: Tensor, conv: nn.Conv2d, norm: nn.Module, activation: nn.Module, pool: nn.Module) -> Tensor:
    """pool(activation(norm(conv(x)))), fused where possible and wanted."""
    x = stem_conv(x, conv) if use_stem_conv(x, conv) else conv(x)
    if use_stem_end(x, norm, activation, pool):
        return stem_end(x, norm, activation)
    result: Tensor = pool(activation(norm(x)))
    return result


def mean_head(
    x: Tensor, norm: nn.Module, activation: nn.Module, pool: nn.Module, flatten: nn.Module
) -> Tensor:
    """flatten(pool(activation(norm(x)))), fused where possible and wanted."""
    if use_head(x, norm, activation, pool):
        return head(x, norm, activation)
    result: Tensor = flatten(pool(activation(norm(x))))
    return result


def stem_conv(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """conv(x) for a 7x7 convolution with stride 2 and padding 3."""
    result: Tensor = _StemConv.apply(x, conv.weight)  # type: ignore[no-untyped-call]
    return result


def stem_end(x: Tensor, norm: nn.Module, activation: nn.Module) -> Tensor:
    """3x3 max pooling with stride 2 and padding 1 of activation(norm(x))."""
    made: list[Any] = []
    result: Tensor = _NormPool.apply(*_arguments(norm, activation), made, x)  # type: ignore[no-untyped-call]
    _module("chain").leave_moments_on(result, made[0])
    return result


def head(x: Tensor, norm: nn.Module, activation: nn.Module) -> Tensor:
    """The mean over all pixels of activation(norm(x)), (images, channels)."""
    moments = _module("chain").moments_left_on(x)
    result: Tensor = _NormMean.apply(  # type: ignore[no-untyped-call]
        *_arguments(norm, activation), moments, x
    )
    return result


def halve(x: Tensor) -> Tensor:
    """2x2 average pooling, rounded as PyTorch rounds it."""
    result: Tensor = _Halve.apply(x)  # type: ignore[no-untyped-call]
    return result


def _arguments(norm: Any, activation: nn.Module) -> tuple[Any, ...]:
    slope = activation.weight if isinstance(activation, nn.PReLU) else None
    return norm, ACTIVATIONS[type(activation)], norm.weight, norm.bias, slope


def squares_as_channels(weight: Tensor, depth: int) -> Tensor:
    """The (o,depth,4,4) weight that does to `space_to_depth(x)` what the (o,c,7,7) `weight` does to x.

    Position k of seven reaches pixel 2i + k - 3 = 2 (i + (k+1)//2 - 2) + (k+1)%2: tap (k+1)//2, square
    position (k+1)%2.
    """
    outputs, channels = weight.shape[:2]
    wide = F.pad(weight, (1, 0, 1, 0)).reshape(outputs, channels, 4, 2, 4, 2)
    squares = wide.permute(0, 3, 5, 1, 2, 4).reshape(outputs, 4 * channels, 4, 4)
    return F.pad(squares, (0, 0, 0, 0, 0, depth - 4 * channels))


def channels_as_squares(weight: Tensor, channels: int) -> Tensor:
    """The transpose of `squares_as_channels`, for gradients."""
    squares = weight[:, : 4 * channels].reshape(-1, 2, 2, channels, 4, 4)
    return squares.permute(0, 3, 4, 1, 5, 2).reshape(-1, channels, 8, 8)[:, :, 1:, 1:]


class _Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        pooled: Tensor = _module("end_ops").average_pool(x, x.dtype)[0]
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """A quarter to each of four pixels, in one pass."""
        images, channels, height, width = grad.shape
        shape = (images, height, 2, width, 2, channels)
        spread = torch.empty(shape, dtype=grad.dtype, device=grad.device)
        spread.copy_((grad * 0.25).permute(0, 2, 3, 1)[:, :, None, :, None])
        return spread.view(images, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


class _StemConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ops = _module("end_ops")
        with torch.autocast(x.device.type, enabled=False):
            squares: Tensor = ops.space_to_depth(x, GRADIENT_DTYPE)
            wide = squares_as_channels(weight.to(GRADIENT_DTYPE), ops.DEPTH)
            wide = wide.contiguous(memory_format=torch.channels_last)
            ctx.save_for_backward(squares, wide)
            ctx.weight = (weight.shape[1], weight.dtype)
            return F.conv2d(squares, wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        squares, wide = ctx.saved_tensors
        channels, dtype = ctx.weight
        with torch.autocast(squares.device.type, enabled=False):
            grad = grads[0].to(GRADIENT_DTYPE).contiguous(memory_format=torch.channels_last)
            _, grad_weight, _ = torch.ops.aten.convolution_backward(
                grad, squares, wide, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (False, True, False)
            )
            return None, channels_as_squares(grad_weight.to(dtype), channels)


class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        norm: nn.BatchNorm2d,
        activation: int,
        weight: Tensor,
        bias: Tensor,
        slope: Tensor | None,
        made: list[Any],
        x: Tensor,
    ) -> Tensor:
        ops, pool_ops = _module("ops"), _module("end_ops")
        x = ops.channels_last(x)
        mean, inverse_std, _ = ops.statistics(ops.moments(x, None), norm, None)
        pooled, peaks, taps, moments = pool_ops.norm_pool(
            x, activation, slope, (mean, inverse_std, weight, bias), GRADIENT_DTYPE
        )
        made.append(moments)
        ctx.save_for_backward(x, peaks, taps, slope, mean, inverse_std, weight, bias)
        ctx.activation = activation
        result: Tensor = pooled
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, peaks, taps, slope, *statistics = ctx.saved_tensors
        grad = grads[0].to(GRADIENT_DTYPE).contiguous(memory_format=torch.channels_last)
        out, *others = _module("end_ops").norm_pool_backward(
            grad, peaks, taps, x, ctx.activation, slope, tuple(statistics)
        )
        return None, None, *others, None, out


class _NormMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        norm: nn.BatchNorm2d,
        activation: int,
        weight: Tensor,
        bias: Tensor,
        slope: Tensor | None,
        moments: Any,
        x: Tensor,
    ) -> Tensor:
        ops = _module("ops")
        x = ops.channels_last(x)
        mean, inverse_std, _ = ops.statistics(moments or ops.moments(x, None), norm, None)
        statistics = (mean, inverse_std, weight, bias)
        ctx.save_for_backward(x, slope, *statistics)
        ctx.activation = activation
        result: Tensor = _module("end_ops").norm_mean(x, activation, slope, statistics, GRADIENT_DTYPE)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, slope, *statistics = ctx.saved_tensors
        out, *others = _module("end_ops").norm_mean_backward(
            grads[0].contiguous(), x, ctx.activation, slope, tuple(statistics)
        )
        return None, None, *others, None, out
