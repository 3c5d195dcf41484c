"""ReActNet-A: MobileNetV1's layout with binary convolutions (Liu et al. 2020, arXiv:2003.03488).

Each depthwise-separable block of MobileNetV1 becomes two stages with a shortcut each, a full 3x3 convolution
and a 1x1 convolution:

    shift -> sign -> binary convolution -> scale -> batch norm -> + shortcut -> RPReLU

Where the image is halved, the 3x3 convolution has stride 2 and its shortcut is a 2x2 average pooling. Where
the width doubles, the paper has two 1x1 convolutions of the same input, each with its own shortcut and batch
norm, whose outputs are concatenated. That is one convolution with twice the outputs, whose shortcut is its
input twice, and is written so here. No layer between stem and classifier is real-valued.

On 224 pixels the image is halved five times, by the stem and by four of the blocks. Smaller images are halved
less often, as is usual for MobileNets on CIFAR: first the stem loses its stride, then the first block that
has one, so that at least 4x4 pixels are left (`reduction`): 64 pixels end at 4x4 with a stem of stride 1,
and 32 pixels at 4x4 with one more block of stride 1.

With the methods `real` and `binaryconnect` there is no sign and no shift; everything else stays, and the stem
ends with the activation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xnorpp.models.blocks import (
    AveragePool,
    Options,
    Size,
    activation,
    initialise,
    inner_conv,
    output_size,
)
from xnorpp.models.registry import register_model
from xnorpp.nn import ChannelShift
from xnorpp.runtime.choices import check_choice

# Of the thirteen blocks: outputs as multiples of the stem's channels, and whether the image is halved on 224
# pixels.
_BLOCKS = ((2, False), (4, True), (4, False), (8, True), (8, False), (16, True), *((16, False),) * 5,
           (32, True), (32, False))  # fmt: skip
_STEM = 32
REDUCTIONS = (32, 16, 8)


def resolve_reduction(size: Size, reduction: int | None) -> int:
    """The factor by which the network shrinks an image: as given, or the largest that leaves 4 pixels."""
    if reduction is not None:
        check_choice("reduction", reduction, REDUCTIONS)
        return reduction
    return next((factor for factor in REDUCTIONS if -(-min(size) // factor) >= 4), REDUCTIONS[-1])


class ReActBlock(nn.Module):
    """A 3x3 and a 1x1 convolution, each followed by batch norm, addition of its shortcut, and activation.

    With `shortcut="block"` one shortcut goes around both.
    """

    def __init__(self, options: Options, inputs: int, outputs: int, stride: int, size: Size) -> None:
        super().__init__()
        middle = output_size(size, 3, stride, 1)
        self.shortcut_per_conv = options.shortcut == "conv"
        self.doubles = outputs != inputs
        odd = any(side % stride for side in size)
        self.pool = AveragePool(stride, stride, ceil_mode=odd) if stride != 1 else nn.Identity()
        self.before1 = _shift(options, inputs)
        self.conv1 = inner_conv(options, inputs, inputs, 3, size, stride=stride, padding=1)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.act1 = activation(options, inputs)
        self.before2 = _shift(options, inputs)
        self.conv2 = inner_conv(options, inputs, outputs, 1, middle)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act2 = activation(options, outputs)
        self.output_size = middle

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.pool(x)
        y = self.bn1(self.conv1(self.before1(x)))
        y = self.act1(y + shortcut if self.shortcut_per_conv else y)
        if self.shortcut_per_conv:
            shortcut = y
        if self.doubles:
            shortcut = torch.cat((shortcut, shortcut), 1)
        result: Tensor = self.act2(self.bn2(self.conv2(self.before2(y))) + shortcut)
        return result


def _shift(options: Options, channels: int) -> nn.Module:
    """ReActNet's learned threshold of the sign, where there is a sign."""
    return ChannelShift(channels) if options.binarizes_input and options.sign_shift else nn.Identity()


class ReActNet(nn.Module):
    """Real 3x3 stem, thirteen blocks, global average, real classifier."""

    def __init__(
        self,
        options: Options,
        *,
        input_size: Size,
        num_classes: int,
        in_channels: int,
        width: float,
        reduction: int,
    ) -> None:
        super().__init__()
        stem = max(1, round(_STEM * width))
        spared = 5 - reduction.bit_length() + 1  # how many of the five halvings are left out, from the front
        stride = 1 if spared > 0 else 2
        self.conv1 = nn.Conv2d(in_channels, stem, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(stem)
        self.act = nn.Identity() if options.binarizes_input else activation(options, stem)
        size = output_size(input_size, 3, stride, 1)
        spared -= 1
        self.blocks = nn.Sequential()
        inputs = stem
        for factor, halves in _BLOCKS:
            stride = 2 if halves and spared <= 0 else 1
            spared -= halves
            block = ReActBlock(options, inputs, stem * factor, stride, size)
            inputs, size = stem * factor, block.output_size
            self.blocks.append(block)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.act(self.norm(self.conv1(x))))
        result: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return result


@register_model(
    "reactnet-a",
    input_size=224,
    num_classes=1000,
    summary="ReActNet-A, MobileNetV1's layout with binary convolutions",
    defaults={"activation": "rprelu", "sign_shift": True},
)
def reactnet_a(
    options: Options,
    input_size: Size,
    num_classes: int,
    in_channels: int,
    *,
    width: float = 1.0,
    reduction: int | None = None,
) -> tuple[nn.Module, dict[str, object]]:
    """ReActNet-A and its own options: the factor of all widths, and how much smaller the last map is than the
    image (32, 16 or 8).
    """
    if not 0 < width <= 16:
        raise ValueError(f"`width` (={width}) must be greater than 0 and at most 16; 1.0 is the paper's")
    reduction = resolve_reduction(input_size, reduction)
    model = ReActNet(
        options,
        input_size=input_size,
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        reduction=reduction,
    )
    return model, {"width": width, "reduction": reduction}
