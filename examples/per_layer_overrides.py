"""Another binarization for single layers, by path or pattern, and a filter for the rest."""

import torch
from torch import nn

from xnorpp import Binarization, binarize, unbinarize


def block(inputs, outputs, stride=1):
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, stride, 1), nn.PReLU())


net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.Sequential(block(8, 16), block(16, 32, 2), block(32, 64, 2)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
report = binarize(
    net,
    Binarization(inputs="polynomial"),
    example=torch.randn(2, 3, 32, 32),
    filter=lambda path, layer: layer.weight.numel() > 2000,
    overrides={"1.2.*": Binarization(scale="channel_height_width"), "1.1": "bnn"},
)
print(report)
print("and back:", unbinarize(net).changed)
