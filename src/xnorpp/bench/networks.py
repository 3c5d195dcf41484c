"""The networks of a comparison: a packed binary one, and the real-valued baseline that the other engines run.

Random weights, but the statistics of every batch norm are those of the network's own activations, because
thresholds and signs that never change would be unlike any trained network.

The baseline of a ResNet is the ordinary one of He et al. (convolution, batch norm, ReLU), with the same
convolutions and multiply-adds. The pre-activation order that binary networks need would leave the float
engines batch norms that they cannot fold into a convolution; the comparison is against the network that
people run with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.models.registry import NETWORKS
from xnorpp.models.resnet import resolve_stem

DEFAULT = {"name": "resnet18", "method": "xnor++", "scale": "channel_height_width", **PAPER_BLOCK}


def binary_network(config: Mapping[str, Any] = DEFAULT, *, seed: int = 0) -> nn.Module:
    """The network of a configuration with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return settle_norms(create_model(**config), config)


def baseline_network(config: Mapping[str, Any], *, seed: int = 0) -> nn.Module:
    """The real-valued network of the same shape, in evaluation mode."""
    torch.manual_seed(seed)
    name = str(config["name"])
    size = _size(config)
    if name in ("resnet18", "resnet34") and resolve_stem(size, config.get("stem", "auto"), None)[0] == "7x7":
        classes = config.get("num_classes") or NETWORKS[name].num_classes
        counts = (2, 2, 2, 2) if name == "resnet18" else (3, 4, 6, 3)
        model: nn.Module = PostActivationResNet(counts, int(config.get("in_channels", 3)), int(classes))
    else:
        names = (
            "name",
            "input_size",
            "num_classes",
            "in_channels",
            "shortcut",
            "stem",
            "stem_pool",
            "width",
            "reduction",
            "dropout",
            "hidden",
        )
        model = create_model(method="real", **{key: config[key] for key in names if key in config})
    return settle_norms(model, config)


def _size(config: Mapping[str, Any]) -> tuple[int, int]:
    size = config.get("input_size") or NETWORKS[str(config["name"])].input_size
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


@torch.no_grad()
def settle_norms(model: nn.Module, config: Mapping[str, Any], *, batch: int = 4) -> nn.Module:
    """Set every batch norm's running statistics to those of random images, averaged over two batches."""
    height, width = _size(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    for _ in range(2):
        model(torch.randn(batch, int(config.get("in_channels", 3)), height, width))
    return model.eval()


class PostActivationResNet(nn.Module):
    """ResNet-18 and -34 of He et al.: convolution, batch norm, ReLU; 1x1 shortcuts with the stride."""

    def __init__(self, blocks: tuple[int, ...], in_channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        layers: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for index in range(count):
                layers.append(_PostActivationBlock(inputs, width, 2 if stage and not index else 1))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.stem(x)))
        return result


class _PostActivationBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.relu(self.path(x) + self.shortcut(x))
        return result
