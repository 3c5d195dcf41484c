"""A network with an operation that has no packed form: the rest of it runs packed, inside of torch.

python examples/packed_subnetwork.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import nn

import xnorpp
from xnorpp import BinaryConv2d


def block(channels: int) -> nn.Sequential:
    conv = BinaryConv2d(channels, channels, 3, padding=1, scale="channel")
    return nn.Sequential(nn.BatchNorm2d(channels), conv, nn.PReLU())


def main() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1), *block(64), *block(64),
        nn.BatchNorm2d(64, track_running_stats=False),  # depends on the batch: does not pack
        *block(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).eval()  # fmt: skip
    images = torch.randn(8, 3, 32, 32)
    hybrid, report = xnorpp.pack_submodules(net, images)
    print(report)
    with torch.no_grad():
        difference = (hybrid(images) - net(images)).abs().max()
    print(f"largest difference of an output: {difference:.1e}")
    path = tempfile.mkdtemp() + "/hybrid.pt"
    torch.save(hybrid.state_dict(), path)  # the packed parts are in it as well
    hybrid.load_state_dict(torch.load(path, weights_only=True))


if __name__ == "__main__":
    main()
