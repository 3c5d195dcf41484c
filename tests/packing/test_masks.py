"""Masks of attention, and constants that are repeated for every image of a batch merged with another axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

from xnorpp import binarize
from xnorpp.packing import check_packable, verify

torch.manual_seed(0)
TABLE, SCORES, CHOSEN = torch.randn(3, 4, 8), torch.randn(3, 4, 4), torch.rand(3, 4, 8) > 0.5
HEADS, FACTORS, FIRST = torch.randn(2, 4, 4), torch.randn(3), torch.randn(1, 1, 8)
HIDDEN = torch.tensor([[False, False, True, False]])


def merged(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of (n*3, 4, 8)."""
    return lambda x: function(x.flatten(0, 1)).unflatten(0, (-1, 3))


def images_of(y: Tensor) -> int:
    return y.shape[0] // 3


REPEATED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": merged(lambda y: y + TABLE.repeat(images_of(y), 1, 1)),
    "expanded": merged(lambda y: y * TABLE[None].expand(images_of(y), -1, -1, -1).flatten(0, 1)),
    "one for each window": merged(lambda y: y / FACTORS.repeat(images_of(y))[:, None, None]),
    "difference": merged(lambda y: TABLE.repeat(images_of(y), 1, 1) - y),
    "scores": merged(lambda y: (y @ y.mT + SCORES.repeat(images_of(y), 1, 1)).softmax(-1)),
    "product": merged(lambda y: torch.bmm(SCORES.repeat(images_of(y), 1, 1), y)),
    "attention": merged(
        lambda y: F.scaled_dot_product_attention(y, y, y, attn_mask=SCORES.repeat(images_of(y), 1, 1))
    ),
    "choice": merged(
        lambda y: torch.where(CHOSEN.repeat(images_of(y), 1, 1), y, TABLE.repeat(images_of(y), 1, 1))
    ),
    "fill": merged(lambda y: y.masked_fill(CHOSEN.repeat(images_of(y), 1, 1), -2.0)),
    "joined": merged(lambda y: torch.cat([FIRST.repeat(y.shape[0], 1, 1), y], 1)),
    "joined, one for each window": merged(lambda y: torch.cat([TABLE.repeat(images_of(y), 1, 1), y], 1)),
    "batch second": merged(
        lambda y: (y.transpose(0, 1) + TABLE.transpose(0, 1).repeat(1, images_of(y), 1)).transpose(0, 1)
    ),
    "joined, batch second": lambda x: (
        torch.cat([FIRST.expand(-1, x.shape[0], -1), x[:, 0].transpose(0, 1)]).transpose(0, 1) * 2
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_constants_repeated_for_a_merged_batch(name: str) -> None:
    agrees(REPEATED[name], images(3, 4, 8))


def test_a_constant_that_differs_from_image_to_image_is_refused() -> None:
    model = Lambda(merged(lambda y: y + TABLE.repeat_interleave(images_of(y), 0)))
    is_refused(model, (3, 4, 8), "differs from image to image", "give every image the same")


def mha(**masks: Callable[[Tensor], Tensor]) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            given = {name: mask(x) for name, mask in masks.items()}
            return self.attention(x, x, x, need_weights=False, **given)[0]

    return Model()


MASKS: dict[str, nn.Module] = {
    "one for each head": mha(attn_mask=lambda x: HEADS.repeat(x.shape[0], 1, 1)),
    "truth values for each head": mha(attn_mask=lambda x: (HEADS > 0).repeat(x.shape[0], 1, 1).triu(1)),
    "of keys, constant": mha(key_padding_mask=lambda x: HIDDEN.expand(x.shape[0], -1)),
    "of keys, computed": mha(key_padding_mask=lambda x: x[:, :, 0] > 0.8),
    "of keys, infinite": mha(
        key_padding_mask=lambda x: torch.zeros_like(x[..., 0]).masked_fill(x[..., 0] > 0.8, -torch.inf),
        attn_mask=lambda x: SCORES[0],
    ),
    "computed truth values": Lambda(
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=(x[..., 0] < 0.8).unsqueeze(1))
    ),
    "computed numbers": Lambda(
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x[..., 0].unsqueeze(1))
    ),
    "of a layer": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_attention(name: str) -> None:
    torch.manual_seed(0)
    agrees(MASKS[name], images(4, 8))


class Padded(nn.Module):
    def __init__(self, **settings: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.body, self.head = nn.TransformerEncoder(layer, 2, **settings), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x, src_key_padding_mask=x[..., 0] == 0))


def test_an_encoder_with_padding_packs_as_it_was_trained() -> None:
    """In evaluation torch leaves hidden tokens out, and makes zeros of them, unless layers are binary."""
    torch.manual_seed(0)
    x = images(4, 8)
    x[:, 2:, 0], x[:, :2, 0] = 0, 1
    agrees(Padded(enable_nested_tensor=False), x)
    (obstacle,) = check_packable(Padded(), x).obstacles
    assert "reads the values" in obstacle.reason
    assert "enable_nested_tensor=False" in obstacle.remedy
    model = Padded()
    binarize(model, example=x)
    trained = model.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), trained)
    assert verify(model, x.numpy()).holds
