"""The binary convolution and linear map as functions of their tensors.

This is the one place where the layers' arithmetic happens, and so the place to dispatch to a faster kernel: a
fused implementation gets everything it needs (the real input, the latent weight, the factors of the scale,
the geometry) and must return what the plain lines below return.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from xnorpp.nn.quantizers import SURROGATES, Progress

Pads = tuple[int, int, int, int]


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
    surrogate: str | None = "ste",
    weight_surrogate: str | None = "ste",
    progress: Progress = 0.0,
) -> Tensor:
    """(sign(x) * sign(weight)) . scale + bias, with * the convolution.

    `surrogate` and `weight_surrogate` name the gradient of each sign; None leaves that side real. `pads` is
    (left, right, top, bottom); the border is filled with `padding_value` after the sign. Each of `scales`
    broadcasts against the output; it is cast to the output's dtype, so that under autocast the result stays
    in half precision.
    """
    if surrogate is not None:
        x = SURROGATES[surrogate](x, progress)
    if weight_surrogate is not None:
        weight = SURROGATES[weight_surrogate](weight, progress)
    left, right, top, bottom = pads
    if padding_value == 0 and left == right and top == bottom:
        padding = (top, left)
    else:
        x = F.pad(x, pads, value=float(padding_value))
        padding = (0, 0)
    y = F.conv2d(x, weight, None, stride, padding, dilation, groups)
    for scale in scales:
        y = y * scale.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, 1, 1)


def binary_linear(
    x: Tensor,
    weight: Tensor,
    scales: tuple[Tensor, ...] = (),
    bias: Tensor | None = None,
    *,
    surrogate: str | None = "ste",
    weight_surrogate: str | None = "ste",
    progress: Progress = 0.0,
) -> Tensor:
    """(sign(x) sign(weight)^T) . scale + bias; the arguments are those of `binary_conv2d`."""
    if surrogate is not None:
        x = SURROGATES[surrogate](x, progress)
    if weight_surrogate is not None:
        weight = SURROGATES[weight_surrogate](weight, progress)
    y = F.linear(x, weight)
    for scale in scales:
        y = y * scale.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype)
