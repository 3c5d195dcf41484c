"""Images sampled at places between pixels, maxima put back, and numbers in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

import xnorpp

MODES = list(
    itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True))
)


def turned(angle: float, sizes: tuple[int, int], align: bool) -> Tensor:
    c, s = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
    theta = torch.stack([torch.stack([c, -s, c * 0.2]), torch.stack([s, c, -s])])[None] * 1.2
    return F.affine_grid(theta, [1, 1, *sizes], align)


@pytest.mark.parametrize(("mode", "padding", "align"), MODES)
def test_constant_places(mode: str, padding: str, align: bool) -> None:
    grid = turned(0.4, (4, 7), align)
    agrees(lambda x: F.grid_sample(x, grid.expand(len(x), -1, -1, -1), mode, padding, align), images(3, 5, 6))


@pytest.mark.parametrize(
    ("mode", "padding", "align"), [m for m in MODES if m[0] != "bicubic" or m[1] == "zeros"]
)
def test_computed_places(mode: str, padding: str, align: bool) -> None:
    def transformed(x: Tensor) -> Tensor:
        theta = torch.tanh(x.flatten(1)[:, :6]).view(-1, 2, 3) + torch.eye(2, 3)
        return F.grid_sample(x, F.affine_grid(theta, [len(x), 3, 4, 7], align), mode, padding, align)

    agrees(transformed, images(3, 5, 6))


def test_volumes_and_templates() -> None:
    grid = torch.rand(1, 2, 3, 2, 3) * 2.4 - 1.2
    agrees(
        lambda x: F.grid_sample(x, grid.expand(len(x), -1, -1, -1, -1), align_corners=False),
        images(2, 3, 4, 5),
    )
    agrees(
        lambda x: F.grid_sample(x, x[:, :1, :2, :, :3].movedim(1, 0)[0].unsqueeze(1).tanh()),
        images(2, 3, 4, 5),
    )
    template = torch.rand(1, 4, 6, 5)
    agrees(
        lambda x: F.grid_sample(
            template.expand(len(x), -1, -1, -1), x.view(-1, 3, 1, 2).tanh(), align_corners=True
        ),
        images(6),
    )
    theta = torch.tensor([[[0.5, 0.1, 0.0], [0.0, 0.7, 0.2]]])
    agrees(
        lambda x: F.grid_sample(x, F.affine_grid(theta.expand(len(x), -1, -1), x.size(), False)),
        images(2, 5, 5),
    )
    is_refused(
        Lambda(lambda x: F.grid_sample(x, x[:, :2].movedim(1, -1))), (2, 80, 80), "too many", "interpolate"
    )


class SegNet(nn.Module):
    def __init__(self, kernel: Any = 2) -> None:
        super().__init__()
        self.down, self.pool = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.MaxPool2d(kernel, kernel, return_indices=True),
        )
        self.unpool, self.up = nn.MaxUnpool2d(kernel, kernel), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.down(x))
        pooled, places = self.pool(y)
        return self.up(self.unpool(pooled * 2, places, output_size=y.shape))


@pytest.mark.parametrize("kernel", [2, (3, 2)])
def test_maxima_put_back(kernel: Any) -> None:
    torch.manual_seed(0)
    agrees(SegNet(kernel), images(3, 7, 9))


@pytest.mark.parametrize(
    "more", [{"stride": 2, "padding": 1}, {"dilation": 2, "stride": 3}, {"ceil_mode": True}]
)
def test_places_of_maxima(more: dict[str, Any]) -> None:
    pool = nn.MaxPool2d(3, return_indices=True, **more)
    agrees(lambda x: torch.cat([t.float() for t in pool(x)], 1), images(2, 8, 7))
    long = nn.MaxPool1d(3, return_indices=True, **more)
    agrees(lambda x: torch.cat([long(x)[0], torch.adaptive_max_pool1d(x, 2)[0]], 2), images(2, 9))


ORDERED: dict[str, Callable[[Tensor], Any]] = {
    "median": lambda x: x.median(1).values,
    "median of even": lambda x: torch.median(x[:, :4], dim=-1, keepdim=True)[0],
    "kthvalue": lambda x: torch.kthvalue(x, 2, dim=1)[0],
    "quantile": lambda x: torch.quantile(x, 0.3, dim=1),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.1, 0.5, 1.0]), dim=-1).movedim(0, -1),
    "quantile kept": lambda x: torch.quantile(x, 0.8, dim=1, keepdim=True, interpolation="higher"),
    "nearest": lambda x: torch.quantile(x, 0.4, dim=2, interpolation="nearest"),
    "midpoint": lambda x: (
        x.quantile(0.4, 2, interpolation="midpoint") + x.quantile(0.4, 2, interpolation="lower")
    ),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5, 2.0])).float(),
    "bucketize right": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5]), right=True) * 1.5,
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5]), x, side="right").float(),
    "searchsorted computed": lambda x: torch.searchsorted(x.sort(-1).values, x * 0.5).float(),
}


@pytest.mark.parametrize("name", ORDERED)
def test_numbers_in_order(name: str) -> None:
    agrees(ORDERED[name], images(5, 7))


def test_places_of_the_middle() -> None:
    agrees(lambda x: x.median(1).indices.float() + torch.kthvalue(x, 3, dim=1)[1], images(7) * 1.7)
    is_refused(Lambda(lambda x: x - x.median()), (7,), "no axis", "name one axis")
    is_refused(Lambda(lambda x: x.quantile(0.5) * x), (7,), "no axis", "name one axis")


MATRIX = torch.linspace(-1, 1, 30).reshape(6, 5)
ALGEBRA: dict[str, Callable[[Tensor], Any]] = {
    "outer": lambda x: torch.outer(x.sum(1), torch.arange(3.0)),
    "addmv": lambda x: torch.addmv(torch.ones(()), x, torch.arange(6.0), alpha=2),
    "mv": lambda x: torch.mv(x, torch.arange(6.0)),
    "addr": lambda x: torch.addr(torch.ones(1, 3), x.sum(1), torch.arange(3.0), beta=0.5, alpha=2),
    "kron": lambda x: torch.kron(x, torch.tensor([[1.0, -2.0]])),
    "chain": lambda x: torch.linalg.multi_dot([x, MATRIX, MATRIX.t()]),
    "chain_matmul": lambda x: torch.chain_matmul(x, MATRIX, MATRIX.t()),
    "power": lambda x: (
        torch.matrix_power(x[:, :4].view(-1, 2, 2), 5) + torch.linalg.matrix_power(x[:, 2:].view(-1, 2, 2), 2)
    ),
    "trapezoid": lambda x: torch.trapezoid(x, dx=0.5) + torch.trapz(x, torch.tensor([0.0, 1, 3, 4, 6, 7])),
    "cumulative": lambda x: torch.cumulative_trapezoid(x, dim=1),
    "determinant": lambda x: torch.det(x[:, :4].view(-1, 2, 2)) + torch.linalg.det(x.view(-1, 6, 1)[:, :1]),
    "inverse": lambda x: (
        torch.linalg.inv(torch.diag_embed(x[:, :3] * 0.1 + 1) + 0.2) @ x[:, 3:].unsqueeze(-1)
    ),
    "larger inverse": lambda x: torch.inverse(torch.diag_embed(x[:, :4]) + 5 * torch.eye(4) + 0.3),
    "linalg": lambda x: torch.linalg.matmul(x, MATRIX),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.5),
}


@pytest.mark.parametrize("name", ALGEBRA)
def test_products_of_vectors_and_matrices(name: str) -> None:
    agrees(ALGEBRA[name], images(6))


def test_a_spatial_transformer_trains_and_packs() -> None:
    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Sequential(
                nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 6)
            )
            nn.init.zeros_(self.look[-1].weight)
            self.look[-1].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(144, 10))

        def forward(self, x: Tensor) -> Tensor:
            grid = F.affine_grid(self.look(x).view(-1, 2, 3), list(x.size()), align_corners=False)
            return self.head(F.grid_sample(x, grid, align_corners=False))

    torch.manual_seed(0)
    model = Transformer()
    nn.init.normal_(model.look[-1].weight, std=0.05)
    xnorpp.binarize(model, example=(1, 12, 12))
    agrees(model, images(1, 12, 12))
