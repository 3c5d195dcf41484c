"""BinaryConv1d and BinaryConv2d: torch's layers, and how they are binarized (`linear.py` has BinaryLinear).

For a layer with latent weight W, input I and bias b (`*` is the convolution or matrix product):

    inputs(I) * weights(W) . Gamma + b

with the quantizers and the scale Gamma of its `Binarization`. A layer quantizes its own input. A
`Binarization` that leaves both sides real makes exactly torch's own layer.

`binarize_weights = False` (set by `set_stage`) is the first of two training stages: the input is binary, and
W / mean|W| stands for sign(W), which has the same size, so that the scale keeps its meaning when the second
stage begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn.binarization import Binarization
from xnorpp.nn.functional import Pads, binary_conv2d, check_convolution
from xnorpp.nn.means import filter_means, input_scale
from xnorpp.nn.old_names import OldAttributes
from xnorpp.nn.quantizers import Identity, Quantizer
from xnorpp.nn.scales import ANALYTIC_INPUT_MEAN, AnalyticScale, LearnedScale, Scale
from xnorpp.nn.sets import InputSet, adaptive_conv2d, filter_sets, scaled

IntOrPair = int | tuple[int, int]
Config = Binarization | str | Mapping[str, Any] | None

_REAL = Identity()
VARIANCE_FLOOR = 1e-10  # of a filter whose weights are all alike


def _create_scale(
    kind: type[Scale] | None, out_channels: int, output_size: tuple[int, int] | None = None
) -> LearnedScale | AnalyticScale | None:
    """A scale for a layer with `out_channels` channels; None for a layer without one."""
    if kind is None:
        return None
    if issubclass(kind, LearnedScale):
        return kind(out_channels, output_size)
    assert issubclass(kind, AnalyticScale)
    return kind()


class BinaryLayer(OldAttributes, nn.Module):
    """What the binary layers share: the binarization, the latent weight and the scale.

    Example:
        >>> from xnorpp.nn import BinaryConv2d, BinaryLayer
        >>> layer = BinaryConv2d(16, 32, 3)
        >>> isinstance(layer, BinaryLayer), layer.method, layer.scale_name
        (True, 'xnor++', 'channel')
        >>> layer.binary_weight().unique()
        tensor([-1.,  1.])
    """

    weight: Tensor
    bias: Any
    progress: Tensor
    binarization: Binarization
    scale: LearnedScale | AnalyticScale | None
    sets: InputSet | None

    def _set_up(self, binarization: Binarization, output_size: tuple[int, int] | None = None) -> None:
        self.binarization = binarization
        self.binarize_weights = True
        adaptive = binarization.adaptive_sets and not binarization.is_real
        self.sets = InputSet().to(self.weight.device, self.weight.dtype) if adaptive else None
        self._make_scale(output_size)
        # A tensor, so that annealing does not recompile; not saved, because the training loop sets it.
        self.register_buffer("progress", torch.zeros((), device=self.weight.device), persistent=False)

    def _make_scale(self, output_size: tuple[int, int] | None) -> None:
        with self.weight.device:  # a parameter without a size cannot be moved to the meta device
            scale = _create_scale(self.binarization.scale, self._filters(self.weight).shape[0], output_size)
        self.scale = scale.to(self.weight.dtype) if scale is not None else None
        self.reset_scale()

    @property
    def method(self) -> str:
        """The paper's method that this layer follows; "real" for a plain layer."""
        return self.binarization.method

    @property
    def scale_name(self) -> str | None:
        return self.binarization.scale_name

    @property
    def binarizes_input(self) -> bool:
        return self.binarization.binarizes_input

    @property
    def weights_are_binary(self) -> bool:
        """Whether the weight is quantized now: not in the first of two stages."""
        return self.binarize_weights and self.binarization.binarizes_weights

    @property
    def padding_value(self) -> int:
        return self.binarization.padding_value

    @property
    def clip_weights(self) -> bool:
        return self.binarization.clip_weights

    @torch.no_grad()
    def reset_scale(self) -> None:
        """Starts the learned scale again from `scale_init` and the weights as they are now.

        Call it whenever the weights were replaced; `analytic` is alpha = 0.8 * mean|W| of each filter and
        ones elsewhere. With `adaptive_sets` alpha is divided by the filter's deviation, which multiplies too.
        """
        if isinstance(self.scale, LearnedScale) and not self.weight.is_meta:
            analytic = self.binarization.scale_init == "analytic"
            means = filter_means(self._filters(self._centred()))
            if self.sets is not None:
                means = means / self.weight_sets()[1].reshape(means.shape)
            self.scale.start_(ANALYTIC_INPUT_MEAN * means if analytic else None)

    def _filters(self, weight: Tensor) -> Tensor:
        """A weight of this layer with one filter for each output channel along the first axis."""
        return weight

    def _as_stored(self, filters: Tensor) -> Tensor:
        """The inverse of `_filters`."""
        return filters

    def _centred(self) -> Tensor:
        """W, or W minus its filter's mean where the binarization asks for it."""
        config = self.binarization
        centred = config.center_weights or config.standardize_weights or config.adaptive_sets
        if centred and not config.is_real:
            filters = self._filters(self.weight)
            return self._as_stored(filters - filters.mean(tuple(range(1, filters.dim())), keepdim=True))
        return self.weight

    def latent_weight(self) -> Tensor:
        """The real weight that is quantized: W, or W minus its filter's mean with `center_weights`, and
        divided by its filter's deviation / (2 sqrt 2) with `standardize_weights`, else by the deviation
        itself with `adaptive_sets`.

        The scale starts from the weight before that division, which brings all filters to one size.
        """
        latent, config = self._centred(), self.binarization
        if not (config.standardize_weights or config.adaptive_sets) or config.is_real:
            return latent
        filters = self._filters(latent)
        squares = filters.square().mean(tuple(range(1, filters.dim())), keepdim=True)
        size = 8.0 if config.standardize_weights else 1.0
        return self._as_stored(filters * (size / (squares + VARIANCE_FLOOR)).sqrt())

    def weight_sets(self) -> tuple[Tensor, Tensor]:
        """Middle and extent of each filter's set of two values, with `adaptive_sets`."""
        return filter_sets(self._filters(self.weight), VARIANCE_FLOOR)

    def set_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `adaptive_sets` make of the products and sums of signs; see `InputSet.factors`."""
        assert self.sets is not None
        weight, weights = self.working_weight()
        return self.sets.factors(weights(weight, self.progress), *self.weight_sets())

    @torch.no_grad()
    def binary_weight(self) -> Tensor:
        """The +1/-1 tensor that packing stores.

        Raises:
            ValueError: The layer's weight is not binary.
        """
        if not self.binarization.binarizes_weights:
            raise ValueError(f"a layer of method {self.method!r} has no binary weight")
        return self.binarization.weights(self.latent_weight(), self.progress)

    def scale_factors(self) -> tuple[Tensor, ...]:
        """The constant factors of the scale, whichever kind it is; () without one. K is not among them."""
        if isinstance(self.scale, LearnedScale):
            return self.scale.factors()
        if isinstance(self.scale, AnalyticScale):
            return self.scale.factors(self._filters(self.latent_weight()))
        return ()

    def packed_scale(self) -> dict[str, Tensor]:
        """The constant part of the scale as a packed file stores it; see `LearnedScale.packed`."""
        if isinstance(self.scale, LearnedScale):
            return self.scale.packed()
        if isinstance(self.scale, AnalyticScale):
            return self.scale.packed(self._filters(self.latent_weight()))
        return {}

    def working_weight(self) -> tuple[Tensor, Quantizer]:
        """The weight as it enters the product, and what quantizes it there: W / mean|W| and nothing in the
        first of two stages."""
        latent = self.latent_weight()
        if self.binarize_weights:
            return latent, self.binarization.weights
        filters = self._filters(latent)
        means = filter_means(filters).reshape(-1, *(1,) * (filters.dim() - 1))
        real = filters / means.clamp_min(torch.finfo(means.dtype).tiny).to(filters.dtype)
        return self._as_stored(real), _REAL

    def _means_are_exact(self, x: Tensor) -> bool:
        """Whether K's means are those of the packed network: in evaluation, where there is float64."""
        return not self.training and x.device.type != "mps"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """A real layer's `state_dict` has no scale: the scale then starts from the weights that were
        loaded. One without `adaptive_sets` leaves those as they are."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        scale = self.scale
        if self.sets is not None and prefix + "weight" in state_dict:
            for name, value in self.sets.state_dict(keep_vars=True).items():
                state_dict.setdefault(f"{prefix}sets.{name}", value)
        if not isinstance(scale, LearnedScale) or prefix + "weight" not in state_dict:
            return
        if not any(key.startswith(prefix + "scale.") for key in state_dict):
            self.reset_scale()
            for name, value in scale.state_dict(keep_vars=True).items():
                # Loaded into itself below; a lazy factor waits for the first forward pass as before.
                state_dict[f"{prefix}scale.{name}"] = value

    def _describe(self) -> str:
        config = self.binarization
        text = f", method={config.method!r}"
        if config.scale is not None:
            text += f", scale={config.scale_name!r}"
        for side, quantizer in (("inputs", config.inputs), ("weights", config.weights)):
            if str(quantizer) not in ("ste", "real"):
                text += f", {side}={str(quantizer)!r}"
        return text + (", adaptive_sets=True" if self.sets is not None else "")


class _BinaryConvolution(BinaryLayer):
    """What the two convolutions share. A 1-D one is computed as a 2-D one with images of one row."""

    in_channels: int
    out_channels: int
    groups: int

    def _window(self) -> tuple[tuple[int, int], tuple[int, int], Pads, tuple[int, int]]:
        """Kernel size, stride, pads (left, right, top, bottom) and dilation, in two dimensions."""
        raise NotImplementedError

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The (height, width) of the output that the scale is bound to, or None."""
        return self.scale.output_size if self.scale is not None else None

    def output_size_for(self, input_size: tuple[int, int]) -> tuple[int, int]:
        """The (height, width) of the output for an input of this (height, width)."""
        kernel, stride, (left, right, top, bottom), dilation = self._window()
        height = (input_size[0] + top + bottom - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
        width = (input_size[1] + left + right - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
        return height, width

    def fit_scale(self, input_size: tuple[int, int]) -> None:
        """Gives a lazy scale its size, for an input of this (height, width); checks that of any other.

        Raises:
            ValueError: The scale is bound to another size.
        """
        scale = self.scale
        if isinstance(scale, LearnedScale) and scale.spatial:
            size = self.output_size_for(input_size)
            if scale.output_size == size:
                return
            if scale.is_lazy:
                scale.materialize(size)
                self.reset_scale()
            scale.check_size(size)
            scale.output_size = size  # it may differ along an axis that no factor spans

    def _convolve(self, x: Tensor) -> Tensor:
        """The forward pass on (n, c, h, w) or (c, h, w)."""
        if self.scale is not None and self.scale.spatial:
            self.fit_scale((x.shape[-2], x.shape[-1]))
        if self.sets is not None:
            bias = None if self.bias is None else self.bias.reshape(-1, 1, 1)
            return scaled(self.product_of_sets(x), self._scales(x), bias)
        weight, geometry = self._product()
        return binary_conv2d(x, weight, self._scales(x), self.bias, **geometry)

    def product_of_sets(self, x: Tensor) -> Tensor:
        """With `adaptive_sets`, the output on (n, c, h, w) or (c, h, w) before scale and bias."""
        assert self.sets is not None
        weight, geometry = self._product()
        return adaptive_conv2d(x, weight, self.sets, self.weight_sets(), **geometry)

    def _product(self) -> tuple[Tensor, dict[str, Any]]:
        """The working weight of an image's convolution, and the arguments of `binary_conv2d`."""
        weight, weights = self.working_weight()
        _, stride, pads, dilation = self._window()
        config, image = self.binarization, weight.unsqueeze(-2) if weight.dim() == 3 else weight
        geometry = {"stride": stride, "pads": pads, "dilation": dilation, "groups": self.groups}
        chosen = {"padding_value": config.padding_value, "inputs": config.inputs, "weights": weights}
        return image, {**geometry, **chosen, "progress": self.progress}

    def _scales(self, x: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.scale, LearnedScale):
            # One product while training; in evaluation the order, and so the rounding, of the packed network.
            return (self.scale.tensor(),) if self.training else self.scale.in_turn()
        if self.scale is not None and self.scale.uses_input:
            kernel, stride, pads, dilation = self._window()
            k = input_scale(x, kernel, stride, pads, dilation, self.groups, exact=self._means_are_exact(x))
            if self.groups > 1:
                k = k.repeat_interleave(self.out_channels // self.groups, dim=-3)
            return (k, *self.scale_factors())
        return self.scale_factors()


class BinaryConv2d(nn.Conv2d, _BinaryConvolution):
    """`nn.Conv2d` with a binarization: the same arguments, the same defaults, any input size.

    Args:
        in_channels: As of `nn.Conv2d`, as all arguments up to `dtype`.
        out_channels: Output channels.
        kernel_size: One number or (height, width).
        stride: One number or (height, width).
        padding: One number, (height, width), "same" or "valid".
        dilation: One number or (height, width).
        groups: Blocks of connections.
        bias: Whether a bias is added, after the scale.
        padding_mode: "zeros"; the border is chosen by `padding_value`.
        device: Of the parameters.
        dtype: Of the parameters.
        config: A `Binarization`, the name of a preset, or None for the default: signs with straight-through
            gradients and one learned factor per channel.
        output_size: (height, width) of the output, for scales that span it. Without it they infer the size at
            the first forward pass; run one batch before the optimiser or DistributedDataParallel is made.
        **settings: Fields of the `Binarization` that differ from `config`, such as `scale="dense"`.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> BinaryConv2d(64, 128, 3, padding=1)(torch.randn(1, 64, 9, 9)).shape
        torch.Size([1, 128, 9, 9])
        >>> layer = BinaryConv2d(64, 128, 3, scale="channel_height_width", inputs="polynomial")
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
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        config: Config = None,
        output_size: tuple[int, int] | None = None,
        **settings: Any,
    ) -> None:
        binarization = Binarization.of(config, **settings)
        check_convolution(in_channels, out_channels, groups, padding_mode, binarization.is_real)
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*geometry, bias, padding_mode, device=device, dtype=dtype)  # type: ignore[arg-type]
        self._set_up(binarization, output_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "binarization"):  # torch's constructor calls this before the scale exists
            self.reset_scale()

    @property
    def pads(self) -> Pads:
        """The padding as (left, right, top, bottom), whichever way it was given; 'same' may be uneven."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        return left, right, top, bottom

    def _window(self) -> tuple[tuple[int, int], tuple[int, int], Pads, tuple[int, int]]:
        (kh, kw), (sh, sw), (dh, dw) = self.kernel_size, self.stride, self.dilation
        return (kh, kw), (sh, sw), self.pads, (dh, dw)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.binarization.is_real else self._convolve(x)

    def extra_repr(self) -> str:
        padding = f", padding_value={self.padding_value}" if any(self.pads) else ""
        real: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return real + padding + self._describe()


class BinaryConv1d(nn.Conv1d, _BinaryConvolution):
    """`nn.Conv1d` with a binarization; the arguments are those of `nn.Conv1d` and of `BinaryConv2d`.

    A sequence is treated as an image of one row: a scale that spans columns spans the sequence, and
    `output_size` is (1, length).

    Example:
        >>> BinaryConv1d(32, 64, 5, padding=2)(torch.randn(1, 32, 50)).shape
        torch.Size([1, 64, 50])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] | str = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        config: Config = None,
        output_size: tuple[int, int] | None = None,
        **settings: Any,
    ) -> None:
        binarization = Binarization.of(config, **settings)
        check_convolution(in_channels, out_channels, groups, padding_mode, binarization.is_real)
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*geometry, bias, padding_mode, device=device, dtype=dtype)  # type: ignore[arg-type]
        self._set_up(binarization, output_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "binarization"):
            self.reset_scale()

    @property
    def pads(self) -> Pads:
        """The padding as (left, right, 0, 0)."""
        left, right = self._reversed_padding_repeated_twice
        return left, right, 0, 0

    def _window(self) -> tuple[tuple[int, int], tuple[int, int], Pads, tuple[int, int]]:
        return (1, self.kernel_size[0]), (1, self.stride[0]), self.pads, (1, self.dilation[0])

    def forward(self, x: Tensor) -> Tensor:
        if self.binarization.is_real:
            return super().forward(x)
        return self._convolve(x.unsqueeze(-2)).squeeze(-2)

    def extra_repr(self) -> str:
        padding = f", padding_value={self.padding_value}" if any(self.pads) else ""
        real: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return real + padding + self._describe()
