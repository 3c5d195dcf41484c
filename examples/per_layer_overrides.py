"""Per-layer overrides: one binarization for the network, another for some layers, none for others.

python examples/per_layer_overrides.py
"""

from __future__ import annotations

import torch
from torch import nn

import xnorpp


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inputs), conv, nn.PReLU(outputs))


def main() -> None:
    net = nn.Sequential()
    net.stem = nn.Conv2d(3, 32, 3, padding=1)
    net.stage1 = nn.Sequential(block(32, 32), block(32, 32))
    net.stage2 = nn.Sequential(block(32, 64, 2), block(64, 64))
    net.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    images = torch.randn(8, 3, 32, 32)

    report = xnorpp.binarize(
        net,
        example=images,
        filter=lambda path, layer: layer.in_channels > 16 if isinstance(layer, nn.Conv2d) else True,
        overrides={"stage1.0": "real", "stage2.*": {"scale": "channel_height_width"}},
    )
    print(report)
    print(xnorpp.check_packable(net, images))


if __name__ == "__main__":
    main()
