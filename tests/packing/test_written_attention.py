"""Attention that a model has written out: softmax(q @ k.T * scale) @ v is one operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from agreement import agrees, images
from torch import Tensor, nn

import xnorpp

Steps = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Heads of tokens, (n, tokens, 24), with what is between the projections as a function."""

    def __init__(self, steps: Steps, heads: int = 3) -> None:
        super().__init__()
        self.steps, self.heads = steps, heads
        self.qkv, self.last, self.drop = nn.Linear(24, 72), nn.Linear(24, 24), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = self.drop(self.steps(q, k, v))
        return self.last(y.transpose(1, 2).reshape(n, tokens, -1))


def _factor_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * 8**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v


def _factor_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(nn.functional.softmax(torch.matmul(q, k.mT) / 8**0.5, dim=-1), v)


def _letters(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 8**-0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def _flat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n, heads = q.shape[:2]
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(2), v).unflatten(0, (n, heads))


def _shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + torch.arange(7.0)).softmax(-1) @ v


def _over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def _of_channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q.mT @ k).softmax(-1) @ v.mT).mT


FORMS: dict[str, tuple[Steps, int]] = {
    "factor first": (_factor_first, 1),
    "factor after": (_factor_after, 1),
    "einsum": (_letters, 1),
    "bmm": (_flat, 1),
    "a summand": (_shifted, 0),
    "softmax of queries": (_over_queries, 0),
    "channels": (_of_channels, 1),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("heads", [1, 3])
def test_written_out(name: str, heads: int) -> None:
    torch.manual_seed(0)
    steps, count = FORMS[name]
    model = Attention(steps, heads).eval()
    x = images(7, 24)
    agrees(model, x)
    packed = xnorpp.pack(model, example=x, any_size=False)
    assert [op.op for op in packed.program.ops].count("attention") == count


def test_weights_that_are_used_too() -> None:
    class Both(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            weights = (q @ k.mT).softmax(-1)
            return torch.cat([weights @ v, weights], -1)

    torch.manual_seed(0)
    agrees(Both(_factor_first), images(7, 24))


def test_wide_heads_of_few_tokens_are_products() -> None:
    """Attention between channels, whose numbers are pixels."""

    class Channels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = x.flatten(2)
            return ((rows @ rows.mT / 81).softmax(-1) @ rows).view_as(x)

    x = images(6, 9, 9)
    agrees(Channels(), x)
    packed = xnorpp.pack(Channels().eval(), example=x)
    assert "attention" not in [op.op for op in packed.program.ops]
