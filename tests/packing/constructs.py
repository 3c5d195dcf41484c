"""One small network for each construct of the networks that people use."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5


def conv(
    i: int, o: int, k: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU, groups: int = 1
) -> nn.Module:
    layers = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), act()]
    return nn.Sequential(*layers)


class Classifier(nn.Module):
    """A stem, a body that a subclass adds, and a head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.head = conv(3, width, stride=2), nn.Linear(width, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Gated(Classifier):
    """An inverted bottleneck with squeeze-excitation and hardswish: MobileNetV3, EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.spread = conv(16, 32, 1, act=nn.Hardswish), conv(32, 32, 3, act=nn.SiLU, groups=32)
        self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.shrink = conv(32, 16, 1, act=nn.Identity)

    def body(self, x: Tensor) -> Tensor:
        y = self.spread(self.grow(x))
        gate = F.hardsigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.shrink(y * gate)


class Dense(Classifier):
    def __init__(self) -> None:
        super().__init__(48)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(16 + 8 * i), nn.ReLU(), nn.Conv2d(16 + 8 * i, 8, 3, padding=1))
            for i in range(4)
        )
        self.stem = conv(3, 16)

    def body(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return F.avg_pool2d(torch.cat(features, 1), 2)


class Branches(Classifier):
    """Inception and SqueezeNet: branches that are joined; ceil-mode pools."""

    def __init__(self) -> None:
        super().__init__(34)
        self.stem, self.a, self.b = conv(3, 16), conv(16, 10, 1), conv(16, 8, 3)
        self.c = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv(16, 16, 1))

    def body(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        return torch.cat([self.a(x), self.b(x), self.c(x)], 1)


class Shuffle(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(conv(8, 8, 1), conv(8, 8, 3, groups=8, act=nn.Identity), conv(8, 8, 1))

    def body(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        x = torch.cat((a, self.branch(b)), dim=1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class ChannelsLast(Classifier):
    """ConvNeXt, with the response normalisation of its second version and layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(16, 16, 7, padding=3, groups=16), nn.LayerNorm(16)
        self.grow, self.shrink = nn.Linear(16, 32), nn.Linear(32, 16)
        self.weight, self.gamma = nn.Parameter(torch.randn(32)), nn.Parameter(torch.rand(16))

    def body(self, x: Tensor) -> Tensor:
        y = F.gelu(self.grow(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        size = y.norm(p=2, dim=(1, 2), keepdim=True)
        y = y + self.weight * (y * (size / (size.mean(-1, keepdim=True) + 1e-6)))
        return x + (self.gamma * self.shrink(y)).permute(0, 3, 1, 2)


class Transformer(nn.Module):
    """A class token, positions, attention and an MLP on tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 17, 16))
        self.norm1, self.norm2, self.norm = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        n = len(x)
        x = torch.cat([self.token.expand(n, -1, -1), x], 1) + self.positions
        q, k, v = self.qkv(self.norm1(x)).reshape(n, 17, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, 17, 16)
        x = x + self.out(attended)
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x)[:, 0])


class Mixer(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.tokens = nn.Sequential(nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 64))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def body(self, x: Tensor) -> Tensor:
        y = x.flatten(2).transpose(1, 2)
        y = y + self.tokens(self.norm1(y).transpose(1, 2)).transpose(1, 2)
        y = y + self.channels(self.norm2(y))
        return y.transpose(1, 2).reshape(x.shape)


class Pooling(Classifier):
    """PoolFormer: a pool minus its input, group norm; and a pool of windows of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.GroupNorm(1, 16), nn.Conv2d(16, 16, 1)
        self.scale = nn.Parameter(torch.rand(16, 1, 1))

    def body(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.scale * (F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y)
        return F.adaptive_avg_pool2d(self.mix(x), 3) + F.adaptive_max_pool2d(x, 3)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low, self.bottom = conv(3, 16), conv(16, 16), conv(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.join, self.last = conv(32, 16), conv(32, 16)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.low(F.max_pool2d(a, 2))
        y = self.join(torch.cat([self.up(self.bottom(F.max_pool2d(b, 2))), b], 1))
        y = F.interpolate(y, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(self.last(torch.cat([y, a], 1)))


class Enlarged(nn.Module):
    """Super-resolution: reflected borders and a pixel shuffle; dense and any size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect")
        self.middle, self.last = conv(16, 16), nn.Conv2d(16, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.last(self.middle(self.first(x))), 2) + F.interpolate(x, scale_factor=2)


class TwoHeads(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.middle, self.map = conv(16, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        x = self.middle(self.stem(x))
        return {"classes": self.head(x.mean((2, 3))), "map": self.map(x)}


def audio() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv1d(1, 16, 9, stride=2), nn.BatchNorm1d(16), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv1d(16, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(32, CLASSES))


IMAGE = (3, 16, 16)
CONSTRUCTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gate": (Gated, IMAGE), "dense block": (Dense, IMAGE), "branches": (Branches, (3, 15, 18)),
    "shuffle": (Shuffle, IMAGE), "channels last": (ChannelsLast, IMAGE), "transformer": (Transformer, IMAGE),
    "mixer": (Mixer, IMAGE), "pooling": (Pooling, IMAGE), "u-net": (UNet, IMAGE),
    "enlarged": (Enlarged, (3, 9, 11)), "two heads": (TwoHeads, IMAGE), "audio": (audio, (1, 200)),
}  # fmt: skip
