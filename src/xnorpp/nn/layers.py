"""BinaryConv2d and BinaryLinear: everything their real twins take, and how they are binarized.

The five methods, for a layer with latent weight W, input I and bias b (`*` is the convolution or matrix
product):

    real            I * W + b                                          exactly torch's own layer
    binaryconnect   I * sign(W) + b                                    Courbariaux et al. 2015
    bnn             sign(I) * sign(W) + b                              Courbariaux et al. 2016
    xnor            (sign(I) * sign(W)) . alpha [. K] + b              Rastegari et al. 2016, Eq. 2
    xnor++          (sign(I) * sign(W)) . Gamma + b                    Bulat and Tzimiropoulos 2019, Eq. 3

A layer takes the sign of its own input. `binarize_weights = False` (set by `set_stage`) is the first of two
training stages: the input is binary, and W / mean|W| stands for sign(W), which has the same size, so that the
scale keeps its meaning when the second stage begins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn.functional import Pads, binary_conv2d, binary_linear
from xnorpp.nn.quantizers import SURROGATES, hard_sign
from xnorpp.nn.scales import (
    ANALYTIC_INPUT_MEAN,
    ANALYTIC_SCALES,
    SCALE_INITS,
    SCALES,
    AnalyticScale,
    LearnedScale,
    at_least_float32,
    exact_mean,
    filter_means,
    input_scale,
)
from xnorpp.runtime.choices import check_choice

METHODS = ("real", "binaryconnect", "bnn", "xnor", "xnor++")
PADDING_VALUES = (0, -1, 1)

# Which scales a method knows, its default first. A linear layer has no rows and columns: only `channel`.
METHOD_SCALES: dict[str, tuple[str, ...]] = {
    "real": (),
    "binaryconnect": (),
    "bnn": (),
    "xnor": ANALYTIC_SCALES,
    "xnor++": ("channel_height_width", "channel", "dense", "channel_spatial"),
}
LINEAR_METHOD_SCALES: dict[str, tuple[str, ...]] = {**METHOD_SCALES, "xnor++": ("channel",)}

IntOrPair = int | tuple[int, int]


def resolve_scale(method: str, scale: str | None, *, linear: bool = False) -> str | None:
    """The name of the scale a layer of this method uses; `None` means the method's default."""
    check_choice("method", method, METHODS)
    allowed = (LINEAR_METHOD_SCALES if linear else METHOD_SCALES)[method]
    if scale is None:
        return allowed[0] if allowed else None
    if not allowed:
        raise ValueError(f"`scale` (={scale!r}) must be None for method {method!r}, which has no scale")
    check_choice("scale", scale, allowed)
    return scale


class BinaryLayer(nn.Module):
    """What BinaryConv2d and BinaryLinear share: the method's settings, the latent weight and the scale."""

    weight: Tensor
    progress: Tensor

    def _set_up_method(
        self,
        *,
        method: str,
        scale_name: str | None,
        scale: LearnedScale | AnalyticScale | None,
        scale_init: str,
        surrogate: str,
        weight_surrogate: str,
        clip_weights: bool,
        center_weights: bool,
    ) -> None:
        check_choice("scale_init", scale_init, SCALE_INITS)
        check_choice("surrogate", surrogate, SURROGATES)
        check_choice("weight_surrogate", weight_surrogate, SURROGATES)
        self.method = method
        self.scale_name = scale_name
        self.scale_init = scale_init
        self.surrogate = surrogate
        self.weight_surrogate = weight_surrogate
        self.clip_weights = clip_weights
        self.center_weights = center_weights
        self.binarize_weights = True
        self.scale = scale.to(self.weight.device, self.weight.dtype) if scale is not None else None
        # A tensor, so that annealing does not recompile; not saved, because the training loop sets it.
        self.register_buffer("progress", torch.zeros((), device=self.weight.device), persistent=False)
        self.reset_scale()

    @property
    def binarizes_input(self) -> bool:
        return self.method in ("bnn", "xnor", "xnor++")

    @torch.no_grad()
    def reset_scale(self) -> None:
        """Starts the learned scale again from `scale_init` and the weights as they are now.

        Call it whenever the weights were set anew; `analytic` is alpha = 0.8 * mean|W| a filter and ones
        elsewhere.
        """
        if isinstance(self.scale, LearnedScale):
            alpha = (
                ANALYTIC_INPUT_MEAN * filter_means(self.latent_weight())
                if self.scale_init == "analytic"
                else None
            )
            self.scale.start_(alpha)

    def latent_weight(self) -> Tensor:
        """The real weight whose sign is taken: W, or W minus its filter's mean with `center_weights`."""
        if self.center_weights and self.method != "real":
            return self.weight - self.weight.mean(tuple(range(1, self.weight.dim())), keepdim=True)
        return self.weight

    @torch.no_grad()
    def binary_weight(self) -> Tensor:
        """The +1/-1 tensor that packing stores."""
        if self.method == "real":
            raise ValueError("a layer of method 'real' has no binary weight")
        return hard_sign(self.latent_weight())

    def scale_factors(self) -> tuple[Tensor, ...]:
        """The constant factors of the scale, whichever kind it is; () without one. K is not among them."""
        if isinstance(self.scale, LearnedScale):
            return self.scale.factors()
        if isinstance(self.scale, AnalyticScale):
            return self.scale.factors(self.latent_weight())
        return ()

    def _weight_and_surrogate(self) -> tuple[Tensor, str | None]:
        latent = self.latent_weight()
        if self.binarize_weights:
            return latent, self.weight_surrogate
        means = filter_means(latent).reshape(-1, *(1,) * (latent.dim() - 1))
        return latent / means.clamp_min(torch.finfo(means.dtype).tiny).to(latent.dtype), None

    def _means_are_exact(self, x: Tensor) -> bool:
        """Whether K's means are those of the packed network: in evaluation, where there is float64."""
        return not self.training and x.device.type != "mps"

    def _method_repr(self) -> str:
        text = f", method={self.method!r}"
        if self.scale_name is not None:
            text += f", scale={self.scale_name!r}"
        if self.binarizes_input and self.surrogate != "ste":
            text += f", surrogate={self.surrogate!r}"
        return text


class BinaryConv2d(nn.Conv2d, BinaryLayer):
    """`nn.Conv2d` with a binarization method. The bias is added after the scale.

    `padding_value` fills the border after the sign: 0, -1 or +1. `output_size` is (height, width) of the
    output, needed by the scales that span it (`dense`, `channel_spatial`, `channel_height_width`).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrPair,
        stride: IntOrPair = 1,
        padding: IntOrPair | str = 0,
        dilation: IntOrPair = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        *,
        padding_value: int = 0,
        method: str = "xnor++",
        scale: str | None = None,
        scale_init: str = "analytic",
        output_size: tuple[int, int] | None = None,
        surrogate: str = "ste",
        weight_surrogate: str = "ste",
        clip_weights: bool = False,
        center_weights: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                f"`padding_mode` (={padding_mode!r}) must be 'zeros'; the border of a binary convolution is "
                "chosen by `padding_value`: 0, -1 or 1"
            )
        check_choice("padding_value", padding_value, PADDING_VALUES)
        scale_name = resolve_scale(method, scale)
        if padding_value != 0 and method in ("real", "binaryconnect"):
            raise ValueError(
                f"`padding_value` (={padding_value}) must be 0 for method {method!r}, whose input stays real"
            )
        if groups > 0 and in_channels % groups:
            raise ValueError(f"`in_channels` (={in_channels}) must be divisible by `groups` (={groups})")
        if groups > 0 and out_channels % groups:
            raise ValueError(f"`out_channels` (={out_channels}) must be divisible by `groups` (={groups})")
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            device=device,
            dtype=dtype,
        )
        self.padding_value = padding_value
        self._set_up_method(
            method=method,
            scale_name=scale_name,
            scale=_make_scale(scale_name, out_channels, output_size),
            scale_init=scale_init,
            surrogate=surrogate,
            weight_surrogate=weight_surrogate,
            clip_weights=clip_weights,
            center_weights=center_weights,
        )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_init"):  # torch's constructor calls this before the scale exists
            self.reset_scale()

    @property
    def pads(self) -> Pads:
        """The padding as (left, right, top, bottom), whichever way it was given; 'same' may be uneven."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        return left, right, top, bottom

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The output size the scale is bound to, or None."""
        return self.scale.output_size if isinstance(self.scale, LearnedScale) else None

    def output_size_for(self, input_size: tuple[int, int]) -> tuple[int, int]:
        """The (height, width) of the output for an input of this (height, width)."""
        left, right, top, bottom = self.pads
        height, width = (
            (size + pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, kernel, stride, dilation in zip(
                input_size,
                (top + bottom, left + right),
                self.kernel_size,
                self.stride,
                self.dilation,
                strict=True,
            )
        )
        return height, width

    def forward(self, x: Tensor) -> Tensor:
        if self.method == "real":
            return super().forward(x)
        if isinstance(self.scale, LearnedScale):
            self.scale.check_size(self.output_size_for((x.shape[-2], x.shape[-1])))
        weight, weight_surrogate = self._weight_and_surrogate()
        return binary_conv2d(
            x,
            weight,
            self._scales(x),
            self.bias,
            stride=(self.stride[0], self.stride[1]),
            pads=self.pads,
            dilation=(self.dilation[0], self.dilation[1]),
            groups=self.groups,
            padding_value=self.padding_value,
            surrogate=self.surrogate if self.binarizes_input else None,
            weight_surrogate=weight_surrogate,
            progress=self.progress,
        )

    def _scales(self, x: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.scale, LearnedScale):
            # One product while training; in evaluation the order, and so the rounding, of the packed network.
            return (self.scale.tensor(),) if self.training else self.scale.in_turn()
        if isinstance(self.scale, AnalyticScale) and self.scale.uses_input:
            kernel, stride, dilation = (
                (pair[0], pair[1]) for pair in (self.kernel_size, self.stride, self.dilation)
            )
            k = input_scale(
                x, kernel, stride, self.pads, dilation, self.groups, exact=self._means_are_exact(x)
            )
            if self.groups > 1:
                k = k.repeat_interleave(self.out_channels // self.groups, dim=-3)
            return (k, *self.scale_factors())
        return self.scale_factors()

    def extra_repr(self) -> str:
        padding = f", padding_value={self.padding_value}" if any(self.pads) else ""
        real: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return real + padding + self._method_repr()


class BinaryLinear(nn.Linear, BinaryLayer):
    """`nn.Linear` with a binarization method. The bias is added after the scale.

    A linear output has no rows and columns, so the learned scale is `channel`; XNOR-Net's K is one number a
    sample.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        method: str = "xnor++",
        scale: str | None = None,
        scale_init: str = "analytic",
        surrogate: str = "ste",
        weight_surrogate: str = "ste",
        clip_weights: bool = False,
        center_weights: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        scale_name = resolve_scale(method, scale, linear=True)
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._set_up_method(
            method=method,
            scale_name=scale_name,
            scale=_make_scale(scale_name, out_features, None),
            scale_init=scale_init,
            surrogate=surrogate,
            weight_surrogate=weight_surrogate,
            clip_weights=clip_weights,
            center_weights=center_weights,
        )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_init"):  # torch's constructor calls this before the scale exists
            self.reset_scale()

    def forward(self, x: Tensor) -> Tensor:
        if self.method == "real":
            return super().forward(x)
        weight, weight_surrogate = self._weight_and_surrogate()
        scales = tuple(factor.flatten() for factor in self.scale_factors())
        if isinstance(self.scale, AnalyticScale) and self.scale.uses_input:
            sizes = at_least_float32(x).abs()
            mean = exact_mean(sizes, -1) if self._means_are_exact(x) else sizes.mean(-1)
            scales = (*scales, mean.unsqueeze(-1))
        return binary_linear(
            x,
            weight,
            scales,
            self.bias,
            surrogate=self.surrogate if self.binarizes_input else None,
            weight_surrogate=weight_surrogate,
            progress=self.progress,
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + self._method_repr()


def _make_scale(
    name: str | None, out_channels: int, output_size: tuple[int, int] | None
) -> LearnedScale | AnalyticScale | None:
    if name is None:
        return None
    if name in ANALYTIC_SCALES:
        return AnalyticScale(name)
    return SCALES[name](out_channels, output_size)
