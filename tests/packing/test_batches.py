"""Batches that are merged with another axis, or not the first axis, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

from xnorpp.nn import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear
from xnorpp.packing import PackError, check_packable, pack_program

torch.manual_seed(3)
QUERIES = torch.randn(4, 6)
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "frames": (BinaryConv2d(3, 4, 3, padding=1), (5, 3, 6, 7)),
    "frames, a scale per pixel": (
        BinaryConv2d(3, 4, 3, scale="channel_height_width", output_size=(4, 5)),
        (2, 3, 6, 7),
    ),
    "frames, K": (BinaryConv2d(3, 4, 3, method="xnor"), (2, 3, 6, 7)),
    "windows of a sequence": (BinaryConv1d(3, 4, 3, stride=2), (5, 3, 9)),
    "pixels of windows": (BinaryConv2d(3, 8, 1), (5, 3, 4, 3)),
    "pixels of windows, K": (BinaryConv2d(4, 8, 1, method="xnor", groups=2), (3, 4, 4, 3)),
    "pixels of windows, a scale per pixel": (
        BinaryConv2d(3, 4, 1, scale="channel_height_width", output_size=(4, 3)),
        (2, 3, 4, 3),
    ),
    "every second pixel": (BinaryConv2d(3, 4, 1, stride=2), (2, 3, 4, 3)),
    "steps of windows": (BinaryConv1d(3, 4, 1), (5, 3, 6)),
    "frames made larger": (BinaryConvTranspose2d(3, 4, 2, stride=2), (2, 3, 4, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_binary_convolution_of_every_frame(name: str) -> None:
    layer, shape = LAYERS[name]

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            made = self.layer(x.flatten(0, 1))
            return made.view(len(x), shape[0], *made.shape[1:]) * 2

    packed = agrees(Frames(), images(*shape))
    weights = [tensor for tensor in packed.program.tensors.values() if tensor.dtype == "uint8"]
    assert len(weights) <= 1  # shared by all frames


def test_too_many_frames_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(0, 1), BinaryConv2d(3, 4, 3), nn.Unflatten(0, (-1, 65)))
    with pytest.raises(PackError, match="65 images for each image"):
        pack_program(model, example=torch.zeros(2, 65, 3, 4, 4))


class Turned(nn.Module):
    """What a layer makes of (tokens, n, c), as recurrent layers and attention of torch's own take them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1) + 1


def test_a_binary_layer_where_the_batch_is_the_second_axis() -> None:
    agrees(Turned(nn.Sequential(BinaryLinear(6, 8), nn.GELU(), BinaryLinear(8, 5))), images(4, 6))


def test_a_linear_layer_over_the_batch_is_refused() -> None:
    model = Turned(BinaryLinear(2, 5))
    with pytest.raises(PackError, match="along the batch axis"):
        pack_program(model, example=torch.zeros(2, 6))


class Attention(nn.Module):
    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(6, 2, batch_first=True), mask

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(0, 1)
        made, _ = self.attention(y, y * 0.5, y, attn_mask=self.mask, need_weights=False)
        return (y + made).view_as(x)


@pytest.mark.parametrize("mask", [None, torch.ones(4, 4).triu(1).bool()], ids=["all", "earlier ones"])
def test_multi_head_attention_in_windows(mask: Tensor | None) -> None:
    agrees(Attention(mask), images(3, 4, 6))


def test_attention_over_the_batch_is_refused() -> None:
    model = nn.TransformerEncoderLayer(6, 2, 8)  # without batch_first=True, the images are its tokens
    with pytest.raises(PackError, match="mixes images"):
        pack_program(model, example=torch.zeros(2, 4, 6))
    (obstacle, *_) = check_packable(model, torch.zeros(2, 4, 6)).obstacles
    assert "batch_first=True" in obstacle.remedy


def _heads(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1, 2, 3).transpose(1, 2).reshape(len(x) * 2, -1, 3)


LEARNED: dict[str, Callable[[Tensor], Tensor]] = {
    "repeated": lambda x: torch.einsum("b i d, b j d -> b i j", QUERIES.repeat(len(x), 1, 1), x),
    "in heads": lambda x: torch.einsum(
        "bid,bjd->bij", _heads(QUERIES[None].expand(len(x), -1, -1)), _heads(x)
    ).reshape(len(x), 2, 4, -1),
}


@pytest.mark.parametrize("name", LEARNED)
def test_learned_queries_that_are_repeated_for_every_image(name: str) -> None:
    agrees(LEARNED[name], images(5, 6))


def test_queries_that_differ_from_image_to_image_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.einsum("bid,bjd->bij", QUERIES.view(2, 2, 6), x)

    with pytest.raises(PackError, match="differs from image to image"):
        pack_program(Lambda(function), example=torch.zeros(2, 5, 6))


SMALLEST = torch.finfo(torch.float32).min
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda x: (x @ x.mT + torch.full((4, 4), float("-inf")).triu(1)).softmax(-1) @ x,
    "subtracted": lambda x: (x @ x.mT - torch.full((4, 4), float("inf")).triu(1)).softmax(-1) @ x,
    "the smallest number": lambda x: (x @ x.mT + torch.full((4, 4), SMALLEST).triu(1)).softmax(-1) @ x,
    "filled with it": lambda x: (x @ x.mT).masked_fill(torch.ones(4, 4).triu(1).bool(), SMALLEST).softmax(-1),
    "returned": lambda x: x @ x.mT + torch.full((4, 4), SMALLEST).triu(1),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_scores_are_large_numbers(name: str) -> None:
    agrees(MASKS[name], images(4, 6))


torch.manual_seed(4)
ENCODE = nn.Sequential(
    BinaryConv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.MaxPool2d(2)
).eval()
GRU = nn.GRU(4, 5, batch_first=True).eval()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :3], x[:, 3:]


def sliced(x: Tensor) -> Tensor:
    y = ENCODE(torch.cat(halves(x), dim=0))
    n = y.shape[0] // 2
    return y[:n] - y[n:]


def viewed(x: Tensor) -> Tensor:
    y = ENCODE(torch.cat(halves(x)))
    y = y.view(2, len(x), *y.shape[1:])
    return y[0] + 2 * y[1]


def beside(x: Tensor) -> Tensor:
    both = ENCODE(torch.stack(halves(x), 1).flatten(0, 1)).unflatten(0, (-1, 2))
    return (both[:, 0] - both[:, 1]).abs()


def frames_first(x: Tensor) -> Tensor:
    clip = x.unflatten(1, (2, 3)).transpose(0, 1)
    y = ENCODE(clip.reshape(-1, *clip.shape[2:]))
    return y.view(2, -1, *y.shape[1:]).permute(1, 2, 0, 3, 4).flatten(1)


def three(x: Tensor) -> Tensor:
    y = ENCODE(torch.cat([*halves(x), x[:, 1:4]]))
    first, second = y[: 2 * len(x)].chunk(2)
    return torch.cat([y[2 * len(x) :], first - second], 1)


def windows_of_two_images(x: Tensor) -> Tensor:
    y = F.interpolate(ENCODE(torch.cat(halves(x))), (4, 6))
    t = y.view(len(y), 4, 2, 2, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(len(y) * 4, 6, 4)
    t = GRU((t @ t.mT).softmax(-1) @ t)[0]
    first, second = t.view(len(y), 2, 2, 2, 3, 5).permute(0, 5, 1, 3, 2, 4).reshape(-1, 5, 4, 6).chunk(2)
    return first - second


def turned_around(x: Tensor) -> Tensor:
    first, second = ENCODE(torch.cat(halves(x))).chunk(2)
    both = torch.cat([torch.cat([first, second]), torch.cat([second, first])], 1).mean((2, 3))
    return both.view(2, len(x), -1)[0]


def one_factor(x: Tensor) -> Tensor:
    y = ENCODE(torch.cat(halves(x))) * x.mean((1, 2, 3), keepdim=True).repeat(2, 1, 1, 1)
    return y.split([len(x), len(x)])[1]


def single_numbers(x: Tensor) -> Tensor:
    first, second = ENCODE(torch.cat(halves(x))).mean((1, 2, 3)).chunk(2)
    return (first - second)[:, None]


def products(x: Tensor) -> Tensor:
    first, second = ENCODE(torch.cat(halves(x))).flatten(2).chunk(2)
    return torch.einsum("nci,ncj->nij", first, second)


def changed_in_place(x: Tensor) -> Tensor:
    y = ENCODE(torch.cat(halves(x)))
    y[y > 0.5] = 0.5
    return y.chunk(2)[1]


TWO_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda x: torch.sub(*ENCODE(torch.cat(halves(x))).chunk(2)).abs(),
    "stack": lambda x: ENCODE(torch.stack(halves(x)).flatten(0, 1)).unflatten(0, (2, -1)).mean(0),
    "frames in a loop": lambda x: torch.stack([ENCODE(f) for f in x.unflatten(1, (2, 3)).unbind(1)]).mean(0),
    "joined after it": lambda x: torch.cat([ENCODE(f) for f in halves(x)]).unflatten(0, (2, -1))[1],
    "changed in place": changed_in_place,
    **{
        function.__name__: function
        for function in (
            *(sliced, viewed, beside, frames_first, three, windows_of_two_images, turned_around),
            *(one_factor, single_numbers, products),
        )
    },
}


@pytest.mark.parametrize("name", TWO_IMAGES)
def test_two_images_through_one_network(name: str) -> None:
    model = Lambda(TWO_IMAGES[name])
    model.encode, model.gru = ENCODE, GRU
    agrees(model, images(6, 8, 9))


def windows(x: Tensor) -> Tensor:
    return x.unflatten(2, (2, 4)).transpose(1, 2).flatten(0, 1)


MIXED: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "windows and images": (
        lambda x: torch.cat([windows(x[:, :3]), x[:, 3:, :4]])[: 2 * len(x)],
        "joins values of different kinds along the batch axis",
        "torch.stack([a, b], 1).flatten(0, 1)",
    ),
    "in two orders": (
        lambda x: (windows(x) * x.mean((2, 3), keepdim=True).repeat(2, 1, 1, 1)).unflatten(0, (-1, 2)),
        "images are in another order",
        "x.repeat_interleave(times, 0)",
    ),
    "half a batch": (lambda x: torch.cat(halves(x))[: 3 * len(x) // 2], "chooses among images", "batch axis"),
    "one image": (lambda x: torch.cat(halves(x))[1:], "chooses among images", "batch axis"),
    "not taken apart": (
        lambda x: ENCODE(torch.cat(halves(x))),
        "whose first axis is not the batch",
        "batch axis",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_batches_that_mix_images_are_refused(name: str) -> None:
    function, reason, remedy = MIXED[name]
    is_refused(Lambda(function), (6, 8, 9), reason, remedy)


TOKEN, TABLE, ASKED = torch.randn(1, 1, 6), torch.randn(4, 5, 6), torch.randn(1, 3, 6)
ATTEND = nn.MultiheadAttention(6, 2, batch_first=True).eval()


def filled(y: Tensor) -> Tensor:
    y = y * 1
    y[:, 0] = 1.0
    y[:, 1:3] = y[:, 2:4] * 2
    return y


REPEATED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "a token before the others": lambda y, n: torch.cat([TOKEN.expand(len(y), -1, -1), y], 1),
    "a token behind them": lambda y, n: torch.cat([y, TOKEN.repeat(len(y), 1, 1)], 1),
    "features of places": lambda y, n: torch.cat([y, TABLE.repeat(n, 1, 1)], 2),
    "added": lambda y, n: y + TABLE.repeat(n, 1, 1),
    "a factor": lambda y, n: TABLE.repeat(n, 1, 1) * y,
    "chosen": lambda y, n: torch.where(TABLE.repeat(n, 1, 1) > 0, y, 0.0),
    "hidden": lambda y, n: y.masked_fill(TABLE.repeat(n, 1, 1) > 0, 0.0),
    "a matrix": lambda y, n: TABLE.repeat(n, 1, 1) @ y.mT,
    "queries": lambda y, n: torch.bmm(ASKED.repeat(len(y), 1, 1), y.mT),
    "queries of attention": lambda y, n: F.scaled_dot_product_attention(ASKED.expand(len(y), -1, -1), y, y),
    "queries of heads": lambda y, n: ATTEND(ASKED.expand(len(y), -1, -1), y, y)[0],
    "stacked": lambda y, n: torch.stack([y, TABLE.repeat(n, 1, 1), y * 2], 1),
    "put in": lambda y, n: filled(y),
}


@pytest.mark.parametrize("name", REPEATED)
def test_constants_that_are_repeated_for_frames(name: str) -> None:
    def frames(x: Tensor) -> Tensor:
        return REPEATED[name](x.flatten(0, 1), len(x)).unflatten(0, (len(x), -1))

    model = Lambda(frames)
    model.attend = ATTEND
    agrees(model, images(4, 5, 6))


def test_constants_that_are_repeated_for_frames_before_images() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.transpose(0, 1).flatten(0, 1) + TABLE.repeat_interleave(len(x), 0)
        return torch.cat([TOKEN.expand(len(y), -1, -1), y], 1).unflatten(0, (4, len(x)))[1]

    agrees(function, images(4, 5, 6))


def test_constants_that_differ_from_image_to_image_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.flatten(0, 1) + torch.arange(len(x) * 4).view(-1, 1, 1)).unflatten(0, (len(x), -1))

    is_refused(Lambda(function), (4, 5, 6), "differs from image to image", "every image the same")


FEATURES = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
TABLES = torch.randn(2, 5, 7, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: (x.transpose(0, 1) @ FEATURES).transpose(0, 1), (5, 7)),
        (lambda x: torch.matmul(x.permute(1, 2, 0, 3), TABLES).permute(2, 0, 1, 3), (2, 5, 7)),
    ],
)
def test_a_layer_for_each_feature_with_the_images_as_rows(function: Any, shape: tuple[int, ...]) -> None:
    agrees(function, images(*shape))


class Ghost(nn.Module):
    """Batch norm over parts of at most 128 images, as TabNet has it: in evaluation all are treated alike."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(9)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(-(-len(x) // 128), 0)
        return torch.cat([self.norm(part) for part in parts], 0)


def test_parts_of_a_batch_that_is_no_larger_than_one() -> None:
    agrees(Ghost(), images(9))


def test_a_layer_of_the_pixels_of_many_windows() -> None:
    """As CrossFormer has it: 256 windows of each image, which are no more operations than one."""
    layer = BinaryConv2d(16, 24, 1)

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            n, c, h, w = x.shape
            parts = x.view(n, c, 16, h // 16, 16, w // 16).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
            made: Tensor = self.layer(parts).amax((2, 3)).view(n, 256, -1)
            return made

    packed = agrees(Windows(), images(16, 32, 32))
    assert sum(op.op == "binary_conv2d" for op in packed.program.ops) == 1
