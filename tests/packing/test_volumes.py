"""Volumes that are enlarged: interpolation and transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images
from networks import Lambda
from torch import Tensor, nn

SHAPE = (2, 4, 5, 3)
ENLARGED: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2) * 2,
    "nearest to a size": lambda x: F.interpolate(x, (7, 3, 8)) * 2,
    "nearest-exact": lambda x: F.interpolate(x, (7, 9, 4), mode="nearest-exact") * 2,
    "trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    "trilinear by factors": lambda x: F.interpolate(x, scale_factor=(1.5, 2, 1.3), mode="trilinear"),
    "nearest by factors that add nothing": lambda x: F.interpolate(x, scale_factor=(1.2, 1.1, 1.3)) * 2,
    "trilinear by recomputed factors": lambda x: F.interpolate(
        x, scale_factor=(1.5, 2, 1.3), mode="trilinear", recompute_scale_factor=True
    ),
    "trilinear with corners": lambda x: F.interpolate(x, (9, 8, 7), mode="trilinear", align_corners=True),
    "trilinear to less": lambda x: F.interpolate(x, (2, 3, 1), mode="trilinear"),
    "area": lambda x: F.interpolate(x, (2, 3, 2), mode="area") + 1,
    "of frames": lambda x: F.interpolate(
        x.unsqueeze(2).flatten(0, 1), scale_factor=2, mode="trilinear"
    ).unflatten(0, (-1, 2)),
}
TRANSPOSED: dict[str, Callable[[], nn.Module]] = {
    "as wide as its step": lambda: nn.ConvTranspose3d(2, 3, 2, 2),
    "overlapping": lambda: nn.ConvTranspose3d(2, 3, 3, 2, 1, 1),
    "every argument": lambda: nn.ConvTranspose3d(
        2, 6, (3, 2, 4), (2, 3, 1), (1, 0, 2), (1, 2, 0), 2, dilation=(1, 2, 3), bias=False
    ),
    "no step": lambda: nn.ConvTranspose3d(2, 2, 3),
    "narrower than its step": lambda: nn.ConvTranspose3d(2, 2, 1, 3, output_padding=2),
}


class VNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 8, 2, 2)
        self.up, self.last = nn.ConvTranspose3d(8, 4, 2, 2), nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.cat([self.up(F.elu(self.down(F.elu(x)))), x], 1))


@pytest.mark.parametrize("name", ENLARGED)
def test_enlarged_volumes(name: str) -> None:
    agrees(Lambda(ENLARGED[name]), images(*SHAPE))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_of_volumes(name: str) -> None:
    torch.manual_seed(0)
    agrees(TRANSPOSED[name](), images(*SHAPE))


def test_a_v_net() -> None:
    torch.manual_seed(0)
    agrees(VNet(), images(1, 4, 6, 8))
