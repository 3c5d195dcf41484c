"""Convolutions with filters that are computed from the image, as people write them for a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn


class Mixed(nn.Module):
    """Filters that are a sum of four, weighted by what an image has (CondConv, dynamic convolution)."""

    def __init__(self, kernel: int = 3, groups: int = 1, bias: Any = "computed", **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 8, 6 // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.randn(4, 8))
        self.shares = nn.Linear(6, 4)
        self.kind, self.groups, self.settings = bias, groups, settings

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        shares = self.shares(x.mean((2, 3))).softmax(1)
        weight = (shares @ self.weight.flatten(1)).view(n * 8, *self.weight.shape[2:])
        bias = (shares @ self.bias).view(-1) if self.kind == "computed" else None
        bias = self.bias[0].repeat(n) if self.kind == "constant" else bias
        y = F.conv2d(x.reshape(1, n * c, h, w), weight, bias, groups=self.groups * n, **self.settings)
        return y.view(n, 8, *y.shape[2:])


class Styled(nn.Module):
    """Filters scaled by a style and normalised (StyleGAN2)."""

    def __init__(self, up: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(1, 8, 6, 3, 3))
        self.style, self.up = nn.Linear(6, 6), up

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        weight = 0.1 * self.weight * self.style(x.mean((2, 3))).view(n, 1, c, 1, 1)
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8).view(n, 8, 1, 1, 1)
        flat = x.reshape(1, n * c, h, w)
        if self.up:
            turned = weight.transpose(1, 2).reshape(n * c, 8, 3, 3)
            y = F.conv_transpose2d(flat, turned, stride=2, groups=n)
        else:
            y = F.conv2d(flat, weight.view(n * 8, c, 3, 3), padding=1, groups=n)
        return y.view(n, 8, *y.shape[2:])


class Template(nn.Module):
    """What a part of the image has, looked for in the rest of it (Siamese trackers)."""

    def __init__(self, by_channel: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.by_channel = nn.Conv2d(3, 4, 3), by_channel

    def forward(self, x: Tensor) -> Tensor:
        template, y = self.features(x[:, :3, :6, :6]), self.features(x[:, 3:])
        n, c, h, w = y.shape
        groups = n * c if self.by_channel else n
        filters = template.reshape(groups, -1, *template.shape[2:])
        y = F.conv2d(y.reshape(1, n * c, h, w), filters, groups=groups)
        return y.view(n, -1, *y.shape[2:])


class TwoImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = Mixed()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.mixed(torch.cat([x[:, :6], x[:, 6:]])).chunk(2)
        return first * second


def of_a_sequence(x: Tensor) -> Tensor:
    n, c, length = x.shape
    filters = x[..., :3].softmax(-1).reshape(n * c, 1, 3)
    return F.conv1d(x.reshape(1, n * c, length), filters, padding=1, groups=n * c).view(n, c, length)


def sequence_made_longer(x: Tensor) -> Tensor:
    n, c, length = x.shape
    filters = x[..., :6].reshape(n * c, 2, 3)
    y = F.conv_transpose1d(
        x.reshape(1, n * c, length), filters, stride=3, padding=1, output_padding=1, groups=n
    )
    return y.view(n, 2, -1)


def made_larger(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    filters = x[:, :, :2, :3].reshape(n * c, 1, 2, 3)
    geometry: dict[str, Any] = {"stride": (2, 3), "padding": (1, 2), "output_padding": (1, 0)}
    y = F.conv_transpose2d(x.reshape(1, n * c, h, w), filters, dilation=(2, 1), groups=2 * n, **geometry)
    return y.view(n, 2, *y.shape[2:])


NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mixed": (Mixed(padding=1), (6, 8, 9)),
    "mixed, steps": (Mixed(stride=2, padding=1, dilation=2), (6, 8, 9)),
    "mixed, 1x1": (Mixed(1), (6, 8, 9)),
    "mixed, groups": (Mixed(groups=2, bias=None), (6, 8, 9)),
    "mixed, an even kernel": (Mixed(2, bias="constant", padding="same"), (6, 8, 9)),
    "styled": (Styled(up=False), (6, 8, 8)),
    "styled, made larger": (Styled(up=True), (6, 8, 8)),
    "template": (Template(by_channel=False), (6, 12, 13)),
    "template by channels": (Template(by_channel=True), (6, 12, 13)),
    "two images": (TwoImages(), (12, 6, 7)),
    "of a sequence": (Lambda(of_a_sequence), (5, 9)),
    "sequence made longer": (Lambda(sequence_made_longer), (4, 9)),
    "made larger": (Lambda(made_larger), (6, 4, 5)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_filters_computed_from_the_image(name: str) -> None:
    network, shape = NETWORKS[name]
    agrees(network, images(*shape))


def test_filters_that_all_images_would_share_are_refused() -> None:
    model = Lambda(lambda x: F.conv2d(x, x[:, :, :3, :3]))
    is_refused(model, (6, 8, 8), "which all images would share", "make each image a group")


def test_filters_of_a_constant_image_are_refused() -> None:
    model = Lambda(lambda x: F.conv2d(torch.ones(1, 6, 8, 8), x[:, :, :3, :3]).mean())
    is_refused(model, (6, 8, 8), "which all images would share", "make each image a group")
