"""Volumes and videos made larger, (n, c, depth, h, w)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images
from torch import Tensor, nn

torch.manual_seed(5)
LARGER: dict[str, nn.Module] = {
    "twice": nn.ConvTranspose3d(4, 6, 2, 2),
    "overlapping": nn.ConvTranspose3d(4, 6, 3, 2, 1, 1),
    "planes alone": nn.ConvTranspose3d(4, 6, (1, 2, 2), (1, 2, 2)),
    "each axis another": nn.ConvTranspose3d(4, 6, (3, 4, 2), (1, 2, 3), (1, 1, 0), (0, 1, 2), bias=False),
    "groups": nn.ConvTranspose3d(4, 6, 3, 2, 1, groups=2),
    "dilated": nn.ConvTranspose3d(4, 4, 3, 2, 1, 1, dilation=(1, 2, 1)),
    "more than it reaches": nn.ConvTranspose3d(4, 3, 2, 3, 0, 2),
    "nearest": nn.Upsample(scale_factor=(1, 2, 3)),
    "nearest-exact": nn.Upsample(size=(2, 7, 3), mode="nearest-exact"),
    "trilinear": nn.Upsample(scale_factor=(1.5, 1.7, 2.2), mode="trilinear"),
    "trilinear, corners": nn.Upsample(size=(5, 7, 9), mode="trilinear", align_corners=True),
    "a factor as a size": nn.Upsample(scale_factor=1.5, mode="trilinear", recompute_scale_factor=True),
    "area": nn.Upsample(size=(2, 5, 3), mode="area"),
}


@pytest.mark.parametrize("name", LARGER)
def test_a_volume_made_larger(name: str) -> None:
    agrees(LARGER[name], images(4, 3, 5, 6))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            conv = nn.Conv3d(inputs, outputs, 3, padding=1)
            return nn.Sequential(conv, nn.InstanceNorm3d(outputs), nn.PReLU())

        self.first, self.second, self.last = block(1, 4), block(4, 8), block(8, 4)
        self.down, self.up = nn.MaxPool3d(2), nn.ConvTranspose3d(8, 4, 2, 2)
        self.head = nn.Conv3d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        return self.head(self.last(torch.cat([self.up(self.second(self.down(skip))), skip], 1)))


def test_a_network_of_volumes() -> None:
    agrees(UNet(), images(1, 4, 8, 6))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_borders_of_volumes(mode: str) -> None:
    agrees(lambda x: F.pad(x, (1, 2, 0, 1, 2, 1), mode=mode), images(2, 4, 5, 3))
    agrees(lambda x: F.pad(x, (0, 0, 0, 0, 1, 2), mode=mode), images(2, 4, 5, 3))
    agrees(nn.Conv3d(2, 3, 3, padding=1, padding_mode=mode), images(2, 4, 5, 3))
