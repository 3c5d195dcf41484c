"""Networks in the styles of published code, one each: `zoo.py --unlisted` tries them with the constructs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo_constructs import CLASSES, IMAGE, SOUND, C, Do, Net, conv

OFFSET = torch.tensor([0.1, -0.2, 0.3]).view(3, 1, 1)  # neither a parameter nor a buffer


def four_pools() -> nn.Module:
    """CBAM as its authors wrote it: four kinds of pooling, and a log-sum-exp by hand."""

    def run(x: Tensor, mlp: nn.Module, spatial: nn.Module) -> Tensor:
        size = (x.size(2), x.size(3))
        flat = x.view(x.size(0), x.size(1), -1)
        most, _ = torch.max(flat, dim=2, keepdim=True)
        pooled = [
            F.avg_pool2d(x, size, stride=size),
            F.max_pool2d(x, size, stride=size),
            F.lp_pool2d(x, 2, size, stride=size),
            most + (flat - most).exp().sum(dim=2, keepdim=True).log(),
        ]
        scale = sum(mlp(p) for p in pooled)
        x = x * torch.sigmoid(scale).unsqueeze(2).unsqueeze(3).expand_as(x)
        both = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1)
        return x * torch.sigmoid(spatial(both))

    mlp = nn.Sequential(nn.Flatten(), nn.Linear(C, 8), nn.ReLU(), nn.Linear(8, C))
    return Do(run, mlp, nn.Conv2d(2, 1, 7, padding=3, bias=False))


class GhostNet(nn.Module):
    """Bottlenecks of ghost modules whose width is odd, with squeeze-excitation and depthwise strides."""

    class Ghost(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.first, self.wanted = conv(i, math.ceil(o / 2), 1), o
            self.cheap = conv(math.ceil(o / 2), math.ceil(o / 2), 3, groups=math.ceil(o / 2))

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return torch.cat([y, self.cheap(y)], dim=1)[:, : self.wanted, :, :]

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = conv(3, 17, 3, 2), self.Ghost(17, 51), self.Ghost(51, 27)
        self.down = nn.Conv2d(51, 51, 3, 2, 1, groups=51, bias=False)
        self.excite = nn.Sequential(nn.Linear(51, 12), nn.ReLU(), nn.Linear(12, 51), nn.Hardsigmoid())
        self.short = nn.Sequential(nn.Conv2d(17, 17, 3, 2, 1, groups=17), conv(17, 27, 1))
        self.head, self.last = nn.Conv2d(27, 64, 1), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.down(self.one(x))
        n, c, _, _ = y.size()
        y = y * self.excite(F.adaptive_avg_pool2d(y, 1).view(n, c)).view(n, c, 1, 1)
        y = F.adaptive_avg_pool2d(self.two(y) + self.short(x), (1, 1))
        return self.last(F.dropout(F.hardswish(self.head(y)).view(n, -1), p=0.2, training=self.training))


class GMLP(nn.Module):
    """Spatial gating over tokens, a 1-D convolution whose channels are the tokens."""

    def __init__(self, width: int = 36) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.inner, self.tokens = nn.LayerNorm(2 * width), nn.Conv1d(64, 64, 1)
        self.back, self.head = nn.Linear(2 * width, width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        u, v = F.gelu(self.wide(self.norm(x))).chunk(2, dim=-1)
        return self.head((x + self.back(u * self.tokens(self.inner(v)))).mean(1))


class RelativePositions(nn.Module):
    """Attention with a table of relative positions, whose index is a plain attribute."""

    def __init__(self, width: int = 36, heads: int = 3, side: int = 8) -> None:
        super().__init__()
        self.heads, self.patches = heads, nn.Conv2d(3, width, 4, 4)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads) * 0.2)
        self.gain = nn.Parameter(torch.full((width,), 0.5))
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 72), nn.GELU(), nn.Linear(72, width))
        places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + side - 1
        self.index = apart[..., 0] * (2 * side - 1) + apart[..., 1]
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).permute(0, 2, 1)
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        bias = self.table[self.index.view(-1)].view(t, t, -1).permute(2, 0, 1).contiguous()
        scores = (q * (c // self.heads) ** -0.5) @ k.mT + bias.unsqueeze(0)
        x = x + self.gain * self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c))
        return self.head((x + self.mlp(x)).mean(1))


def coordinates(x: Tensor) -> Tensor:
    """CoordConv: rows, columns and distance as channels, computed for every batch."""
    n, _, h, w = x.size()
    columns = torch.arange(w).repeat(1, h, 1).float() / (w - 1) * 2 - 1
    rows = torch.arange(h).repeat(1, w, 1).transpose(1, 2).float() / (h - 1) * 2 - 1
    columns, rows = columns.repeat(n, 1, 1, 1).type_as(x), rows.repeat(n, 1, 1, 1).type_as(x)
    far = torch.sqrt(torch.pow(columns - 0.5, 2) + torch.pow(rows - 0.5, 2))
    return torch.cat([x, columns, rows, far], dim=1)


class Hypercolumns(nn.Module):
    """Features of every depth in the size of the image, and a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, 16), conv(16, 24, 3, 2), conv(24, 32, 3, 2), conv(32, 40, 3, 2)])
        self.mix, self.head = conv(112, 48, 1), nn.Conv2d(48, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for layer in self.down:
            found.append(layer(found[-1] if found else x))
        size = x.shape[2:]
        wide = [F.interpolate(y, size=size, mode="bilinear", align_corners=True) for y in found]
        return self.head(self.mix(torch.cat(wide, 1)))


class Dense(nn.Module):
    """Three layers of a dense block and a transition."""

    def __init__(self, transition: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, width = nn.Conv2d(3, 18, 3, 2, 1), 18
        self.layers = nn.ModuleList()
        for _ in range(3):
            bottle = [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 36, 1, bias=False)]
            wide = [nn.BatchNorm2d(36), nn.ReLU(), nn.Conv2d(36, 11, 3, padding=1, bias=False)]
            self.layers.append(nn.Sequential(*bottle, *wide))
            width += 11
        self.end = nn.Sequential(nn.BatchNorm2d(width), transition(width), nn.BatchNorm2d(width // 2))
        self.head = nn.Linear(width // 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(F.relu(self.end(x)).mean((2, 3)))


def selective_kernels() -> nn.Module:
    def run(x: Tensor, one: nn.Module, two: nn.Module, *linear: nn.Module) -> Tensor:
        both = torch.cat([one(x).unsqueeze(1), two(x).unsqueeze(1)], 1)
        z = F.relu(linear[0](both.sum(1).mean(-1).mean(-1)))
        share = torch.cat([layer(z).unsqueeze(1) for layer in linear[1:]], 1).softmax(1)
        return (both * share.unsqueeze(-1).unsqueeze(-1)).sum(dim=1)

    return Do(run, conv(C, C), conv(C, C, dilation=2), nn.Linear(C, 16), nn.Linear(16, C), nn.Linear(16, C))


def coordinate_attention() -> nn.Module:
    def run(x: Tensor, squeeze: nn.Module, rows: nn.Module, columns: nn.Module) -> Tensor:
        h, w = x.shape[2:]
        y = torch.cat([F.adaptive_avg_pool2d(x, (None, 1)), F.adaptive_avg_pool2d(x, (1, None)).mT], 2)
        a, b = torch.split(F.hardswish(squeeze(y)), [h, w], dim=2)
        return x * rows(a).sigmoid() * columns(b.permute(0, 1, 3, 2)).sigmoid()

    squeeze = nn.Sequential(nn.Conv2d(C, 8, 1), nn.BatchNorm2d(8))
    return Do(run, squeeze, nn.Conv2d(8, C, 1), nn.Conv2d(8, C, 1))


def non_local() -> nn.Module:
    def run(x: Tensor, theta: nn.Module, phi: nn.Module, g: nn.Module, out: nn.Module) -> Tensor:
        n, c = x.size(0), x.size(1) // 2
        f = torch.matmul(theta(x).view(n, c, -1).permute(0, 2, 1), F.max_pool2d(phi(x), 2).view(n, c, -1))
        y = torch.matmul(f / f.size(-1), F.max_pool2d(g(x), 2).view(n, c, -1).permute(0, 2, 1))
        return x + out(y.permute(0, 2, 1).contiguous().view(n, c, *x.size()[2:]))

    return Do(run, *(nn.Conv2d(C, C // 2, 1) for _ in range(3)), nn.Conv2d(C // 2, C, 1))


def without_parameters(x: Tensor) -> Tensor:
    """SimAM."""
    squares = (x - x.mean(dim=[2, 3], keepdim=True)).pow(2)
    variance = squares.sum(dim=[2, 3], keepdim=True) / (x.shape[2] * x.shape[3] - 1)
    return x * torch.sigmoid(squares / (4 * (variance + 1e-4)) + 0.5)


class GeM(nn.Module):
    """Generalised means with a learned exponent, and cosines to learned directions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, C, 3, 2), conv(C, C), conv(C, C))
        self.p = nn.Parameter(torch.ones(1) * 2.7)
        self.directions = nn.Parameter(torch.randn(CLASSES, C))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x - OFFSET)
        y = F.avg_pool2d(y.clamp(min=1e-6).pow(self.p), (y.size(-2), y.size(-1))).pow(1.0 / self.p)
        return 16 * F.linear(F.normalize(y.flatten(1)), F.normalize(self.directions))


class Boxes(nn.Module):
    """A detector's stages and head: split blocks, pooling in a row, and places as means of distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.open, self.close = conv(3, 32, 3, 2), conv(32, 32, 1), conv(64, 32, 1)
        self.inner = nn.ModuleList([nn.Sequential(conv(16, 16), conv(16, 16)) for _ in range(2)])
        self.narrow, self.wide = conv(32, 16, 1), conv(64, 32, 1)
        self.classes, self.sides = nn.Conv2d(32, CLASSES, 1), nn.Conv2d(32, 32, 1)
        self.steps = nn.Conv2d(8, 1, 1, bias=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        parts = list(self.open(self.stem(x)).chunk(2, 1))
        parts.extend(layer(parts[-1]) for layer in self.inner)
        y = self.narrow(self.close(torch.cat(parts, 1)))
        row = [y]
        for _ in range(3):
            row.append(F.max_pool2d(row[-1], 5, 1, 2))
        y = self.wide(torch.cat(row, 1))
        sides = self.sides(y).flatten(2)
        n, _, a = sides.shape
        sides = self.steps(sides.view(n, 4, 8, a).transpose(2, 1).softmax(1)).view(n, 4, a)
        return {"classes": self.classes(y).flatten(2), "sides": sides}


class Recurrent(nn.Module):
    """1-D convolutions and a recurrent layer in both directions over a sound."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, o, k, s in ((1, 24, 9, 4), (24, 32, 5, 2), (32, 32, 3, 2)):
            layers += [nn.Conv1d(i, o, k, s, k // 2), nn.BatchNorm1d(o), nn.ReLU()]
        self.body, self.steps = nn.Sequential(*layers), nn.GRU(32, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.steps(F.max_pool1d(self.body(x), 4).transpose(1, 2))
        return self.head(y[:, -1])


class Statistics(nn.Module):
    """A speaker network: dilated 1-D convolutions, and mean and deviation weighted by attention."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, k, d in ((1, 16, 1), (40, 3, 2), (40, 3, 3)):
            layers += [nn.Conv1d(i, 40, k, 4 if i == 1 else 1, dilation=d), nn.ReLU(), nn.BatchNorm1d(40)]
        self.body = nn.Sequential(*layers)
        self.weigh = nn.Sequential(nn.Conv1d(40, 16, 1), nn.Tanh(), nn.Conv1d(16, 40, 1))
        self.head = nn.Linear(80, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        weights = torch.softmax(self.weigh(y), dim=2)
        mean = (y * weights).sum(2)
        deviation = torch.sqrt(((y**2) * weights).sum(2) - mean**2 + 1e-5)
        return self.head(torch.cat([mean, deviation], 1))


STYLES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cbam_four_pools": (lambda: Net(nn.Sequential(conv(C, C), four_pools(), conv(C, C))), IMAGE),
    "ghostnet_odd": (GhostNet, (3, 36, 36)),
    "convmixer_same": (
        lambda: Net(
            nn.Sequential(nn.Conv2d(C, C, 5, groups=C, padding="same"), nn.GELU(), nn.BatchNorm2d(C),
                          conv(C, C, 1), conv(C, C, 1))
        ),
        IMAGE,
    ),
    "gmlp": (GMLP, IMAGE),
    "relative_positions": (RelativePositions, IMAGE),
    "coordconv": (lambda: Net(nn.Sequential(Do(coordinates), conv(C + 3, C), conv(C, C))), (3, 30, 26)),
    "hypercolumns": (Hypercolumns, (3, 29, 35)),
    "dense_average": (
        lambda: Dense(lambda c: nn.Sequential(nn.ReLU(), nn.Conv2d(c, c // 2, 1), nn.AvgPool2d(2, 2))), IMAGE,
    ),
    "dense_max_ceil": (
        lambda: Dense(
            lambda c: nn.Sequential(nn.SiLU(), nn.Conv2d(c, c // 2, 1), nn.MaxPool2d(3, 2, ceil_mode=True))
        ),
        (3, 30, 30),
    ),
    "dense_blur": (
        lambda: Dense(
            lambda c: nn.Sequential(nn.LeakyReLU(0.1), nn.ReflectionPad2d(1),
                                    nn.Conv2d(c, c, 3, 2, groups=c, bias=False), nn.Conv2d(c, c // 2, 1))
        ),
        (3, 30, 30),
    ),
    "selective_kernels": (lambda: Net(selective_kernels()), IMAGE),
    "coordinate_attention": (lambda: Net(nn.Sequential(coordinate_attention(), conv(C, C))), (3, 32, 24)),
    "non_local": (lambda: Net(nn.Sequential(conv(C, C), non_local())), IMAGE),
    "simam": (lambda: Net(nn.Sequential(conv(C, C), Do(without_parameters), conv(C, C))), IMAGE),
    "gem_cosine": (GeM, IMAGE),
    "boxes": (Boxes, IMAGE),
    "recurrent_sound": (Recurrent, SOUND),
    "statistics_pooling": (Statistics, SOUND),
}  # fmt: skip
