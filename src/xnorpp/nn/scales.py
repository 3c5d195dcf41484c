"""The scale factors that multiply the output of a binary layer: small modules in a registry.

Learned (XNOR-Net++, Eq. 3 to 7): one factor Gamma, built in four ways, named here by what each part spans:

    channel                Case 1   Gamma = alpha                 alpha (o,1,1)
    dense                  Case 2   Gamma = alpha                 alpha (o,h,w)
    channel_spatial        Case 3   Gamma = alpha * beta          alpha (o,1,1), beta (1,h,w)
    channel_height_width   Case 4   Gamma = alpha * beta * gamma  alpha (o,1,1), beta (1,h,1), gamma (1,1,w)

Analytic (XNOR-Net, Eq. 2): alpha = mean |W| of each filter, optionally times K, the box-filtered mean |I|.

A scale of your own (`register_scale`) states what its factors span; parameters, start, resizing and packing
follow from that. `kernel` names the fused CUDA kernel that computes the product; without one the layer takes
the unfused path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from xnorpp.nn.means import filter_means, multiplied
from xnorpp.runtime.registry import Registry

SCALE_INITS = ("analytic", "ones")
"""How a learned scale starts: from the weights, or at one.

Example:
    >>> from xnorpp.nn import SCALE_INITS, Binarization
    >>> [Binarization(scale_init=name).scale_init for name in SCALE_INITS]
    ['analytic', 'ones']
"""

ANALYTIC_INPUT_MEAN = 0.8  # E|I| = sqrt(2/pi) for a standard normal input, which a batch norm delivers

# The fused kernels by name, and the axes of the factors that each of them reads, in order.
KERNELS: dict[str, tuple[str, ...]] = {
    "channel": ("c",),
    "channel_map": ("c", "hw"),
    "channel_row_column": ("c", "h", "w"),
    "dense": ("chw",),
}

Size = tuple[int, int]
# What a factor may span -> the product that it belongs to in a packed network.
_PRODUCTS = {"": "c", "c": "c", "h": "h", "w": "w", "hw": "hw", "ch": "chw", "cw": "chw", "chw": "chw"}


class Scale(nn.Module):
    """What every scale has. Subclass `LearnedScale` or `AnalyticScale`, not this class.

    Attributes:
        spatial: Whether a factor spans rows or columns, so that the scale is bound to one output size.
        uses_input: Whether the layer multiplies by XNOR-Net's K as well.
        kernel: The fused CUDA kernel for this product, a key of `KERNELS`; None: not fused.

    Example:
        >>> from xnorpp.nn import ChannelHeightWidthScale, Scale
        >>> issubclass(ChannelHeightWidthScale, Scale), ChannelHeightWidthScale.spatial
        (True, True)
    """

    spatial: ClassVar[bool] = False
    uses_input: ClassVar[bool] = False
    kernel: ClassVar[str | None] = None
    output_size: Size | None = None

    @property
    def name(self) -> str:
        """The registered name, or `package.module:Class`."""
        return SCALES.name_of(type(self))


def _check_scale(kind: type[Scale]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, (LearnedScale, AnalyticScale))):
        raise TypeError(f"{kind!r} is not a subclass of xnorpp.nn.LearnedScale or xnorpp.nn.AnalyticScale")
    if kind.kernel is not None and kind.kernel not in KERNELS:
        raise TypeError(f"its kernel {kind.kernel!r} is none of {', '.join(KERNELS)}")


SCALES: Registry[type[Any]] = Registry("scale", _check_scale)
"""The scales by name; `register_scale` adds one.

Example:
    >>> from xnorpp.nn import SCALES
    >>> SCALES["channel"].__name__
    'ChannelScale'
"""

Kind = TypeVar("Kind", bound=type[Scale])


def register_scale(name: str) -> Callable[[Kind], Kind]:
    """A class decorator: the scale can be named in recipes, on the command line and in `Binarization`.

    Args:
        name: A new name without colon, space or parenthesis.

    Raises:
        ValueError: The name is taken or not allowed.
        TypeError: The class is not a scale, or its `kernel` does not exist.

    Example:
        >>> @register_scale("channel_width")
        ... class ChannelWidthScale(LearnedScale):
        ...     spans = {"alpha": "c", "gamma": "w"}
    """

    def decorate(kind: Kind) -> Kind:
        SCALES.add(name, kind)
        return kind

    return decorate


class LearnedScale(Scale):
    """A learned scale, the product of the factors that `spans` declares.

    Args:
        out_channels: Output channels of the layer.
        output_size: (height, width) of its output. A spatial scale without it infers the size at the layer's
            first forward pass, as torch's lazy modules do: run one batch before the optimiser or
            DistributedDataParallel is made.

    Attributes:
        spans: Name of each parameter -> the axes it spans, a subset of "chw" (channel, row, column) in this
            order; "" is one number. The first one that spans the channels takes the analytic start.

    A subclass that computes its factors from its parameters (their exponential, for example) overrides
    `factors`, in the order of `spans`, and `start_`.

    Example:
        >>> from xnorpp.nn import LearnedScale
        >>> class ChannelWidthScale(LearnedScale):
        ...     spans = {"alpha": "c", "gamma": "w"}
        >>> tuple(ChannelWidthScale(64, output_size=(7, 7)).tensor().shape)
        (64, 1, 7)
    """

    spans: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, axes in cls.spans.items():
            if axes not in _PRODUCTS:
                allowed = ", ".join(map(repr, _PRODUCTS))
                raise TypeError(f"`spans` of {cls.__name__} has {name!r}: {axes!r}; allowed are {allowed}")
        cls.spatial = any(axis in axes for axes in cls.spans.values() for axis in "hw")
        if cls.kernel is not None and KERNELS.get(cls.kernel) != tuple(cls.spans.values()):
            if "kernel" in vars(cls):
                raise TypeError(
                    f"`kernel` (={cls.kernel!r}) of {cls.__name__} must be one of {', '.join(KERNELS)} whose "
                    f"factors span the same as {dict(cls.spans)}; without `kernel` the unfused path is taken"
                )
            cls.kernel = None  # inherited from a scale with other factors

    def __init__(self, out_channels: int, output_size: Size | None = None) -> None:
        super().__init__()
        if out_channels < 1:
            raise ValueError(f"`out_channels` (={out_channels}) must be at least 1")
        if not self.spans:
            raise TypeError(f"{type(self).__name__} must declare `spans`, what its factors span")
        self.out_channels = out_channels
        self.output_size = None
        if self.spatial and output_size is not None:
            self.output_size = _checked(output_size)
        for name, axes in self.spans.items():
            if self.output_size is None and set(axes) & {"h", "w"}:
                self.register_parameter(name, UninitializedParameter())  # type: ignore[arg-type]
            else:
                self.register_parameter(name, nn.Parameter(torch.ones(self._shape(axes))))

    def _shape(self, axes: str) -> tuple[int, int, int]:
        height, width = self.output_size or (1, 1)
        return (
            self.out_channels if "c" in axes else 1,
            height if "h" in axes else 1,
            width if "w" in axes else 1,
        )

    @property
    def is_lazy(self) -> bool:
        """Whether the output size is still to be inferred."""
        return self.spatial and self.output_size is None

    @torch.no_grad()
    def materialize(self, output_size: Size) -> None:
        """Gives a lazy scale its size. The parameters stay the same objects; all factors become ones."""
        self.output_size = _checked(output_size)
        for name, axes in self.spans.items():
            parameter = getattr(self, name)
            if is_lazy(parameter):
                parameter.materialize(self._shape(axes))
                parameter.fill_(1.0)

    def factors(self) -> tuple[Tensor, ...]:
        """The parts of Gamma, each with three dimensions; their broadcast product is `tensor()`."""
        return tuple(getattr(self, name) for name in self.spans)

    def tensor(self) -> Tensor:
        """Gamma, (o,1,1) or (o,h,w)."""
        first, *others = self.factors()
        for factor in others:
            first = first * factor
        return first

    def _products(self) -> dict[str, Tensor]:
        """The factors multiplied up by what they span: "c", "h", "w", "hw" or "chw"."""
        products: dict[str, Tensor] = {}
        for axes, factor in zip(self.spans.values(), self.factors(), strict=True):
            key = _PRODUCTS[axes]
            products[key] = products[key] * factor if key in products else factor
        return products

    def packed(self) -> dict[str, Tensor]:
        """Gamma as the packed file stores it: `mult` (o,), and at most one of `row` (h,) with `col` (w,),
        `map` (h,w) and `full` (o,h,w). A packed network computes `(dot * spatial) * mult`.
        """
        products = self._products()
        parts: dict[str, Tensor] = {}
        if "c" in products:
            parts["mult"] = products["c"].flatten()
        if "chw" in products:
            parts["full"] = multiplied(products, "chw", "hw", "h", "w").expand(self._shape("chw"))
        elif "hw" in products:
            parts["map"] = multiplied(products, "hw", "h", "w")[0]
        elif "h" in products or "w" in products:
            like = next(iter(products.values()))
            height, width = self.output_size or (1, 1)
            parts["row"] = products["h"].flatten() if "h" in products else like.new_ones(height)
            parts["col"] = products["w"].flatten() if "w" in products else like.new_ones(width)
        return parts

    def in_turn(self) -> tuple[Tensor, ...]:
        """Gamma as a packed network applies it: the factor of the pixel, then the channel's."""
        if not self.spatial:
            return (self.tensor(),)
        products = self._products()
        pixel = multiplied(products, "chw", "hw", "h", "w")
        return (pixel, products["c"]) if "c" in products else (pixel,)

    @torch.no_grad()
    def start_(self, alpha: Tensor | None = None) -> None:
        """Sets the channel factor to `alpha` ((o,1,1) or (o,); None means ones), the others to ones.

        Without a factor that spans the channels the first one takes the mean of `alpha`.
        """
        names = list(self.spans)
        first = next((name for name in names if "c" in self.spans[name]), names[0])
        for name in names:
            parameter = getattr(self, name)
            if is_lazy(parameter):
                continue
            parameter.fill_(1.0)
            if name == first and alpha is not None:
                value = alpha.reshape(-1, 1, 1)
                value = value if parameter.shape[0] > 1 else value.mean(0, keepdim=True)
                parameter.copy_(value.expand_as(parameter))

    @torch.no_grad()
    def resize(self, output_size: Size) -> None:
        """Interpolates the spatial factors to another output size (bilinear, as an image would be).

        New parameters replace the old ones: call it before the optimiser is made, and before wrapping or
        compiling.
        """
        if not self.spatial or tuple(output_size) == self.output_size:
            return
        if self.is_lazy:
            self.materialize(output_size)
            return
        size = _checked(output_size)
        for name, axes in self.spans.items():
            factor = getattr(self, name)
            _, rows, columns = factor.shape
            target = (size[0] if "h" in axes else rows, size[1] if "w" in axes else columns)
            resized = F.interpolate(factor[None].float(), size=target, mode="bilinear", align_corners=False)
            setattr(self, name, nn.Parameter(resized[0].to(factor.dtype), requires_grad=factor.requires_grad))
        self.output_size = size

    def check_size(self, size: Size) -> None:
        """Raises a ValueError where a factor spans another number of rows or columns."""
        if self.output_size is None or tuple(size) == self.output_size:
            return
        spanned = "".join(self.spans.values())
        if any(axis in spanned and a != b for axis, a, b in zip("hw", size, self.output_size, strict=True)):
            raise ValueError(
                f"the learned scale {self.name!r} is bound to output size {self.output_size} but the "
                f"layer's output is {tuple(size)}; call `layer.scale.resize({tuple(size)})` or "
                "`xnorpp.convert.resize_scales(model, input_size)` to resize it on purpose"
            )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """As torch's lazy modules: a parameter without a size is stored as what it is."""
        lazy = {name: p for name, p in self._parameters.items() if p is not None and is_lazy(p)}
        for name in lazy:
            del self._parameters[name]
        try:
            super()._save_to_state_dict(destination, prefix, keep_vars)
        finally:
            self._parameters.update(lazy)
        for name, parameter in lazy.items():
            destination[prefix + name] = parameter

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """A lazy scale takes the size of the factors that it is given."""
        given = {name: state_dict.get(prefix + name) for name in self.spans}
        sized = {name: value for name, value in given.items() if value is not None and not is_lazy(value)}
        if self.is_lazy and all(name in sized and sized[name].dim() == 3 for name in self.spans):
            height = max(sized[name].shape[1] for name in self.spans)
            width = max(sized[name].shape[2] for name in self.spans)
            self.materialize((height, width))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.out_channels}" + (f", output_size={self.output_size}" if self.spatial else "")


def _checked(size: Size) -> Size:
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"`output_size` (={size}) must be two sizes of at least 1")
    return size[0], size[1]


class AnalyticScale(Scale):
    """A scale computed from the weights, and with `uses_input` from the input too, as XNOR-Net's.

    It owns no parameter: the layer passes its latent weight. A subclass may override `factors`; the result
    spans the channels, (o,1,1), or (o,) for a linear layer.

    Example:
        >>> import torch
        >>> from xnorpp.nn import AnalyticScale
        >>> AnalyticScale().tensor(torch.tensor([[[[2.0, -4.0]]]]))
        tensor([[[3.]]])
    """

    def factors(self, weight: Tensor) -> tuple[Tensor, ...]:
        """(alpha,), the factors that do not depend on the input; alpha = mean |W| of each filter."""
        return (filter_means(weight),)

    def tensor(self, weight: Tensor) -> Tensor:
        """alpha, for the scale without K."""
        if self.uses_input:
            raise ValueError(
                f"the scale {self.name!r} depends on the input through K, so it has no constant tensor"
            )
        first, *others = self.factors(weight)
        for factor in others:
            first = first * factor
        return first

    def packed(self, weight: Tensor) -> dict[str, Tensor]:
        """The constant part as the packed file stores it: `mult` (o,)."""
        first, *others = self.factors(weight)
        for factor in others:
            first = first * factor
        return {"mult": first.flatten()}


@register_scale("channel")
class ChannelScale(LearnedScale):
    """Case 1: one learned factor per output channel.

    Example:
        >>> from xnorpp.nn import ChannelScale
        >>> tuple(ChannelScale(64).tensor().shape)
        (64, 1, 1)
    """

    spans: ClassVar = {"alpha": "c"}
    kernel = "channel"


@register_scale("dense")
class DenseScale(LearnedScale):
    """Case 2: one learned factor per output value.

    Example:
        >>> from xnorpp.nn import DenseScale
        >>> tuple(DenseScale(64, output_size=(7, 7)).tensor().shape)
        (64, 7, 7)
    """

    spans: ClassVar = {"alpha": "chw"}
    kernel = "dense"


@register_scale("channel_spatial")
class ChannelSpatialScale(LearnedScale):
    """Case 3: one factor per channel times one factor per pixel.

    Example:
        >>> from xnorpp.nn import ChannelSpatialScale
        >>> [tuple(factor.shape) for factor in ChannelSpatialScale(64, output_size=(7, 7)).factors()]
        [(64, 1, 1), (1, 7, 7)]
    """

    spans: ClassVar = {"alpha": "c", "beta": "hw"}
    kernel = "channel_map"


@register_scale("channel_height_width")
class ChannelHeightWidthScale(LearnedScale):
    """Case 4: one factor per channel times one factor per row times one factor per column.

    Example:
        >>> from xnorpp.nn import ChannelHeightWidthScale
        >>> [tuple(factor.shape) for factor in ChannelHeightWidthScale(64, output_size=(7, 7)).factors()]
        [(64, 1, 1), (1, 7, 1), (1, 1, 7)]
    """

    spans: ClassVar = {"alpha": "c", "beta": "h", "gamma": "w"}
    kernel = "channel_row_column"


@register_scale("alpha")
class AlphaScale(AnalyticScale):
    """XNOR-Net's alpha: the mean |W| of each filter, differentiated like everything else, which gives the
    mean term of XNOR-Net's weight gradient in its exact form.

    paper: Rastegari et al. 2016, "XNOR-Net", https://arxiv.org/abs/1603.05279

    Example:
        >>> from xnorpp.nn import BinaryConv2d
        >>> layer = BinaryConv2d(16, 32, 3, config="xnor")
        >>> type(layer.scale).__name__, tuple(layer.scale.tensor(layer.weight).shape)
        ('AlphaScale', (32, 1, 1))
    """

    kernel = "channel"


@register_scale("alpha_k")
class AlphaKScale(AlphaScale):
    """XNOR-Net's alpha times K, the box-filtered mean |I| (Eq. 2).

    Example:
        >>> from xnorpp.nn import Binarization
        >>> Binarization.preset("xnor", scale="alpha_k").scale.uses_input
        True
    """

    uses_input = True
