"""What scales are made of: the mean of a filter's weights, XNOR-Net's alpha; that of the input under the
filter's window, its K; and the product of learned factors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in its own dtype, half precision raised to float32: means are not taken in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def filter_means(weight: Tensor) -> Tensor:
    """mean |W| of each filter: (o, c/g, kh, kw) -> (o,1,1), and (o, i) -> (o,) for a linear layer."""
    means = at_least_float32(weight).abs().mean(tuple(range(1, weight.dim())))
    return means.reshape(-1, 1, 1) if weight.dim() > 2 else means


def input_scale(
    x: Tensor,
    kernel_size: Size,
    stride: Size,
    pads: tuple[int, int, int, int],
    dilation: Size,
    groups: int,
    *,
    exact: bool = False,
) -> Tensor:
    """K of Eq. 2: A = mean of |I| over the channels (of each group), averaged over the kernel's window.

    Outside of the image A is 0 and counts, so the divisor is always kh * kw. `pads` is (left, right, top,
    bottom). Gives (N, groups, h_out, w_out) in float32. With `exact` both means are summed in float64 and
    rounded once, as in a packed network.
    """
    channels, height, width = x.shape[-3:]
    sizes = at_least_float32(x).abs().reshape(*x.shape[:-3], groups, channels // groups, height, width)
    taps = kernel_size[0] * kernel_size[1]
    means = exact_mean(sizes, -3) if exact else sizes.mean(-3)
    wide = means.double() if exact else means
    box = wide.new_full((groups, 1, *kernel_size), 1.0 if exact else 1.0 / taps)
    total = F.conv2d(F.pad(wide, pads), box, None, stride, 0, dilation, groups)
    return (total / taps).to(means.dtype) if exact else total


def exact_mean(x: Tensor, dim: int) -> Tensor:
    """The mean, summed in float64 and rounded once: the same number in whatever order it is summed."""
    return (x.sum(dim, dtype=torch.float64) / x.shape[dim]).to(x.dtype)


def multiplied(products: dict[str, Tensor], *keys: str) -> Tensor:
    """The product of those that there are, in this order, which packing and evaluation must share."""
    result: Tensor | None = None
    for key in keys:
        if key in products:
            result = products[key] if result is None else result * products[key]
    assert result is not None
    return result
