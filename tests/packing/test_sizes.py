"""Networks of any size whose values get the size of others: against torch at odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp import pack
from xnorpp.nn import BinaryConv2d
from xnorpp.packing import PackError, verify
from xnorpp.runtime import reference

SIZES = ((32, 32), (17, 23), (40, 33), (63, 95), (50, 97))


class Net(nn.Module):
    """Features of three sizes, and what `decode` makes of them."""

    def __init__(self, decode: Callable[..., Any], stride: str = "conv") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.decode = decode
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        step = 2 if stride == "conv" else 1
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.MaxPool2d(2) if step == 1 else nn.Identity(),
                BinaryConv2d(8, 8, 3, stride=step, padding=1),
                nn.BatchNorm2d(8),
                nn.PReLU(),
            )
            for _ in range(3)
        )
        self.up = nn.Conv2d(16, 8, 1)
        self.head = nn.Conv2d(8, 2, 1)

    def encode(self, x: Tensor) -> list[Tensor]:
        features = [self.stem(x)]
        for down in self.down:
            features.append(down(features[-1]))
        return features

    def forward(self, x: Tensor) -> Any:
        return self.decode(self, x)


def decoder(join: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Net, Tensor], Tensor]:
    """A U-Net: deep features are made as large as earlier ones and joined with them."""

    def decode(net: Net, x: Tensor) -> Tensor:
        *skips, y = net.encode(x)
        for skip in skips[::-1]:
            y = net.up(join(y, skip))
        return net.head(y)

    return decode


def interpolated(y: Tensor, skip: Tensor, **options: Any) -> Tensor:
    return torch.cat([F.interpolate(y, size=skip.shape[-2:], **options), skip], 1)


def padded(y: Tensor, skip: Tensor) -> Tensor:
    y = F.interpolate(y, scale_factor=2)
    rows, columns = skip.size(2) - y.size(2), skip.size(3) - y.size(3)
    return torch.cat([F.pad(y, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2]), skip], 1)


def resized_where_needed(y: Tensor, skip: Tensor) -> Tensor:
    y = F.interpolate(y, scale_factor=2, mode="bilinear")
    if y.shape != skip.shape:
        y = F.interpolate(y, size=(skip.size()[2], skip.size()[3]), mode="bilinear", align_corners=True)
    return torch.cat([y, skip], 1)


def cut(y: Tensor, skip: Tensor) -> Tensor:
    y = F.interpolate(y, scale_factor=2)
    return torch.cat([y[:, :, : skip.shape[2], : skip.shape[3]], skip], 1)


def middle(y: Tensor, skip: Tensor) -> Tensor:
    y = F.interpolate(y, scale_factor=3)
    top, left = (y.shape[2] - skip.shape[2]) // 2, (y.shape[3] - skip.shape[3]) // 2
    return torch.cat([y[..., top : top + skip.shape[2], left : left + skip.shape[3]], skip], 1)


def rounded_middle(y: Tensor, skip: Tensor) -> Tensor:
    """As torchvision's CenterCrop has it."""
    y = F.interpolate(y, scale_factor=4)
    top, left = (round((y.shape[i] - skip.shape[i]) / 2.0) for i in (2, 3))
    return torch.cat([y[..., top : top + skip.shape[2], left : left + skip.shape[3]], skip], 1)


def head_to_input(net: Net, x: Tensor) -> Tensor:
    size = x.shape[-2:]
    return F.interpolate(net.head(net.encode(x)[-1]), size=size, mode="bilinear", align_corners=False)


def pyramid_pooling(net: Net, x: Tensor) -> Tensor:
    y = net.encode(x)[-1]
    rows, columns = y.size(2), y.size(3)
    for bins in (1, 2, 3, 6):
        pooled = F.adaptive_avg_pool2d(y, bins)
        y = net.up(
            torch.cat([y, F.interpolate(pooled, (rows, columns), mode="bilinear", align_corners=True)], 1)
        )
    return net.head(y)


def expanded(net: Net, x: Tensor) -> Tensor:
    y = net.encode(x)[-1]
    y = net.up(torch.cat([y, y.amax((2, 3), keepdim=True).expand_as(y)], 1))
    y = net.up(torch.cat([y, y.mean((2, 3), keepdim=True).repeat(1, 1, *y.shape[2:])], 1))
    return net.head(y)


def pooled_to_another(net: Net, x: Tensor) -> Tensor:
    first, *_, last = net.encode(x)
    size = last.shape[-2:]
    return net.head(last + F.adaptive_avg_pool2d(first, size) + F.adaptive_max_pool2d(first, size))


def whole_blocks(net: Net, x: Tensor) -> Tensor:
    rows, columns = x.shape[2:]
    x = F.pad(x, (0, -columns % 16, 0, (16 - rows % 16) % 16), mode="replicate")
    return F.interpolate(net.head(net.encode(x)[-1]), scale_factor=8)[:, :, :rows, :columns]


def whole_blocks_of_32(net: Net, x: Tensor) -> Tensor:
    """The next multiple, whether or not one of the tried images has it already."""
    rows, columns = x.shape[2:]
    y = F.interpolate(net.stem(x), size=(-(rows // -32) * 32, (columns // 32 + 1) * 32))
    return net.head(F.avg_pool2d(y, 8))


def smaller_images(net: Net, x: Tensor) -> Tensor:
    rows, columns = x.shape[-2:]
    half = net.stem(F.interpolate(x, size=(rows // 2, columns // 2), mode="bilinear", align_corners=True))
    twice = F.interpolate(net.stem(x), size=(rows * 2, columns * 2), mode="nearest-exact")
    return net.head(F.interpolate(half, (rows, columns)) + F.avg_pool2d(twice, 2))


def same_padding(net: Net, x: Tensor) -> Tensor:
    total = [max((-(-n // 2) - 1) * 2 + 3 - n, 0) for n in x.shape[2:]]
    edges = [total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2]
    return F.conv2d(F.pad(x, edges), net.stem[0].weight, stride=2)


def tokens(net: Net, x: Tensor) -> Tensor:
    y = net.encode(x)[-1]
    n, c, h, w = y.shape
    t = y.flatten(2).transpose(1, 2)
    t = t + F.gelu(F.linear(F.layer_norm(t, (c,)), net.up.weight[:, :8, 0, 0]))
    return net.head(t.transpose(1, 2).reshape(n, c, h, w))


def attention(net: Net, x: Tensor) -> Tensor:
    y = net.encode(x)[-1]
    n, c, h, w = y.shape
    weights = (net.up.weight[:, :8, 0, 0], net.up.weight[:, 8:, 0, 0])
    q, k = (F.linear(y.view(n, c, -1).transpose(1, 2), weight).view(n, h * w, 2, 4) for weight in weights)
    seen = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).softmax(-1) @ k.transpose(1, 2)
    return net.head(y + seen.transpose(1, 2).reshape(n, h * w, c).permute(0, 2, 1).view(n, c, h, w))


def windows_of_attention(net: Net, x: Tensor) -> Tensor:
    y = net.stem(x)
    rows, columns = y.shape[2:]
    y = F.pad(y, (0, -columns % 4, 0, -rows % 4))
    n, c, h, w = y.shape
    t = y.view(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 16, c)
    t = (t @ t.transpose(-1, -2)).softmax(-1) @ t
    y = t.reshape(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)
    return net.head(y[:, :, :rows, :columns])


def stacked(net: Net, x: Tensor) -> Tensor:
    """Two lines that make the same of a value at even sizes alone."""
    first, second, *_ = net.encode(x)
    size = (x.shape[2] // 2, x.shape[3] // 2)
    first = first + F.interpolate(F.interpolate(first, size=second.shape[2:]), size=first.shape[2:])
    both = torch.stack([F.interpolate(y, size=size) for y in (first, second)])
    return net.head(both.sum(0) + F.interpolate(first, size=size))


def channels_by_pixels(net: Net, x: Tensor) -> Tensor:
    """Attention of channels, whose scores grow with the number of pixels."""
    y = net.encode(x)[-1]
    t = y.flatten(2)
    seen = ((t @ t.mT) * (y.shape[2] * y.shape[3]) ** -0.5).softmax(-1) @ t
    return net.head(seen.view_as(y))


def attention_of_channels(net: Net, x: Tensor) -> Tensor:
    y = net.encode(x)[-1]
    t = y.flatten(2)[:, None]
    return net.head(F.scaled_dot_product_attention(t, t, t).view_as(y))


def averages(net: Net, x: Tensor) -> Tensor:
    y = net.stem(x)
    rows, columns = y.shape[2:]
    gate = y.sum((2, 3), keepdim=True) / (rows * columns) + y.sum(3, keepdim=True) / columns
    return net.head(y * gate.sigmoid() / torch.tensor(float(rows * columns)).sqrt())


def energy(net: Net, x: Tensor) -> Tensor:
    """SimAM: a variance over all pixels but one."""
    y = net.stem(x)
    off = (y - y.mean((2, 3), keepdim=True)).square()
    variance = off.sum((2, 3), keepdim=True) / (y.shape[2] * y.shape[3] - 1)
    return net.head(y * (off / (4 * (variance + 1e-4)) + 0.5).sigmoid())


def before_signs(net: Net, x: Tensor) -> Tensor:
    return net.head(net.down[0](net.stem(x) * 30 / x.shape[2]))


BIAS = torch.randn(2, 16, 16)
QUERIES = torch.randn(5, 8)


def windows_with_a_bias(net: Net, x: Tensor) -> Tensor:
    y = net.stem(x)
    rows, columns = y.shape[2:]
    y = F.pad(y, (0, -columns % 4, 0, -rows % 4))
    n, c, h, w = y.shape
    t = (
        y.view(n, c, h // 4, 4, w // 4, 4)
        .permute(0, 2, 4, 3, 5, 1)
        .reshape(-1, 16, 2, c // 2)
        .transpose(1, 2)
    )
    t = ((t @ t.mT + BIAS).softmax(-1) @ t).transpose(1, 2)
    y = t.reshape(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)
    return net.head(y[:, :, :rows, :columns])


def learned_queries(net: Net, x: Tensor) -> Tensor:
    y = net.encode(x)[-1]
    t = y.flatten(2).transpose(1, 2)
    seen = (QUERIES.expand(len(x), -1, -1) @ t.mT).softmax(-1) @ t
    return net.head(y * seen.mean(1)[:, :, None, None])


def normalised_tokens(net: Net, x: Tensor) -> Tensor:
    """Numbers that are one for each token, by which no channel goes."""
    y = net.encode(x)[-1]
    t = y.flatten(2).transpose(1, 2)
    mean, var = t.mean(-1, keepdim=True), t.var(-1, keepdim=True, unbiased=False)
    t = (t - mean) / torch.sqrt(2 * var + 1e-5)
    return net.head(t.transpose(1, 2).reshape(y.shape))


def grid_of_windows(net: Net, x: Tensor) -> Tensor:
    """Runs where four windows divide the image alone."""
    y = net.stem(x)
    n, c, h, w = y.shape
    t = y.view(n, c, 4, h // 4, 4, w // 4).permute(0, 3, 5, 2, 4, 1).reshape(-1, 16, c)
    t = (t @ t.mT).softmax(-1) @ t
    return net.head(t.view(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 3, 1, 4, 2).reshape(n, c, h, w))


COUNTED: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "channels by pixels": channels_by_pixels,
    "attention of channels": attention_of_channels,
    "averages": averages,
    "energy": energy,
    "before signs": before_signs,
}
DECODERS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "nearest": decoder(interpolated),
    "bilinear": decoder(lambda y, skip: interpolated(y, skip, mode="bilinear")),
    "corners": decoder(lambda y, skip: interpolated(y, skip, mode="bilinear", align_corners=True)),
    "bicubic": decoder(lambda y, skip: interpolated(y, skip, mode="bicubic")),
    "padded": decoder(padded),
    "where needed": decoder(resized_where_needed),
    "middle": decoder(middle),
    "rounded middle": decoder(rounded_middle),
    "to the input": head_to_input,
    "pyramid pooling": pyramid_pooling,
    "expanded": expanded,
    "pooled to another": pooled_to_another,
    "whole blocks": whole_blocks,
    "blocks of 32": whole_blocks_of_32,
    "smaller images": smaller_images,
    "same padding": same_padding,
    "tokens": tokens,
    "attention": attention,
    "windows of attention": windows_of_attention,
    "stacked": stacked,
    "windows with a bias": windows_with_a_bias,
    "learned queries": learned_queries,
    "normalised tokens": normalised_tokens,
    **COUNTED,
}
FLOORED = ("padded", "bilinear", "where needed")  # also where halves are rounded down


@pytest.mark.parametrize(
    ("name", "stride"),
    [*((name, "conv") for name in DECODERS), *((name, "pool") for name in FLOORED), ("cut", "conv")],
)
def test_one_file_for_every_size(name: str, stride: str) -> None:
    """The example's own size is odd in one case of two."""
    decode = decoder(cut) if name == "cut" else DECODERS[name]
    net = Net(decode, stride).eval()
    example = (3, 32, 32) if len(name) % 2 else (3, 27, 45)
    packed = pack(net, example, any_size=True)
    assert {op.op for op in packed.program.ops} & {"resize2d", "fit2d", "reshape_to"}
    for rows, columns in SIZES:
        x = np.random.default_rng(rows).standard_normal((2, 3, rows, columns)).astype(np.float32)
        with torch.no_grad():
            goal = net(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(packed(x), goal, rtol=1e-4, atol=2e-5, err_msg=f"{rows}x{columns}")
        if (rows, columns) == (17, 23):
            np.testing.assert_allclose(reference.run(packed.program, x), goal, rtol=1e-4, atol=2e-5)
            one = pack(net, (3, rows, columns), any_size=False)  # the same numbers as a file of this size
            if name in COUNTED:  # 1 / (h*w) was rounded otherwise
                np.testing.assert_allclose(packed(x), one(x), rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(packed(x), one(x))
            assert verify(net, x).holds


def test_sizes_that_are_multiples_alone() -> None:
    net = Net(grid_of_windows).eval()
    packed = pack(net, (3, 32, 48), any_size=True)
    for size in ((32, 48), (20, 40), (64, 36)):
        x = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32)
        with torch.no_grad():
            np.testing.assert_allclose(packed(x), net(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


def pooled_whole(net: Net, x: Tensor) -> Tensor:
    y = net.stem(x)
    gate = F.avg_pool2d(y, y.shape[2:]) + F.max_pool2d(y, kernel_size=(y.size(2), y.size(3)), stride=1)
    return net.head(y * gate.sigmoid())


def pooled_by_eight(net: Net, x: Tensor) -> Tensor:
    """A window that is the whole map of the example alone."""
    return F.avg_pool2d(net.head(net.stem(x)), 8)


def pooled_by_half(net: Net, x: Tensor) -> Tensor:
    y = net.stem(x)
    return net.head(F.avg_pool2d(y, [n // 2 for n in y.shape[2:]]))


@pytest.mark.parametrize("decode", [pooled_whole, pooled_by_eight])
def test_a_pool_of_the_whole_map(decode: Callable[[Net, Tensor], Tensor]) -> None:
    net = Net(decode).eval()
    packed = pack(net, (3, 16, 16), any_size=True)
    for size in ((16, 16), (23, 40), (64, 32)):
        x = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32)
        with torch.no_grad():
            np.testing.assert_allclose(packed(x), net(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_narrow_images() -> None:
    packed = pack(net := Net(head_to_input).eval(), (3, 32, 32))
    for size in ((1, 40), (9, 1), (1, 1)):
        x = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32)
        with torch.no_grad():
            np.testing.assert_allclose(packed(x), net(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


def at_least_40(net: Net, x: Tensor) -> Tensor:
    return F.interpolate(net.head(net.stem(x)), size=(max(x.shape[2], 40), x.shape[3]))


def at_least_32(net: Net, x: Tensor) -> Tensor:
    return F.interpolate(net.head(net.stem(x)), size=tuple(max(n, 32) for n in x.shape[2:]))


def at_least_224(net: Net, x: Tensor) -> Tensor:
    return F.interpolate(net.head(net.stem(x)), size=tuple(max(n, 224) for n in x.shape[2:]))


def at_most_160(net: Net, x: Tensor) -> Tensor:
    return F.interpolate(net.head(net.stem(x)), size=tuple(min(n, 160) for n in x.shape[2:]))


def large_ones_halved(net: Net, x: Tensor) -> Tensor:
    y = net.head(net.stem(x))
    return y if x.shape[3] < 200 else F.interpolate(y, scale_factor=0.5)


def by_a_limit(net: Net, x: Tensor) -> Tensor:
    return net.head(net.stem(x)) / min(x.shape[2], 40)


def of_places(net: Net, x: Tensor) -> Tensor:
    y = net.stem(x)
    return net.head(y + torch.linspace(0, 1, y.shape[3]))


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (at_least_40, "wants .* pixels, sizes that follow from no other"),
        (at_least_32, "sizes that follow from no other"),
        (at_least_224, "sizes that follow from no other"),
        (at_most_160, "sizes that follow from no other"),
        (large_ones_halved, "bound to the size of the image"),
        (pooled_by_half, "bound to the size of the image"),
        (by_a_limit, "multiplies by 0.0.*, which follow from no value's size"),
        (of_places, "bound to 32x32 pixels; leave it out, or give a larger example"),
    ],
)
def test_what_is_bound_to_a_size_is_refused(decode: Callable[..., Any], message: str) -> None:
    net = Net(decode).eval()
    with pytest.raises(PackError, match=message):
        pack(net, (3, 32, 32), any_size=True)
    assert not pack(net, (3, 32, 32)).program.variable


@pytest.mark.parametrize("decode", [at_least_224, at_most_160, large_ones_halved])
def test_limits_below_the_size_of_the_example_are_noticed(decode: Callable[..., Any]) -> None:
    with pytest.raises(PackError, match=r"is not possible: .* size.*; leave it out$"):
        pack(Net(decode).eval(), (3, 256, 256), any_size=True)


def test_what_always_has_one_size_is_no_rule() -> None:
    """A factor stays a factor, a size a size; files of such networks need no newer set."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Upsample(scale_factor=2), nn.AdaptiveMaxPool2d(5)
    ).eval()
    program = pack(net, (3, 9, 5), any_size=True).program
    assert [op.op for op in program.ops] == ["conv2d", "upsample2d", "adaptive_max_pool2d"]
