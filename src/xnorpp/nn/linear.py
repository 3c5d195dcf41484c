"""BinaryLinear: torch's linear layer, and how it is binarized; `layers.py` has the convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn.binarization import Binarization
from xnorpp.nn.functional import binary_linear
from xnorpp.nn.layers import BinaryLayer, Config
from xnorpp.nn.means import at_least_float32, exact_mean
from xnorpp.nn.sets import adaptive_linear, scaled


class BinaryLinear(nn.Linear, BinaryLayer):
    """`nn.Linear` with a binarization: the same arguments, the same defaults.

    A linear output has no rows and columns, so the scale must not be spatial; XNOR-Net's K is one number per
    input row, the mean of its |I|.

    Args:
        in_features: As of `nn.Linear`, as all arguments up to `dtype`.
        out_features: Outputs.
        bias: Whether a bias is added, after the scale.
        device: Of the parameters.
        dtype: Of the parameters.
        config: A `Binarization`, the name of a preset, or None for the default.
        **settings: Fields of the `Binarization` that differ from `config`.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> BinaryLinear(64, 10)(torch.randn(2, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        config: Config = None,
        **settings: Any,
    ) -> None:
        binarization = Binarization.of(config, **settings)
        if binarization.scale is not None and binarization.scale.spatial:
            raise ValueError(
                f"`scale` (={binarization.scale_name!r}) must be one of 'channel' or another scale without "
                "rows and columns, which the output of a linear layer does not have; `config.for_linear()` "
                "gives one"
            )
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._set_up(binarization)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "binarization"):
            self.reset_scale()

    def forward(self, x: Tensor) -> Tensor:
        config = self.binarization
        if config.is_real:
            return super().forward(x)
        scales = tuple(factor.flatten() for factor in self.scale_factors())
        if self.sets is not None:
            return scaled(self.product_of_sets(x), scales, self.bias)
        weight, weights = self.working_weight()
        if self.scale is not None and self.scale.uses_input:
            sizes = at_least_float32(x).abs()
            mean = exact_mean(sizes, -1) if self._means_are_exact(x) else sizes.mean(-1)
            scales = (*scales, mean.unsqueeze(-1))
        return binary_linear(
            x, weight, scales, self.bias, inputs=config.inputs, weights=weights, progress=self.progress
        )

    def product_of_sets(self, x: Tensor) -> Tensor:
        """With `adaptive_sets`, the output before scale and bias."""
        assert self.sets is not None
        weight, weights = self.working_weight()
        given: Any = {"inputs": self.binarization.inputs, "weights": weights, "progress": self.progress}
        return adaptive_linear(x, weight, self.sets, self.weight_sets(), **given)

    def extra_repr(self) -> str:
        return super().extra_repr() + self._describe()
