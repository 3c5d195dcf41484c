"""Small networks as other people write them, for the tests of `check_packable` and of the analysis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(True)]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10))


class PostActivationBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, head: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.layer1 = PostActivationBlock(8, 8)
        self.layer2 = PostActivationBlock(8, 16, 2)
        self.fc = nn.Linear(16, 10) if head else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return x if self.fc is None else self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 2, 1)
        self.expand = nn.Conv2d(channels // 2, channels, 1)
        self.gate = gate or nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


class SqueezeExcitationNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.se = SqueezeExcitation(8)
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.bn = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(self.se(self.stem(x)))))
        return self.fc(x.mean((2, 3)))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.classes = nn.Linear(8, 10)
        self.boxes = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).mean((2, 3))
        return self.classes(x), self.boxes(x)


class DictOutput(TwoHeads):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        classes, boxes = super().forward(x)
        return {"classes": classes, "boxes": boxes}


@dataclass
class Detection:
    classes: Tensor
    boxes: Tensor


class DataclassOutput(TwoHeads):
    def forward(self, x: Tensor) -> Detection:  # type: ignore[override]
        return Detection(*super().forward(x))


class Sine(nn.Module):
    """An activation that has no packed form."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.lgamma(x)


def sine() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), Sine(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), Sine(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8),
        nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.merge = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.middle(F.max_pool2d(fine, 2))
        x = self.merge(torch.cat([self.up(coarse), fine], 1))
        return F.interpolate(self.head(x), scale_factor=2, mode="nearest")


class AntialiasedUNet(UNet):
    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.middle(F.max_pool2d(fine, 2))
        x = F.interpolate(self.up(coarse), scale_factor=1.0, mode="bicubic", antialias=True)
        return self.head(self.merge(torch.cat([x, fine], 1)))


class ShuffleUnit(nn.Module):
    def __init__(self, channels: int, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups
        self.conv1 = nn.Conv2d(channels, channels, 1, groups=groups)
        self.conv2 = nn.Conv2d(channels, channels, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = self.conv1(x).view(n, self.groups, c // self.groups, h, w)
        y = torch.transpose(y, 1, 2).contiguous()
        return F.relu(x + self.conv2(y.view(n, c, h, w)))


class ShuffleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.unit = ShuffleUnit(8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.unit(self.stem(x)).mean((2, 3)))


def adaptive_pool() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(288, 10)
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def sequences() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(8, 10),
    )  # fmt: skip


class Tokens(nn.Module):
    """A convolutional stem, attention on the pixels, which may have a mask or added keys, and a convolutional
    tail."""

    def __init__(self, masked: bool = False, added: bool = False) -> None:
        super().__init__()
        self.masked = masked
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=added)
        self.tail = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        n, c, h, w = x.shape
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        mask = torch.zeros(n, h * w, dtype=torch.bool) if self.masked else None
        tokens = tokens + self.attention(tokens, tokens, tokens, key_padding_mask=mask)[0]
        x = self.tail(tokens.transpose(1, 2).reshape(n, c, h, w))
        return self.fc(F.relu(x).mean((2, 3)))


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if x.amax() > 1e6:
            x = x / 2
        return torch.lgamma(x).mean((2, 3))
