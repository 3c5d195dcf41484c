"""Networks with the constructs that people write, one each: `zoo.py --unlisted` tries them besides timm's."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

CLASSES = 10
C = 24  # channels of most constructs
IMAGE, SOUND, TOKENS = (3, 32, 32), (1, 1024), (12, 32)


def conv(i: int, o: int, k: int = 3, s: int = 1, **options: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, k, s, k // 2 * options.get("dilation", 1), bias=False, **options),
        nn.BatchNorm2d(o),
        nn.ReLU(),
    )


class Net(nn.Module):
    """A stem of 16x16 pixels, what `block` makes of them, and a linear layer over the mean."""

    def __init__(self, block: nn.Module, width: int = C) -> None:
        super().__init__()
        self.stem, self.block = conv(3, C, 3, 2), block
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean((2, 3)))


class Do(nn.Module):
    """A function as a module, with the modules that it uses."""

    def __init__(self, run: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, *self.parts)


def residual(i: int, o: int) -> nn.Module:
    return Do(lambda x, a, b: F.relu_(b(a(x)) + x), conv(i, o), conv(o, i))


class Decoder(nn.Module):
    """A U-Net whose way up, gate and join are given."""

    def __init__(self, up: Callable[[int, int], nn.Module], gate: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 16), conv(16, 32, 3, 2), conv(32, 48, 3, 2)
        self.up1, self.up2 = up(48, 32), up(32, 16)
        self.join1, self.join2 = conv(64, 32), conv(32, 16)
        self.gates = nn.ModuleList([nn.Conv2d(64, 1, 1), nn.Conv2d(32, 1, 1)] if gate else [])
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(a)
        y = self.c(b)
        for i, (up, join, skip) in enumerate(((self.up1, self.join1, b), (self.up2, self.join2, a))):
            y = up(y)
            if y.shape[-2:] != skip.shape[-2:]:
                more = [skip.size(3) - y.size(3), skip.size(2) - y.size(2)]
                y = F.pad(y, [more[0] // 2, more[0] - more[0] // 2, more[1] // 2, more[1] - more[1] // 2])
            if len(self.gates):
                skip = skip * torch.sigmoid(self.gates[i](torch.cat([y, skip], dim=1)))
            y = join(torch.cat([y, skip], dim=1))
        return self.head(y)


def bicubic(i: int, o: int) -> nn.Module:
    return nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic"), nn.Conv2d(i, o, 1))


def interpolated(i: int, o: int) -> nn.Module:
    return Do(
        lambda x, c: c(F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)),
        nn.Conv2d(i, o, 1),
    )


class ASPP(nn.Module):
    """DeepLab's head, and its mask in the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2))
        self.branches = nn.ModuleList([conv(32, 16, 1), *(conv(32, 16, 3, dilation=d) for d in (2, 4))])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 16, 1), nn.ReLU())
        self.project, self.drop, self.head = conv(64, 16, 1), nn.Dropout(0.5), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        size, y = x.shape[-2:], self.body(x)
        pooled = F.interpolate(self.pool(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = self.drop(self.project(torch.cat([*(b(y) for b in self.branches), pooled], dim=1)))
        return {"out": F.interpolate(self.head(y), size=size, mode="bilinear", align_corners=False)}


class FPN(nn.Module):
    """Features of three sizes; heads for a heat map of keypoints and for classes."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, 16, 3, 2), conv(16, 32, 3, 2), conv(32, 48, 3, 2)])
        self.side = nn.ModuleList(nn.Conv2d(n, C, 1) for n in (16, 32, 48))
        self.smooth = nn.ModuleList(nn.Conv2d(C, C, 3, padding=1) for _ in range(3))
        self.keypoints = nn.Sequential(nn.ConvTranspose2d(C, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 5, 1))
        self.classes = nn.Linear(3 * C, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = []
        for layer in self.down:
            x = layer(x)
            levels.append(x)
        top = [side(y) for side, y in zip(self.side, levels)]
        for i in (1, 0):
            top[i] = top[i] + F.interpolate(top[i + 1], size=top[i].shape[-2:], mode="nearest")
        top = [smooth(y) for smooth, y in zip(self.smooth, top)]
        pooled = torch.cat([F.adaptive_max_pool2d(y, 1).flatten(1) for y in top], 1)
        return self.keypoints(top[0]), self.classes(pooled)


def cbam() -> nn.Module:
    def run(x: Tensor, shared: nn.Module, spatial: nn.Module) -> Tensor:
        both = shared(F.adaptive_avg_pool2d(x, 1)) + shared(F.adaptive_max_pool2d(x, 1))
        x = x * torch.sigmoid(both)
        maps = torch.cat([torch.max(x, 1, keepdim=True)[0], torch.mean(x, 1).unsqueeze(1)], dim=1)
        return x * torch.sigmoid(spatial(maps))

    shared = nn.Sequential(nn.Conv2d(C, 6, 1, bias=False), nn.ReLU(), nn.Conv2d(6, C, 1, bias=False))
    return Do(run, shared, nn.Conv2d(2, 1, 7, padding=3, bias=False))


def eca() -> nn.Module:
    def run(x: Tensor, c: nn.Module, after: nn.Module) -> Tensor:
        y = c(F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return after(x * y.sigmoid().expand_as(x))

    return Do(run, nn.Conv1d(1, 1, 3, padding=1, bias=False), conv(C, C))


def ghost() -> nn.Module:
    def run(x: Tensor, main: nn.Module, cheap: nn.Module) -> Tensor:
        y = main(x)
        return torch.cat([y, cheap(y)], dim=1)[:, :C, :, :]

    return Do(run, conv(C, 14, 1), conv(14, 14, 3, groups=14))


def res2net() -> nn.Module:
    def run(x: Tensor, *convs: nn.Module) -> Tensor:
        parts, out = torch.split(x, C // 4, 1), []
        for i, part in enumerate(parts):
            y = part if i == 0 else convs[i - 1](part if i == 1 else part + out[-1])
            out.append(y)
        return torch.cat(out, 1)

    return Do(run, *(conv(C // 4, C // 4) for _ in range(3)))


def involution(k: int = 3, groups: int = 4) -> nn.Module:
    def run(x: Tensor, reduce: nn.Module, span: nn.Module, after: nn.Module) -> Tensor:
        n, c, h, w = x.shape
        weight = span(reduce(x)).view(n, groups, k * k, h, w).unsqueeze(2)
        windows = F.unfold(x, k, padding=k // 2).view(n, groups, c // groups, k * k, h, w)
        return after((weight * windows).sum(dim=3).view(n, c, h, w))

    return Do(run, conv(C, 8, 1), nn.Conv2d(8, k * k * groups, 1), conv(C, C))


class Window(nn.Module):
    """Swin: shifted windows, a relative position bias and a mask."""

    def __init__(self, side: int = 16, window: int = 4, heads: int = 3, dim: int = C) -> None:
        super().__init__()
        self.window, self.heads, self.shift = window, heads, window // 2
        self.norm, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        place = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        apart = (place[:, :, None] - place[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", apart[..., 0] * (2 * window - 1) + apart[..., 1])
        areas = torch.zeros(1, side, side, 1)
        for i, rows in enumerate((slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None))):
            for j, cols in enumerate(
                (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None))
            ):
                areas[:, rows, cols] = 3 * i + j
        areas = self.parts(areas).squeeze(-1)
        differ = areas[:, None] != areas[:, :, None]
        self.register_buffer("mask", torch.zeros(differ.shape).masked_fill(differ, -100.0))

    def parts(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = x.view(n, h // self.window, self.window, w // self.window, self.window, c)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, self.window**2, c)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        y = self.parts(torch.roll(self.norm(x), shifts=(-self.shift, -self.shift), dims=(1, 2)))
        b, t, _ = y.shape
        q, k, v = self.qkv(y).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.table[self.index.view(-1)].view(t, t, -1).permute(2, 0, 1).unsqueeze(0)
        count = self.mask.shape[0]
        scores = scores.view(b // count, count, self.heads, t, t) + self.mask.unsqueeze(1).unsqueeze(0)
        y = (scores.view(-1, self.heads, t, t).softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        y = self.proj(y).view(n, h // self.window, w // self.window, self.window, self.window, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return (x + torch.roll(y, (self.shift, self.shift), (1, 2))).permute(0, 3, 1, 2)


def mixer() -> nn.Module:
    def run(x: Tensor, n1: nn.Module, tokens: nn.Module, n2: nn.Module, channels: nn.Module) -> Tensor:
        y = x.flatten(2).transpose(1, 2)
        y = y + tokens(n1(y).transpose(1, 2)).transpose(1, 2)
        y = y + channels(n2(y))
        return y.transpose(1, 2).unflatten(2, (16, 16))

    mlp = [nn.Sequential(nn.Linear(n, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, n)) for n in (256, C)]
    return Do(run, nn.LayerNorm(C), mlp[0], nn.LayerNorm(C), mlp[1])


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def gated(run: Callable[[Tensor], Tensor]) -> nn.Module:
    """A feed-forward part with a gate, between RMS norm and a linear layer."""

    def whole(x: Tensor, norm: nn.Module, first: nn.Module, last: nn.Module) -> Tensor:
        y = x.permute(0, 2, 3, 1)
        return (y + last(run(first(norm(y))))).permute(0, 3, 1, 2)

    return Do(whole, RMSNorm(C), nn.Linear(C, 64), nn.Linear(32, C))


def geglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return a * F.gelu(b)


def swiglu(x: Tensor) -> Tensor:
    return F.silu(x[..., :32]) * x[..., 32:]


def attention(run: Callable[..., Tensor], *parts: nn.Module) -> nn.Module:
    """A block over the pixels as tokens."""

    def whole(x: Tensor, pool: nn.Module, *given: nn.Module) -> Tensor:
        x = pool(x)
        n, c, h, w = x.shape
        return run(x.view(n, c, h * w).permute(0, 2, 1), *given).permute(0, 2, 1).reshape(n, -1, h, w)

    return Do(whole, nn.AvgPool2d(2), *parts)


def einsum(x: Tensor, qkv: nn.Module, out: nn.Module) -> Tensor:
    q, k, v = qkv(x).view(*x.shape[:2], 3, 3, C // 3).unbind(2)
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(C // 3)
    return x + out(torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).flatten(2))


def projected(run: Callable[..., Tensor]) -> nn.Module:
    """`run` with a projection to queries, keys and values, and one back."""
    return Net(attention(run, nn.Linear(C, 3 * C), nn.Linear(C, C)))


def linear_attention(x: Tensor, qkv: nn.Module, out: nn.Module) -> Tensor:
    q, k, v = qkv(x).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    kv = torch.einsum("bnd,bne->bde", k, v)
    z = 1 / (torch.einsum("bnd,bd->bn", q, k.sum(dim=1)) + 1e-6)
    return x + out(torch.einsum("bnd,bde,bn->bne", q, kv, z))


def masked(x: Tensor, qkv: nn.Module, out: nn.Module) -> Tensor:
    q, k, v = qkv(x).chunk(3, dim=-1)
    later = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), diagonal=1)
    scores = (q @ k.transpose(1, 2) * C**-0.5).masked_fill(later, float("-inf"))
    return x + out(F.softmax(scores, dim=-1) @ v)


class Rotary(nn.Module):
    """Multi-head attention with rotary positions."""

    def __init__(self, tokens: int = 64, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C)
        angle = torch.arange(tokens)[:, None] * 0.1 ** torch.arange(0, C // heads, 2)
        self.register_buffer("cos", angle.cos().repeat(1, 2))
        self.register_buffer("sin", angle.sin().repeat(1, 2))

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return x + self.out(y.transpose(1, 2).contiguous().view(n, t, c))


class WaveNet(nn.Module):
    """Causal dilated convolutions with gates, residuals and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, C, 8, stride=4)
        self.dilated = nn.ModuleList(nn.Conv1d(C, 2 * C, 2, dilation=2**i) for i in range(4))
        self.mix = nn.ModuleList(nn.Conv1d(C, C, 1) for _ in range(4))
        self.head = nn.Linear(C, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.start(x), 0
        for i, (dilated, mix) in enumerate(zip(self.dilated, self.mix)):
            a, b = dilated(F.pad(x, (2**i, 0))).chunk(2, 1)
            y = mix(torch.tanh(a) * torch.sigmoid(b))
            skip = skip + y
            x = x + y
        return self.head(F.relu(skip).mean(-1))


class TCN(nn.Module):
    """Convolutions with weight norm whose end is cut off, as temporal networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, C, 16, 8)
        self.convs = nn.ModuleList(
            parametrizations.weight_norm(nn.Conv1d(C, C, 3, padding=2 * 2**i, dilation=2**i))
            for i in range(3)
        )
        self.head = nn.Linear(C, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, layer in enumerate(self.convs):
            x = F.leaky_relu(layer(x)[:, :, : -2 * 2**i].contiguous() + x, 0.1)
        return self.head(x[:, :, -1])


def spectrum() -> nn.Module:
    """Frames of sound as an image with one channel, then convolutions."""
    frames = Do(
        lambda x, c: torch.log1p(c(x).abs()).unsqueeze(1), nn.Conv1d(1, 32, 64, stride=16, bias=False)
    )
    return nn.Sequential(
        frames, conv(1, 16), nn.MaxPool2d(2), conv(16, 32), nn.InstanceNorm2d(32),
        nn.AdaptiveAvgPool2d((1, None)), nn.Flatten(), nn.LazyLinear(CLASSES),
    )  # fmt: skip


def spectral() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(C, C, 3, padding=1)), nn.LeakyReLU(0.2))


def chosen(x: Tensor, layer: nn.Module) -> Tensor:
    """`where`, comparisons, clamps and in-place operations."""
    y = layer(x)
    y = torch.where(y > 0.3, y, 0.1 * y)
    y[:, :4] = 0
    y += x
    y.mul_(0.5).clamp_(min=-1.5)
    mask = (torch.arange(y.shape[-1]) % 2 == 0).to(y.dtype)
    return torch.maximum(y * mask, y.neg() * 0.25)


def views(x: Tensor, layer: nn.Module) -> Tensor:
    n, c, h, w = x.size()
    y = layer(x).view(n, c // 2, 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)
    y = y.reshape(n, c, h // 2, 2, w // 2, 2).amax(dim=(3, 5))
    gram = torch.bmm(y.view(n, c, -1), y.view(n, c, -1).transpose(1, 2)) / (h * w)
    return torch.matmul(gram, y.view(n, c, -1)).view_as(y) + y


def statistics(x: Tensor, layer: nn.Module) -> Tensor:
    """Normalisation by hand, standard deviations and pools of their own."""
    y = layer(x)
    y = (y - y.mean(dim=(2, 3), keepdim=True)) / (y.std(dim=(2, 3), keepdim=True) + 1e-5)
    y = y * y.pow(2).mean(dim=1, keepdim=True).add(1e-6).rsqrt()
    return torch.cat(
        [y, F.normalize(x, dim=1), y.softmax(dim=1), F.avg_pool2d(x, 3, 1)[:, :, :1, :1].expand_as(y)], 1
    )


class Positions(nn.Module):
    """A class token, learned positions and an encoder layer of torch's own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.patch, self.layer = nn.Conv2d(3, C, 8, 8), layer
        self.token, self.place = nn.Parameter(torch.randn(1, 1, C)), nn.Parameter(torch.randn(1, 17, C))
        self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.token.repeat(x.shape[0], 1, 1), x], dim=1) + self.place
        return self.head(self.norm(self.layer(x))[:, 0])


def encoder(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(C, 4, 48, batch_first=True, **options)  # type: ignore[arg-type]


def own_attention(x: Tensor, layer: nn.MultiheadAttention) -> Tensor:
    return x + layer(x, x, x, need_weights=False)[0]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = conv(3, C, 3, 2), nn.Linear(C + 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """An image, and four numbers as the first of its pixels."""
        return self.head(torch.cat([self.body(x).mean((2, 3)), x[:, 0, 0, :4]], dim=1))


def sequence_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 48), nn.GLU(), nn.LayerNorm(24), nn.Flatten(), nn.Linear(12 * 24, CLASSES)
    )


CONSTRUCTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "unet_transposed": (lambda: Decoder(lambda i, o: nn.ConvTranspose2d(i, o, 2, 2)), IMAGE),
    "unet_transposed_3": (lambda: Decoder(lambda i, o: nn.ConvTranspose2d(i, o, 3, 2, 1, 1)), (3, 30, 34)),
    "unet_bicubic": (lambda: Decoder(bicubic), IMAGE),
    "unet_interpolate": (lambda: Decoder(interpolated), IMAGE),
    "attention_unet": (lambda: Decoder(lambda i, o: nn.ConvTranspose2d(i, o, 4, 2, 1), gate=True), IMAGE),
    "aspp": (ASPP, IMAGE),
    "fpn_keypoints": (FPN, IMAGE),
    "cbam": (lambda: Net(cbam()), IMAGE),
    "eca": (lambda: Net(eca()), IMAGE),
    "ghost": (lambda: Net(ghost()), IMAGE),
    "res2net_splits": (lambda: Net(res2net()), IMAGE),
    "involution": (lambda: Net(involution()), IMAGE),
    "swin_window": (lambda: Net(Window()), IMAGE),
    "mixer": (lambda: Net(mixer()), IMAGE),
    "geglu": (lambda: Net(gated(geglu)), IMAGE),
    "swiglu": (lambda: Net(gated(swiglu)), IMAGE),
    "glu": (lambda: Net(gated(lambda x: F.glu(x, dim=-1))), IMAGE),
    "einsum_attention": (lambda: projected(einsum), IMAGE),
    "linear_attention": (lambda: projected(linear_attention), IMAGE),
    "masked_fill": (lambda: projected(masked), IMAGE),
    "rotary": (lambda: Net(attention(lambda x, layer: layer(x), Rotary())), IMAGE),
    "multihead_attention": (
        lambda: Net(attention(own_attention, nn.MultiheadAttention(C, 3, batch_first=True))), IMAGE,
    ),
    "encoder_layer": (lambda: Positions(encoder()), IMAGE),
    "encoder_layer_norm_first": (lambda: Positions(encoder(norm_first=True, activation="gelu")), IMAGE),
    "encoder": (lambda: Positions(nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False)), IMAGE),
    "wavenet": (WaveNet, SOUND),
    "tcn_weight_norm": (TCN, SOUND),
    "spectrum": (spectrum, SOUND),
    "sequence_mlp": (sequence_mlp, TOKENS),
    "spectral_norm": (lambda: Net(spectral()), IMAGE),
    "where_and_in_place": (lambda: Net(Do(chosen, conv(C, C))), IMAGE),
    "views_of_shapes": (lambda: Net(Do(views, conv(C, C))), IMAGE),
    "statistics": (lambda: Net(Do(statistics, conv(C, C)), 4 * C), IMAGE),
    "joined_inputs": (TwoInputs, IMAGE),
    "residual_in_place": (lambda: Net(nn.Sequential(residual(C, 2 * C), residual(C, C))), IMAGE),
}  # fmt: skip
