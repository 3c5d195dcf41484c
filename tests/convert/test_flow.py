"""Which layers read the input: what met other weights before is none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from xnorpp import binarize


class Model(nn.Module):
    """Something before three layers, of which the last one is the output layer."""

    def __init__(self, before: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.before = before
        self.layers = nn.ModuleList([nn.Linear(width, 8), nn.Linear(8, 8), nn.Linear(8, 3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        x = x[0] if isinstance(x, tuple) else x
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Parametric(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


NUMBERS, PLACES = torch.randn(4, 5, 8), torch.randint(0, 9, (4, 5))
FOLLOWS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "embedding": (lambda: nn.Embedding(9, 8), PLACES),
    "recurrent layer": (lambda: nn.LSTM(8, 8, batch_first=True), NUMBERS),
    "learned positions": (lambda: Parametric(torch.add, 5, 8), NUMBERS),
    "a product": (lambda: Parametric(lambda x, w: x @ w.softmax(0), 8, 8), NUMBERS),
    "a norm of one's own": (
        lambda: Parametric(lambda x, w: w * x / x.norm(dim=-1, keepdim=True), 8),
        NUMBERS,
    ),
}
READS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "nothing": (nn.Identity, NUMBERS),
    "torch's norm": (lambda: nn.LayerNorm(8), NUMBERS),
    "a type": (lambda: Parametric(lambda x, w: x.to(w), 1), NUMBERS.double()),
    "constants": (lambda: Parametric(lambda x, w: (x - 0.5) / 0.25, 1), NUMBERS),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_what_follows_other_weights_is_no_input_layer(name: str) -> None:
    build, x = FOLLOWS[name]
    for example in (x, None):
        model = Model(build())
        report = binarize(model, example=example)
        changed = [row.changed for row in report.rows if row.path.startswith("layers")]
        assert changed == [True, True, False]
    model(x).sum().backward()


@pytest.mark.parametrize("name", READS)
def test_what_reads_the_input_is_an_input_layer(name: str) -> None:
    build, x = READS[name]
    report = binarize(Model(build()), example=x)
    assert [row.changed for row in report.rows] == [False, True, False]
