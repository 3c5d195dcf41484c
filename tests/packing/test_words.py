"""Models that take whole numbers: words, categories, nucleotides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import is_refused
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import verify

WORDS = 30


def words(n: int, length: int = 8, count: int = WORDS, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, count, (n, length)))


class Encoder(nn.Module):
    """Words and places, hidden padding, an encoder, and a class for each text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 16, padding_idx=0), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.body(x, src_key_padding_mask=ids == 0)[:, 0])


class Decoder(nn.Module):
    """A language model whose last layer has the words' own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 16), nn.Parameter(torch.randn(8, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layer(self.words(ids) + self.places, src_mask=mask, is_causal=True))


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 12), nn.Linear(24, 2)
        self.layers = nn.ModuleList(nn.Conv1d(12, 8, width) for width in (2, 3, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        return self.head(torch.cat([layer(x).relu().max(2)[0] for layer in self.layers], 1))


class LastWord(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = (
            nn.Embedding(WORDS, 8),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, 2),
        )

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(self.words(ids))[0]
        last = (ids != 0).sum(1) - 1
        return self.head(states[torch.arange(len(ids)), last])


class Run(nn.Module):
    def __init__(self, function: Callable[..., Tensor], *parts: Any) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(p for p in parts if isinstance(p, nn.Module)), function
        self.table = nn.Parameter(torch.randn(WORDS, 2, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.function(ids, self.table, *self.parts)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "an encoder": Encoder,
    "a language model": Decoder,
    "convolutions": Convolved,
    "the last word": LastWord,
    "a table of one's own": lambda: Run(lambda ids, table: table[ids].mean(1)),
    "a table from its end": lambda: Run(lambda ids, table: table[-ids - 1].amax(1)),
    "one_hot": lambda: Run(lambda ids, table: F.one_hot(ids, WORDS).float() @ table.flatten(1)),
    "columns with tables that follow each other": lambda: Run(
        lambda ids, table, layer: layer(ids + torch.arange(0, 8 * WORDS, WORDS)).flatten(1),
        nn.Embedding(8 * WORDS, 4),
    ),
    **{
        f"a bag, {mode}": lambda mode=mode: Run(
            lambda ids, table, layer: layer(ids), nn.EmbeddingBag(WORDS, 5, mode=mode)
        )
        for mode in ("sum", "mean", "max")
    },
    **{
        f"a bag with padding, {mode}": lambda mode=mode: Run(
            lambda ids, table, layer: layer(ids), nn.EmbeddingBag(WORDS, 5, mode=mode, padding_idx=1)
        )
        for mode in ("sum", "mean")
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_words(name: str) -> None:
    torch.manual_seed(0)
    model, ids = MODELS[name](), words(6)
    ids[:, 0] = ids[:, 0].clamp(min=1)
    xnorpp.binarize(model, example=ids)
    model.eval()
    with torch.no_grad():
        wanted = model(ids).numpy()
    for example in (ids, torch.ones_like(ids)):
        packed = xnorpp.pack(model, example=example)
        for isa in (None, "reference"):
            engine = xnorpp.PackedModel(packed.program, isa=isa)
            for given in (ids.numpy(), ids.numpy().astype(np.int32), ids.numpy().astype(np.float32)):
                np.testing.assert_allclose(engine(given), wanted, rtol=1e-4, atol=1e-4)
    assert verify(model, ids).holds


def test_categories_among_real_numbers() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(5, 4) for _ in range(3))
            self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            places = x[:, :3].long()
            parts = [table(places[:, i]) for i, table in enumerate(self.tables)]
            return self.head(self.second(self.first(torch.cat([*parts, x[:, 3:]], 1)).relu()).relu())

    torch.manual_seed(0)
    model, x = Table(), torch.cat([words(6, 3, 5).float(), torch.randn(6, 4)], 1)
    report = xnorpp.binarize(model, example=x)
    assert [row.changed for row in report.rows] == [True, True, False]
    with torch.no_grad():
        wanted = model.eval()(x).numpy()
    np.testing.assert_allclose(xnorpp.pack(model, example=x)(x.numpy()), wanted, rtol=1e-4, atol=1e-4)
    assert verify(model, x).holds


def test_whole_numbers_are_refused_where_the_model_takes_real_ones() -> None:
    packed = xnorpp.pack(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), example=torch.zeros(2, 8))
    with pytest.raises(ValueError, match="`x` has dtype int64"):
        packed(words(2).numpy())


def test_what_depends_on_the_number_of_words_is_refused() -> None:
    is_refused(
        Run(lambda ids, table: F.one_hot(ids).float()), words(2), "one_hot .*num_classes", "docs/packing.md"
    )
    bag = Run(
        lambda ids, table, layer: layer(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1])),
        nn.EmbeddingBag(WORDS, 5),
    )
    is_refused(bag, words(2), "is not supported", "docs/packing.md")
