"""AdaBin's sets: values that are two numbers chosen by the layer, instead of -1 and +1.

    input    alpha_a sign((I - beta_a) / alpha_a) + beta_a    alpha_a, beta_a learned, one pair per layer
    weight   alpha_w sign((W - beta_w) / alpha_w) + beta_w    beta_w mean, alpha_w deviation of each filter
    paper    Tu et al. 2022, "AdaBin: Improving Binary Neural Networks with Adaptive Binary Sets",
             https://arxiv.org/abs/2208.08084

With s and t the two signs, a sum over the n taps of a filter is

    sum (alpha_a s + beta_a) (alpha_w t + beta_w)
        = (alpha_a alpha_w) sum s t  +  (alpha_a beta_w) sum s  +  beta_a (alpha_w sum t + beta_w n)

the binary product that there is without sets, the sum of the signs in the window, which all filters share,
and one constant per filter. So training multiplies exact signs, and a packed network needs one more filter,
of ones. For the constant to be one everywhere, the border of a convolution is filled before the set is
applied: where signs are surrounded by 0, the input's set is surrounded by its middle, beta_a. (AdaBin's code
fills with 0.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.functional import Pads
from xnorpp.nn.quantizers import Progress, Quantizer

EXTENT_FLOOR = 1e-6  # of a learned extent that crosses zero; its sign means nothing


class InputSet(nn.Module):
    """The learned set {middle - extent, middle + extent} of a layer's input; it starts as {-1, +1}.

    Example:
        >>> import torch
        >>> from xnorpp.nn import BinaryConv2d, InputSet
        >>> layer = BinaryConv2d(16, 32, 3, adaptive_sets=True)
        >>> isinstance(layer.sets, InputSet), [name for name, _ in layer.sets.named_parameters()]
        (True, ['extent', 'middle'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.extent = nn.Parameter(torch.ones(1))
        self.middle = nn.Parameter(torch.zeros(1))

    def size(self) -> Tensor:
        """The extent as it is used: positive."""
        return self.extent.abs().clamp_min(EXTENT_FLOOR)

    def forward(self, x: Tensor) -> Tensor:
        """What the sign is taken of."""
        return (x - self.middle.to(x.dtype)) / self.size().to(x.dtype)

    def factors(self, signs: Tensor, middles: Tensor, extents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each filter: the factor of its product, its constant, and the factor of the window's sum.

        Args:
            signs: The filters' signs, (o, ...).
            middles: The mean of each filter, (o,).
            extents: The deviation of each filter, (o,).
        """
        size = self.size()
        sums = extents * signs.flatten(1).sum(1) + middles * signs[0].numel()
        return extents * size, self.middle * sums, middles * size


def filter_sets(filters: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """(middles, extents) of weights (o, ...): mean and deviation of each filter."""
    rows = filters.flatten(1)
    middles = rows.mean(1)
    squares = (rows - middles.unsqueeze(1)).square().mean(1)
    return middles, (squares + floor).sqrt()


def adaptive_conv2d(
    x: Tensor,
    weight: Tensor,
    sets: InputSet,
    weight_sets: tuple[Tensor, Tensor],
    *,
    stride: tuple[int, int],
    pads: Pads,
    dilation: tuple[int, int],
    groups: int,
    padding_value: int,
    inputs: Quantizer,
    weights: Quantizer,
    progress: Progress,
) -> Tensor:
    """The convolution of the two sets, without scale and bias; `weight_sets` are those of `filter_sets`, the
    other arguments those of `binary_conv2d`.
    """
    signs = inputs(sets(x), progress)
    filters = weights(weight, progress)
    left, right, top, bottom = pads
    padding = (top, left)
    if padding_value or left != right or top != bottom:
        signs, padding = F.pad(signs, pads, value=float(padding_value)), (0, 0)
    dots = F.conv2d(signs, filters, None, stride, padding, dilation, groups)
    sums = signs.reshape(*signs.shape[:-3], groups, -1, *signs.shape[-2:]).sum(-3)
    box = sums.new_ones((groups, 1, *filters.shape[2:]))
    totals = F.conv2d(sums, box, None, stride, padding, dilation, groups)
    if groups > 1:
        totals = totals.repeat_interleave(len(filters) // groups, dim=-3)
    mult, add, share = (one.to(dots.dtype).reshape(-1, 1, 1) for one in sets.factors(filters, *weight_sets))
    return dots * mult + add + totals * share


def adaptive_linear(
    x: Tensor,
    weight: Tensor,
    sets: InputSet,
    weight_sets: tuple[Tensor, Tensor],
    *,
    inputs: Quantizer,
    weights: Quantizer,
    progress: Progress,
) -> Tensor:
    """The same for a linear layer."""
    signs = inputs(sets(x), progress)
    filters = weights(weight, progress)
    dots = F.linear(signs, filters)
    mult, add, share = (one.to(dots.dtype) for one in sets.factors(filters, *weight_sets))
    return dots * mult + add + signs.sum(-1, keepdim=True).to(dots.dtype) * share


def scaled(y: Tensor, scales: tuple[Tensor, ...], bias: Tensor | None) -> Tensor:
    """y . scale + bias, factor by factor; `bias` broadcasts against the output."""
    for scale in scales:
        y = y * scale.to(y.dtype)
    return y if bias is None else y + bias.to(y.dtype)
