"""ResNets with pre-activation blocks: resnet18, resnet34 (ImageNet) and resnet20 (CIFAR).

Weights and multiply-adds of the convolutions and the classifier are those of He et al. (and of torchvision):
only the order inside a block, what the shortcuts go around, and the average pooling before a 1x1
shortcut in place of its stride, differ.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from xnorpp.models.blocks import Options, PreActivationBlock, Size, activation, initialise, output_size
from xnorpp.models.registry import register_model
from xnorpp.nn.fused import ends
from xnorpp.runtime.choices import check_choice, check_flag

STEMS = ("7x7", "3x3")


def resolve_stem(size: Size, stem: str, stem_pool: bool | None) -> tuple[str, bool]:
    """(stem, pooling). "auto" is 7x7 from 96 pixels on, else 3x3; a 3x3 stem is pooled from 48 pixels on."""
    check_choice("stem", stem, ("auto", *STEMS))
    if stem_pool is not None:
        check_flag("stem_pool", stem_pool)
    if stem == "auto":
        stem = "7x7" if min(size) >= 96 else "3x3"
    return stem, (stem == "7x7" or min(size) >= 48) if stem_pool is None else stem_pool


class ResNet(nn.Module):
    """Real stem, stages of pre-activation blocks, batch norm, activation, global average, real classifier."""

    fuses_itself = True  # for `fuse_for_training`

    def __init__(
        self,
        options: Options,
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        *,
        input_size: Size,
        num_classes: int,
        in_channels: int,
        stem: str,
        stem_pool: bool,
    ) -> None:
        super().__init__()
        kernel, stride, padding = (7, 2, 3) if stem == "7x7" else (3, 1, 1)
        self.conv1 = nn.Conv2d(in_channels, widths[0], kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act1 = activation(options, widths[0])
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem_pool else nn.Identity()
        size = output_size(input_size, kernel, stride, padding)
        if stem_pool:
            size = output_size(size, 3, 2, 1)
        inputs = widths[0]
        self.stages: list[str] = []
        for index, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            stage = nn.Sequential()
            for number in range(count):
                block_stride = 2 if number == 0 and index > 0 else 1
                block = PreActivationBlock(options, inputs, width, block_stride, size)
                inputs, size = width, block.output_size
                stage.append(block)
            self.stages.append(f"layer{index + 1}")
            self.add_module(self.stages[-1], stage)
        self.norm = nn.BatchNorm2d(inputs)
        self.act = activation(options, inputs)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = ends.stem(x, self.conv1, self.bn1, self.act1, self.maxpool)
        for stage in self.stages:
            x = getattr(self, stage)(x)
        result: Tensor = self.fc(ends.mean_head(x, self.norm, self.act, self.avgpool, self.flatten))
        return result


def resnet(
    options: Options,
    input_size: Size,
    num_classes: int,
    in_channels: int,
    *,
    blocks: tuple[int, ...],
    widths: tuple[int, ...],
    stem: str = "auto",
    stem_pool: bool | None = None,
) -> tuple[nn.Module, dict[str, object]]:
    """A ResNet and its own options, the automatic ones resolved."""
    stem, stem_pool = resolve_stem(input_size, stem, stem_pool)
    model = ResNet(
        options,
        blocks,
        widths,
        input_size=input_size,
        num_classes=num_classes,
        in_channels=in_channels,
        stem=stem,
        stem_pool=stem_pool,
    )
    return model, {"stem": stem, "stem_pool": stem_pool}


_WIDTHS = (64, 128, 256, 512)
_FAMILY = (
    ("resnet18", (2, 2, 2, 2), _WIDTHS, 224, 1000, "ResNet-18, pre-activation"),
    ("resnet34", (3, 4, 6, 3), _WIDTHS, 224, 1000, "ResNet-34, pre-activation"),
    ("resnet20", (3, 3, 3), (16, 32, 64), 32, 10, "ResNet-20 for CIFAR"),
)
for _name, _blocks, _widths, _size, _classes, _summary in _FAMILY:
    register_model(_name, input_size=_size, num_classes=_classes, summary=_summary)(
        partial(resnet, blocks=_blocks, widths=_widths)
    )
