"""Recurrent layers, step by step: every kind, both directions, several layers, sequences of windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from agreement import agrees, images
from torch import Tensor, nn

from xnorpp import check_packable
from xnorpp.nn import BinaryConv1d
from xnorpp.packing import PackError, verify
from xnorpp.packing import pack_program as pack
from xnorpp.runtime.cpu import CpuModel

LENGTH, CHANNELS = 7, 5


class Run(nn.Module):
    """A layer, and what is taken of what it returns."""

    def __init__(self, layer: nn.Module, take: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.layer = layer
        self.take = take

    def forward(self, x: Tensor) -> Tensor:
        return self.take(self.layer, x)


def steps(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def windows(layer: nn.Module, x: Tensor) -> Tensor:
    """(n, 7, 5) as n*7 sequences of five numbers."""
    n = x.shape[0]
    return layer(x.reshape(n * LENGTH, CHANNELS, 1))[0].reshape(n, LENGTH, CHANNELS, -1)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "lstm": (lambda: nn.LSTM(5, 6, batch_first=True), steps),
    "lstm, both directions, two layers": (
        lambda: nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True),
        lambda layer, x: layer(x)[0].relu(),
    ),
    "lstm, last state": (lambda: nn.LSTM(5, 6, 2, batch_first=True), lambda layer, x: layer(x)[1][0][-1]),
    "lstm, memory": (
        lambda: nn.LSTM(5, 6, batch_first=True, bidirectional=True),
        lambda layer, x: layer(x)[1][1].permute(1, 0, 2).flatten(1),
    ),
    "lstm, steps first": (
        lambda: nn.LSTM(5, 6, bias=False),
        lambda layer, x: layer(x.permute(1, 0, 2))[0].permute(1, 0, 2),
    ),
    "lstm of windows": (lambda: nn.LSTM(1, 3, batch_first=True, bidirectional=True), windows),
    "gru": (lambda: nn.GRU(5, 6, batch_first=True), steps),
    "gru, both directions, two layers": (
        lambda: nn.GRU(5, 4, 2, batch_first=True, bidirectional=True),
        lambda layer, x: layer(x)[0][:, -1],
    ),
    "gru of windows": (lambda: nn.GRU(1, 3, batch_first=True, bias=False), windows),
    "tanh": (lambda: nn.RNN(5, 6, batch_first=True), steps),
    "relu": (lambda: nn.RNN(5, 6, 2, nonlinearity="relu", batch_first=True), steps),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_packs(name: str) -> None:
    torch.manual_seed(3)
    build, take = LAYERS[name]
    model = Run(build(), take).eval()
    x = np.random.default_rng(0).standard_normal((3, LENGTH, CHANNELS)).astype(np.float32)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    program = pack(model, example=x)
    found = CpuModel(program)(x)
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert verify(model, x).holds
    stored = sum(t.size for t in program.tensors.values())
    assert stored < 2 * sum(p.numel() for p in model.parameters()), "weights are stored for each step"


def test_a_wrong_step_is_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` compares every state with the one in torch's output."""
    from xnorpp.packing.sequences import recurrent

    model = Run(nn.LSTM(5, 6, batch_first=True), steps).eval()
    x = np.random.default_rng(0).standard_normal((2, LENGTH, CHANNELS)).astype(np.float32)
    monkeypatch.setattr(recurrent, "_sigmoid", recurrent._tanh)
    assert not verify(model, x).holds


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_every_state_of_every_layer_is_compared(kind: str) -> None:
    """The bounds begin anew after each step: they had grown from layer to layer, beyond all numbers."""
    torch.manual_seed(0)
    layer = getattr(nn, kind)(5, 6, 2, batch_first=True, bidirectional=True)
    model = Run(layer, lambda layer, x: tuple(t.transpose(0, 1) for t in _tensors(layer(x)[1]))).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    x = np.random.default_rng(0).standard_normal((2, 40, CHANNELS)).astype(np.float32)
    found = verify(model, x)
    assert found.holds
    assert max(layer.bound for layer in found.layers) < 1e-3
    assert len(found.layers) > 2 * 40


def _tensors(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def test_the_error_is_that_of_all_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from xnorpp.packing.sequences import recurrent

    model = Run(nn.LSTM(5, 6, batch_first=True), lambda layer, x: (x * 2, layer(x)[0])).eval()
    x = np.random.default_rng(0).standard_normal((2, LENGTH, CHANNELS)).astype(np.float32)
    assert verify(model, x).output_error < 1e-5
    monkeypatch.setattr(recurrent, "_sigmoid", recurrent._tanh)
    assert verify(model, x).output_error > 1e-3


def test_a_binary_network_of_sound_with_a_recurrent_end() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(nn.Conv1d(1, 8, 5, stride=4), nn.BatchNorm1d(8))
            self.binary = BinaryConv1d(8, 8, 3, stride=2, padding=1)
            self.norm, self.recurrent, self.head = (
                nn.BatchNorm1d(8),
                nn.GRU(8, 6, batch_first=True),
                nn.Linear(6, 4),
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.binary(self.front(x))).transpose(1, 2)
            return self.head(self.recurrent(y)[1][-1])

    torch.manual_seed(0)
    model = Net().eval()
    x = np.random.default_rng(0).standard_normal((16, 1, 64)).astype(np.float32)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack(model, (1, 64)))(x), want, rtol=1e-5, atol=1e-5)
    assert verify(model, x).holds


def from_another(layers: Any, x: Tensor) -> Tensor:
    """A decoder that starts from the last state of an encoder, as translations do."""
    encoder, decoder = layers
    return decoder(x.flip(1), encoder(x)[1])[0]


def from_numbers(layer: Any, x: Tensor) -> Tensor:
    return layer(x, torch.linspace(-1, 1, 12).view(2, 1, 6).expand(-1, len(x), -1).contiguous())[0]


def from_a_mean(layer: Any, x: Tensor) -> Tensor:
    """A state that is computed, and a memory of zeros."""
    first = x.mean(1).unsqueeze(0)
    return layer(x, (first, torch.zeros_like(first)))[1][1][0]


def two(kind: Any, **settings: Any) -> nn.ModuleList:
    return nn.ModuleList(kind(5, 6, batch_first=True, **settings) for _ in range(2))


STARTS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "lstm from another": (lambda: two(nn.LSTM, num_layers=2, bidirectional=True), from_another),
    "gru from another": (lambda: two(nn.GRU, num_layers=2), from_another),
    "tanh from another": (lambda: two(nn.RNN, bidirectional=True), from_another),
    "lstm with a projection": (
        lambda: two(nn.LSTM, num_layers=2, proj_size=3, bidirectional=True),
        from_another,
    ),
    "a projection without bias": (
        lambda: nn.LSTM(5, 6, proj_size=3, bias=False, batch_first=True),
        lambda layer, x: layer(x)[0],
    ),
    "gru from numbers": (lambda: nn.GRU(5, 6, 2, batch_first=True), from_numbers),
    "relu from numbers": (
        lambda: nn.RNN(5, 6, batch_first=True, nonlinearity="relu", bidirectional=True),
        from_numbers,
    ),
    "lstm from a mean": (lambda: nn.LSTM(5, 5, batch_first=True), from_a_mean),
}


@pytest.mark.parametrize("name", STARTS)
def test_given_states_and_projections(name: str) -> None:
    torch.manual_seed(0)
    build, take = STARTS[name]
    agrees(Run(build(), take), images(LENGTH, CHANNELS))


def test_too_many_operations_are_one_sentence() -> None:
    """512 steps may be taken, but those of an LSTM are more operations than a file may have."""
    model = nn.Sequential(Run(nn.LSTM(5, 6, batch_first=True), steps), nn.Linear(6, 2)).eval()
    x = torch.zeros(2, 300, CHANNELS)
    message = (
        r"^0\.layer: the program has [\d,]+ operations, of which .*; 4,096 are supported .*: take fewer steps"
    )
    with pytest.raises(PackError, match=message):
        pack(model, example=x)
    (obstacle,) = check_packable(model, x).obstacles
    assert "take fewer steps" in str(obstacle)


def differing(layer: Any, x: Tensor) -> Tensor:
    return layer(x, torch.arange(6.0 * len(x)).view(1, -1, 6))[0]


REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "a state for each image": (lambda: nn.GRU(5, 6, batch_first=True), differing, "the same"),
    "the batch as steps": (lambda: nn.GRU(5, 6), steps, "batch_first"),
    "many steps": (lambda: nn.RNN(5, 6, 80, batch_first=True), steps, "512 are supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_remedy(name: str) -> None:
    build, take, message = REFUSED[name]
    found = check_packable(Run(build(), take).eval(), (torch.zeros(2, LENGTH, CHANNELS),))
    assert not found
    assert message in str(found.obstacles[0])
    assert "layer" in str(found.obstacles[0])
