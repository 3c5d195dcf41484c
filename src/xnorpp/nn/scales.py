"""The scale factors that multiply the output of a binary convolution.

Learned (XNOR-Net++, Eq. 3 to 7): one factor Gamma, built in four ways, called here by what each part spans:

    channel                Case 1   Gamma = alpha                 alpha (o,1,1)
    dense                  Case 2   Gamma = alpha                 alpha (o,h,w)
    channel_spatial        Case 3   Gamma = alpha * beta          alpha (o,1,1), beta (1,h,w)
    channel_height_width   Case 4   Gamma = alpha * beta * gamma  alpha (o,1,1), beta (1,h,1), gamma (1,1,w)

`factors()` gives the parts, `tensor()` their broadcast product; packing stores the parts.

Analytic (XNOR-Net, Eq. 2): alpha = mean |W| a filter, optionally times K, the box-filtered mean |I|. K
depends on the input, so the analytic scale with K has no `tensor()`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.runtime.choices import check_choice

SCALE_INITS = ("analytic", "ones")

# E|I| = sqrt(2/pi) = 0.798 for a standard normal input: what a batch norm in front of the sign delivers.
ANALYTIC_INPUT_MEAN = 0.8

Size = tuple[int, int]


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in its own dtype, half precision raised to float32: means are not taken in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def filter_means(weight: Tensor) -> Tensor:
    """mean |W| of each filter: (o, c/g, kh, kw) -> (o,1,1), and (o, i) -> (o,) for a linear layer."""
    means = at_least_float32(weight).abs().mean(tuple(range(1, weight.dim())))
    return means.reshape(-1, 1, 1) if weight.dim() > 2 else means


class LearnedScale(nn.Module):
    """What the four cases share: the check of the output size, the product, the start and the resizing.

    A subclass creates its parameters; the first of `factors()` spans the channels and takes the analytic
    start.
    """

    spatial = True

    def __init__(self, out_channels: int, output_size: Size | None = None) -> None:
        super().__init__()
        if out_channels < 1:
            raise ValueError(f"`out_channels` (={out_channels}) must be at least 1")
        if self.spatial:
            if output_size is None:
                raise ValueError(
                    f"`output_size` (=None) must be given as (height, width) for scale={self.name!r}, whose "
                    "factors span the output's rows and columns; scale='channel' needs none"
                )
            if len(output_size) != 2 or min(output_size) < 1:
                raise ValueError(f"`output_size` (={output_size}) must be two sizes of at least 1")
        self.out_channels = out_channels
        self.output_size: Size | None = (
            (output_size[0], output_size[1]) if self.spatial and output_size else None
        )

    @property
    def name(self) -> str:
        return next(name for name, kind in SCALES.items() if kind is type(self))

    def factors(self) -> tuple[Tensor, ...]:
        """The parts of Gamma, each with three dimensions; their broadcast product is `tensor()`."""
        return tuple(self.parameters())

    def tensor(self) -> Tensor:
        """Gamma, (o,1,1) or (o,h,w)."""
        first, *others = self.factors()
        for factor in others:
            first = first * factor
        return first

    def in_turn(self) -> tuple[Tensor, ...]:
        """Gamma as a packed network applies it: the product of the factors a pixel, then the channel's."""
        first, *others = self.factors()
        if not others:
            return (first,)
        pixel = others[0]
        for factor in others[1:]:
            pixel = pixel * factor
        return pixel, first

    @torch.no_grad()
    def start_(self, alpha: Tensor | None = None) -> None:
        """Sets the channel factor to `alpha` ((o,1,1) or (o,); None means ones), the others to ones."""
        first, *others = self.factors()
        first.copy_(torch.ones_like(first) if alpha is None else alpha.reshape(-1, 1, 1).expand_as(first))
        for factor in others:
            factor.fill_(1.0)

    @torch.no_grad()
    def resize(self, output_size: Size) -> None:
        """Interpolates the spatial factors to another output size (bilinear, as an image would be).

        New parameters replace the old ones: call it before the optimiser is made, and before wrapping or
        compiling.
        """
        if not self.spatial or tuple(output_size) == self.output_size:
            return
        if len(output_size) != 2 or min(output_size) < 1:
            raise ValueError(f"`output_size` (={output_size}) must be two sizes of at least 1")
        for name, factor in list(self.named_parameters(recurse=False)):
            _, rows, columns = factor.shape
            target = (
                output_size[0] if self._spans(name, 1) else rows,
                output_size[1] if self._spans(name, 2) else columns,
            )
            resized = F.interpolate(factor[None].float(), size=target, mode="bilinear", align_corners=False)[
                0
            ]
            setattr(self, name, nn.Parameter(resized.to(factor.dtype), requires_grad=factor.requires_grad))
        self.output_size = (output_size[0], output_size[1])

    def _spans(self, name: str, dim: int) -> bool:
        """Whether a factor runs along a dimension; asked by name, because an output may be one pixel high."""
        raise NotImplementedError

    def check_size(self, size: Size) -> None:
        if self.output_size is not None and tuple(size) != self.output_size:
            raise ValueError(
                f"the learned scale {self.name!r} is bound to output size {self.output_size} but the "
                f"layer's output is {tuple(size)}; call `layer.scale.resize({tuple(size)})` or "
                "`xnorpp.convert.resize_scales(model, input_size)` to resize it on purpose"
            )

    def extra_repr(self) -> str:
        return f"{self.out_channels}" + (f", output_size={self.output_size}" if self.spatial else "")


class ChannelScale(LearnedScale):
    """Case 1: one learned factor an output channel."""

    spatial = False

    def __init__(self, out_channels: int, output_size: Size | None = None) -> None:
        super().__init__(out_channels, output_size)
        self.alpha = nn.Parameter(torch.ones(out_channels, 1, 1))


class DenseScale(LearnedScale):
    """Case 2: one learned factor an output value."""

    def __init__(self, out_channels: int, output_size: Size | None = None) -> None:
        super().__init__(out_channels, output_size)
        assert self.output_size is not None  # checked by the constructor above
        self.alpha = nn.Parameter(torch.ones(out_channels, *self.output_size))

    def _spans(self, name: str, dim: int) -> bool:
        return True


class ChannelSpatialScale(LearnedScale):
    """Case 3: a factor a channel times a factor a pixel."""

    def __init__(self, out_channels: int, output_size: Size | None = None) -> None:
        super().__init__(out_channels, output_size)
        assert self.output_size is not None  # checked by the constructor above
        self.alpha = nn.Parameter(torch.ones(out_channels, 1, 1))
        self.beta = nn.Parameter(torch.ones(1, *self.output_size))

    def _spans(self, name: str, dim: int) -> bool:
        return name == "beta"


class ChannelHeightWidthScale(LearnedScale):
    """Case 4: a factor a channel times a factor a row times a factor a column."""

    def __init__(self, out_channels: int, output_size: Size | None = None) -> None:
        super().__init__(out_channels, output_size)
        assert self.output_size is not None  # checked by the constructor above
        self.alpha = nn.Parameter(torch.ones(out_channels, 1, 1))
        self.beta = nn.Parameter(torch.ones(1, self.output_size[0], 1))
        self.gamma = nn.Parameter(torch.ones(1, 1, self.output_size[1]))

    def _spans(self, name: str, dim: int) -> bool:
        return (name, dim) in (("beta", 1), ("gamma", 2))


SCALES: dict[str, type[LearnedScale]] = {
    "channel": ChannelScale,
    "dense": DenseScale,
    "channel_spatial": ChannelSpatialScale,
    "channel_height_width": ChannelHeightWidthScale,
}

ANALYTIC_SCALES = ("alpha", "alpha_k")


class AnalyticScale(nn.Module):
    """XNOR-Net's scale, computed from the weights (alpha) and, with `alpha_k`, from the input too (K).

    It owns no parameter: the layer hands it its weight. alpha is differentiated like everything else, which
    gives the mean term of XNOR-Net's weight gradient in its exact form.
    """

    def __init__(self, name: str = "alpha") -> None:
        super().__init__()
        check_choice("name", name, ANALYTIC_SCALES)
        self.name = name

    @property
    def uses_input(self) -> bool:
        return self.name == "alpha_k"

    def factors(self, weight: Tensor) -> tuple[Tensor, ...]:
        """(alpha,), the factors that do not depend on the input; alpha = mean |W| a filter."""
        return (filter_means(weight),)

    def tensor(self, weight: Tensor) -> Tensor:
        """alpha, for the scale without K."""
        if self.uses_input:
            raise ValueError(
                "the scale 'alpha_k' depends on the input through K, so it has no constant tensor"
            )
        return filter_means(weight)

    def extra_repr(self) -> str:
        return repr(self.name)


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

    Outside the picture A is 0 and counts, so the divisor is always kh * kw. `pads` is (left, right, top,
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
