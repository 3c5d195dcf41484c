"""AlexNet as the paper changes it.

No local normalisation and no groups; batch norm and sign before each binary layer, the first two fully
connected ones included; dropout 0.5 before each of their batch norms. The first convolution and the
classifier are real. Activation and pooling follow the convolution.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from xnorpp.models.blocks import (
    Options,
    Size,
    activation,
    after,
    before,
    initialise,
    inner_conv,
    inner_linear,
    output_size,
)
from xnorpp.models.registry import register_model
from xnorpp.runtime.choices import check_whole

# outputs, kernel, padding, pooled afterwards; the convolutions after the first
_CONVOLUTIONS = ((256, 5, 2, True), (384, 3, 1, False), (384, 3, 1, False), (256, 3, 1, True))


class AlexNet(nn.Module):
    """Five convolutions and three linear layers; images of 227x227 in the paper."""

    def __init__(
        self,
        options: Options,
        *,
        input_size: Size,
        num_classes: int,
        in_channels: int,
        dropout: float = 0.5,
        hidden: int = 4096,
    ) -> None:
        super().__init__()
        size = output_size(output_size(input_size, 11, 4, 0), 3, 2, 0)
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(in_channels, 96, 11, 4, bias=False),
                norm=nn.BatchNorm2d(96),
                act=activation(options, 96),
                pool=nn.MaxPool2d(3, 2),
            )
        )
        inputs = 96
        self.features = nn.Sequential()
        for outputs, kernel, padding, pooled in _CONVOLUTIONS:
            unit = nn.Sequential(
                OrderedDict(
                    norm=nn.BatchNorm2d(inputs),
                    before=before(options, inputs),
                    conv=inner_conv(options, inputs, outputs, kernel, size, padding=padding),
                    act=after(options, outputs),
                )
            )
            if pooled:
                unit.add_module("pool", nn.MaxPool2d(3, 2))
                size = output_size(size, 3, 2, 0)
            self.features.append(unit)
            inputs = outputs
        self.flatten = nn.Flatten()
        self.hidden = nn.Sequential()
        inputs *= size[0] * size[1]
        for _ in range(2):
            self.hidden.append(
                nn.Sequential(
                    OrderedDict(
                        dropout=nn.Dropout(dropout),
                        norm=nn.BatchNorm1d(inputs),
                        before=before(options, inputs, spatial=False),
                        linear=inner_linear(options, inputs, hidden),
                        act=after(options, hidden, spatial=False),
                    )
                )
            )
            inputs = hidden
        self.norm = nn.BatchNorm1d(hidden)
        self.act = activation(options, hidden, spatial=False)
        self.fc = nn.Linear(hidden, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.flatten(self.features(self.stem(x))))
        result: Tensor = self.fc(self.act(self.norm(x)))
        return result


@register_model(
    "alexnet", input_size=227, num_classes=1000, summary="AlexNet with batch norm, without groups"
)
def alexnet(
    options: Options,
    input_size: Size,
    num_classes: int,
    in_channels: int,
    *,
    dropout: float = 0.5,
    hidden: int = 4096,
) -> tuple[nn.Module, dict[str, object]]:
    """AlexNet and its own options: the dropout and the width of the two hidden linear layers."""
    check_whole("hidden", hidden)
    if not 0 <= dropout <= 1:
        raise ValueError(f"`dropout` (={dropout}) must be from 0 to 1")
    model = AlexNet(
        options,
        input_size=input_size,
        num_classes=num_classes,
        in_channels=in_channels,
        dropout=dropout,
        hidden=hidden,
    )
    return model, {"dropout": dropout, "hidden": hidden}
