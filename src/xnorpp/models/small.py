"""A small residual network for small images (digits, Fashion-MNIST), quick to train on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from xnorpp.models.blocks import Options, PreActivationBlock, Size, activation, initialise, output_size
from xnorpp.models.registry import register_model
from xnorpp.runtime.choices import check_flag, check_whole


class Small(nn.Module):
    """Real 3x3 stem, three pre-activation blocks of width w, 2w and 4w, global average, real classifier.

    Images of 16 pixels and more are pooled once after the stem (`stem_pool` decides it for any size); the
    second and third block halve the image.
    """

    def __init__(
        self,
        options: Options,
        *,
        input_size: Size,
        num_classes: int,
        in_channels: int,
        width: int = 32,
        stem_pool: bool | None = None,
    ) -> None:
        super().__init__()
        pooled = min(input_size) >= 16 if stem_pool is None else stem_pool
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = activation(options, width)
        self.pool = nn.MaxPool2d(2) if pooled else nn.Identity()
        size = output_size(input_size, 2, 2, 0) if pooled else input_size
        self.blocks = nn.Sequential()
        inputs = width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
            block = PreActivationBlock(options, inputs, outputs, stride, size)
            inputs, size = outputs, block.output_size
            self.blocks.append(block)
        self.norm = nn.BatchNorm2d(inputs)
        self.act = activation(options, inputs)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.act1(self.bn1(self.conv1(x)))))
        result: Tensor = self.fc(self.flatten(self.avgpool(self.act(self.norm(x)))))
        return result


@register_model(
    "small", input_size=28, num_classes=10, summary="three residual blocks for digits and Fashion-MNIST"
)
def small(
    options: Options,
    input_size: Size,
    num_classes: int,
    in_channels: int,
    *,
    width: int = 32,
    stem_pool: bool | None = None,
) -> tuple[nn.Module, dict[str, object]]:
    """The small network and its own options: the width of its first block, and pooling after the stem."""
    check_whole("width", width)
    if stem_pool is not None:
        check_flag("stem_pool", stem_pool)
    model = Small(
        options,
        input_size=input_size,
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        stem_pool=stem_pool,
    )
    return model, {"width": width, "stem_pool": not isinstance(model.pool, nn.Identity)}
