"""Batches that are merged with another axis, or not the first axis, as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from agreement import agrees, images
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


def test_two_images_through_one_network() -> None:
    """Parts joined along the batch are refused; the remedy packs."""
    encode = nn.Sequential(BinaryConv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 5, 6)).eval()

    def joined(x: Tensor) -> Tensor:
        first, second = encode(torch.cat([x[:, :3], x[:, 3:]])).chunk(2)
        return (first - second).abs()

    def beside(x: Tensor) -> Tensor:
        both = encode(torch.stack([x[:, :3], x[:, 3:]], 1).flatten(0, 1)).unflatten(0, (-1, 2))
        return (both[:, 0] - both[:, 1]).abs()

    class Pair(nn.Module):
        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.encode, self.function = encode, function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    (obstacle, *_) = check_packable(Pair(joined), (6, 6, 7)).obstacles
    assert "torch.stack([a, b], 1).flatten(0, 1)" in obstacle.remedy
    agrees(Pair(beside), images(6, 6, 7))
