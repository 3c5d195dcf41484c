"""The binary convolution and linear map as functions of their tensors: the one place of the layers'
arithmetic.

What trains faster on CUDA replaces whole chains of layers instead (`xnorpp.nn.fused`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xnorpp.nn.quantizers import Progress, Quantizer, Sign
from xnorpp.runtime.choices import check_choice

Pads = tuple[int, int, int, int]

STE = Sign()


def binary_conv2d(
    x: Tensor,
    weight: Tensor,
    scales: tuple[Tensor, ...] = (),
    bias: Tensor | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    pads: Pads = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    padding_value: int = 0,
    inputs: Quantizer = STE,
    weights: Quantizer = STE,
    progress: Progress = 0.0,
) -> Tensor:
    """(inputs(x) * weights(weight)) . scale + bias, with * the convolution.

    Args:
        x: The real input, (n, c, h, w) or (c, h, w).
        weight: The latent weight, (o, c/groups, kh, kw).
        scales: Factors that broadcast against the output. Each is cast to the output's dtype, so that under
            autocast the result stays in half precision.
        bias: (o,), added after the scale.
        stride: Of the convolution.
        pads: (left, right, top, bottom).
        dilation: Of the convolution.
        groups: Of the convolution.
        padding_value: What fills the border, after quantization.
        inputs: The quantizer of the input; `Identity()` leaves it real.
        weights: The quantizer of the weight.
        progress: The finished fraction of training, for quantizers that anneal.

    Example:
        >>> import torch
        >>> from xnorpp.nn import binary_conv2d
        >>> x, weight = torch.full((1, 2, 3, 3), 0.1), torch.full((4, 2, 3, 3), 0.3)
        >>> binary_conv2d(x, weight, scales=(torch.tensor(0.5),)).flatten()
        tensor([9., 9., 9., 9.])
    """
    x = inputs(x, progress)
    weight = weights(weight, progress)
    left, right, top, bottom = pads
    if padding_value == 0 and left == right and top == bottom:
        padding = (top, left)
    else:
        x = F.pad(x, pads, value=float(padding_value))
        padding = (0, 0)
    if _in_the_weight(scales, weight):
        weight, scales = weight * scales[0].reshape(-1, 1, 1, 1), ()
    y = F.conv2d(x, weight, None, stride, padding, dilation, groups)
    for scale in scales:
        y = y * scale.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, 1, 1)


def _in_the_weight(scales: tuple[Tensor, ...], weight: Tensor) -> bool:
    """Whether one factor per channel multiplies the weight instead of the output: in compiled training under
    autocast, where the output is rounded to half precision in any case. The factor's gradient then is a sum
    over weights, not over activations."""
    return (
        torch.compiler.is_compiling()
        and torch.is_autocast_enabled(weight.device.type)
        and len(scales) == 1
        and tuple(scales[0].shape) == (weight.shape[0], 1, 1)
    )


def binary_linear(
    x: Tensor,
    weight: Tensor,
    scales: tuple[Tensor, ...] = (),
    bias: Tensor | None = None,
    *,
    inputs: Quantizer = STE,
    weights: Quantizer = STE,
    progress: Progress = 0.0,
) -> Tensor:
    """(inputs(x) weights(weight)^T) . scale + bias; the arguments are those of `binary_conv2d`.

    Example:
        >>> import torch
        >>> from xnorpp.nn import binary_linear
        >>> binary_linear(torch.tensor([[0.2, -3.0]]), torch.tensor([[0.1, 0.1], [0.1, -0.1]]))
        tensor([[0., 2.]])
    """
    y = F.linear(inputs(x, progress), weights(weight, progress))
    for scale in scales:
        y = y * scale.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype)


def check_convolution(
    in_channels: int, out_channels: int, groups: int, padding_mode: str, real: bool
) -> None:
    """Raises a ValueError for arguments of a convolution that do not fit together."""
    if padding_mode != "zeros" and not real:
        raise ValueError(
            f"`padding_mode` (={padding_mode!r}) must be 'zeros'; the border of a binary convolution is "
            "chosen by `padding_value`: 0, -1 or 1"
        )
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
        if value < 1:
            raise ValueError(f"`{name}` (={value}) must be at least 1")
    check_choice("padding_mode", padding_mode, ("zeros", "reflect", "replicate", "circular"))
    if in_channels % groups:
        raise ValueError(f"`in_channels` (={in_channels}) must be divisible by `groups` (={groups})")
    if out_channels % groups:
        raise ValueError(f"`out_channels` (={out_channels}) must be divisible by `groups` (={groups})")
