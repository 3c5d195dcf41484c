"""Learned per-channel shifts: ReActNet's sign threshold and activation.

ReActNet (Liu et al. 2020, https://arxiv.org/abs/2003.03488) lets the network move the point where a value
changes its sign, and the point where the activation bends. Both are one learned constant per channel,
which packing folds away.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChannelShift(nn.Module):
    """y = x + shift, one learned shift per channel, started at 0. Before a sign it is ReActNet's RSign.

    `spatial`: whether the input has rows and columns after its channels, (N,C,H,W), or not, (N,C).

    Example:
        >>> from xnorpp.nn import ChannelShift
        >>> tuple(ChannelShift(64).shift.shape)
        (64, 1, 1)
    """

    def __init__(self, channels: int, *, spatial: bool = True) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"`channels` (={channels}) must be at least 1")
        self.channels = channels
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1) if spatial else torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift.to(x.dtype)

    def extra_repr(self) -> str:
        return str(self.channels)


class RPReLU(nn.Sequential):
    """ReActNet's activation: y = prelu(x + before) + after, with learned shifts and one learned slope per
    channel.

    Example:
        >>> import torch
        >>> from xnorpp.nn import RPReLU
        >>> RPReLU(1)(torch.tensor([[[[-4.0, 4.0]]]])).tolist()
        [[[[-1.0, 4.0]]]]
    """

    def __init__(self, channels: int, *, spatial: bool = True) -> None:
        super().__init__(
            ChannelShift(channels, spatial=spatial),
            nn.PReLU(channels),
            ChannelShift(channels, spatial=spatial),
        )
