"""BinaryConvTranspose2d: torch's transposed convolution, and how it is binarized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.binarization import Binarization
from xnorpp.nn.functional import Pads
from xnorpp.nn.layers import Config, IntOrPair, _BinaryConvolution


class BinaryConvTranspose2d(nn.ConvTranspose2d, _BinaryConvolution):
    """`nn.ConvTranspose2d` with a binarization: the same arguments, the same defaults, any input size.

    A transposed convolution spreads each input pixel over the output, so there is no border of the input to
    fill and `padding_value` has no meaning; XNOR-Net's K is not defined for it either.

    Args:
        in_channels: As of `nn.ConvTranspose2d`, as all arguments up to `dtype`.
        out_channels: Output channels.
        kernel_size: One number or (height, width).
        stride: One number or (height, width).
        padding: One number or (height, width): how much of the output's border is cut off.
        output_padding: One number or (height, width): rows and columns added at the end.
        groups: Blocks of connections.
        bias: Whether a bias is added, after the scale.
        dilation: One number or (height, width).
        padding_mode: "zeros".
        device: Of the parameters.
        dtype: Of the parameters.
        config: A `Binarization`, the name of a preset, or None for the default.
        output_size: (height, width) of the output, for scales that span it.
        **settings: Fields of the `Binarization` that differ from `config`.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> BinaryConvTranspose2d(64, 32, 2, stride=2)(torch.randn(1, 64, 7, 9)).shape
        torch.Size([1, 32, 14, 18])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrPair,
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        output_padding: IntOrPair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: IntOrPair = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        config: Config = None,
        output_size: tuple[int, int] | None = None,
        **settings: Any,
    ) -> None:
        binarization = Binarization.of(config, **settings)
        if binarization.scale is not None and binarization.scale.uses_input:
            raise ValueError(
                f"`scale` (={binarization.scale_name!r}) must be one without XNOR-Net's K, which is not "
                "defined for a transposed convolution; 'alpha' and 'channel' are such"
            )
        if binarization.adaptive_sets and not binarization.is_real:
            raise ValueError(
                "`adaptive_sets` (=True) must be False for a transposed convolution, whose outputs have "
                "different numbers of taps"
            )
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias)
        rest: Any = (dilation, padding_mode)
        super().__init__(*shape, *rest, device, dtype)  # type: ignore[call-arg]
        self._set_up(binarization, output_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "binarization"):
            self.reset_scale()

    def _filters(self, weight: Tensor) -> Tensor:
        """(in, out/groups, kh, kw) as (out, in/groups, kh, kw)."""
        groups, (_, each, kh, kw) = self.groups, weight.shape
        blocks = weight.reshape(groups, -1, each, kh, kw).transpose(1, 2)
        return blocks.reshape(groups * each, -1, kh, kw)

    def _as_stored(self, filters: Tensor) -> Tensor:
        """The inverse of `_filters`."""
        groups, (_, fan, kh, kw) = self.groups, filters.shape
        blocks = filters.reshape(groups, -1, fan, kh, kw).transpose(1, 2)
        return blocks.reshape(groups * fan, -1, kh, kw)

    @property
    def pads(self) -> Pads:
        """No border of the input is filled."""
        return 0, 0, 0, 0

    def output_size_for(self, input_size: tuple[int, int]) -> tuple[int, int]:
        """The (height, width) of the output for an input of this (height, width)."""
        padding: Any = self.padding
        sizes = [
            (size - 1) * self.stride[i]
            - 2 * padding[i]
            + self.dilation[i] * (self.kernel_size[i] - 1)
            + self.output_padding[i]
            + 1
            for i, size in enumerate(input_size)
        ]
        return sizes[0], sizes[1]

    def spread(self, x: Tensor, weight: Tensor) -> Tensor:
        """The transposed convolution of this layer's geometry, without scale and bias."""
        geometry: Any = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return F.conv_transpose2d(x, weight, None, *geometry)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        if self.binarization.is_real:
            return super().forward(x, output_size)  # type: ignore[arg-type]
        if output_size is not None:
            raise ValueError(
                f"`output_size` (={tuple(output_size)}) must be left out in a binary layer; `output_padding` "
                "chooses among the sizes"
            )
        if self.scale is not None and self.scale.spatial:
            self.fit_scale((x.shape[-2], x.shape[-1]))
        weight, weights = self.working_weight()
        y = self.spread(self.binarization.inputs(x, self.progress), weights(weight, self.progress))
        for scale in self._scales(x):
            y = y * scale.to(y.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype).reshape(-1, 1, 1)

    def extra_repr(self) -> str:
        real: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return real + self._describe()
