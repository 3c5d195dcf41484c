"""Moves of axes vanish where what is between them can be done before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn import BinaryConv1d, BinaryLinear
from xnorpp.packing import pack_program, verify
from xnorpp.runtime.reference import run


class Net(nn.Module):
    """A convolution, and what a function makes of its result."""

    def __init__(self, body: Callable[[Tensor, nn.ModuleList], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.stem, self.layers, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.ModuleList(layers), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.stem(x), self.layers)


def channels_last_block(x: Tensor, layers: nn.ModuleList) -> Tensor:
    y = x.permute(0, 2, 3, 1)
    y = layers[1](F.gelu(layers[0](y)))
    return x + y.permute(0, 3, 1, 2)


def tokens(x: Tensor, layers: nn.ModuleList) -> Tensor:
    y = x.flatten(2).transpose(1, 2)
    y = y + layers[1](F.relu(layers[0](y)))
    return y.mean(1) if len(layers) == 2 else y.transpose(1, 2).reshape(x.shape)


def mixed_tokens(x: Tensor, layers: nn.ModuleList) -> Tensor:
    """A mixer: once over the channels of each token, once over the tokens of each channel."""
    y = layers[0](x.flatten(2).transpose(1, 2)).transpose(1, 2)
    return layers[1](y)


def class_token(x: Tensor, layers: nn.ModuleList) -> Tensor:
    y = torch.cat([layers[1].weight[:1].expand(len(x), 1, 8), x.flatten(2).transpose(1, 2)], 1)
    return layers[0](F.hardtanh(y))[:, 0]


def heads(x: Tensor, layers: nn.ModuleList) -> Tensor:
    n, _, h, w = x.shape
    y = layers[0](x.flatten(2).transpose(1, 2))
    a, b, _ = y.reshape(n, h * w, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return (a + b).transpose(1, 2).reshape(n, h * w, 8)


def shuffled(x: Tensor, layers: nn.ModuleList) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def pixels(x: Tensor, layers: nn.ModuleList) -> Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)


def linear(o: int = 8, i: int = 8) -> nn.Module:
    return nn.Linear(i, o)


CASES: dict[str, tuple[nn.Module, int]] = {  # and how many permutes are left
    "channels last": (Net(channels_last_block, linear(16), linear(8, 16)), 0),
    "channels last, binary": (Net(channels_last_block, BinaryLinear(8, 16), BinaryLinear(16, 8)), 0),
    "binary with K": (
        Net(channels_last_block, BinaryLinear(8, 16, config="xnor", scale="alpha_k"), BinaryLinear(16, 8)), 0,
    ),
    "tokens": (Net(tokens, linear(), BinaryLinear(8, 8), nn.Identity()), 0),
    "mixer": (Net(mixed_tokens, BinaryLinear(8, 8), BinaryLinear(30, 6)), 2),
    "class token": (Net(class_token, BinaryLinear(8, 8), linear()), 0),
    "heads": (Net(heads, BinaryLinear(8, 24)), 3),
    "channel shuffle": (Net(shuffled), 0),
    "pixel shuffle": (Net(pixels), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_moves_vanish(name: str) -> None:
    torch.manual_seed(3)
    model, left = CASES[name]
    x = torch.randn(4, 3, 5, 6)
    with torch.no_grad():
        want = model.eval()(x).numpy()
    program = pack_program(model, example=x)
    found = run(program, x.numpy())
    assert found.shape == want.shape
    checked = verify(model, x.numpy())
    assert checked.holds
    if not checked.flips:
        np.testing.assert_allclose(found, want, atol=1e-4)
    assert [op.op for op in program.ops].count("permute") <= left


@pytest.mark.parametrize("signs", [False, True])
def test_constants_that_all_channels_share_move_with_the_trained_function(signs: bool) -> None:
    """ResMLP: a layer over the tokens, and one factor per channel, all equal at the start."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.tokens = nn.Conv2d(3, 8, 3, padding=1), BinaryLinear(30, 30)
            self.factor, self.shift = (
                nn.Parameter(torch.full((8,), 0.1)),
                nn.Parameter(torch.full((8,), 0.01)),
            )
            self.channels = BinaryLinear(8, 5) if signs else nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).flatten(2).transpose(1, 2)
            y = self.factor * self.tokens(x.transpose(1, 2)).transpose(1, 2) + self.shift
            return self.channels(y if signs else x + y)

    torch.manual_seed(2)
    model, x = Mixed().eval(), torch.randn(4, 3, 5, 6)
    with torch.no_grad():
        want = model(x).numpy()
    found = run(pack_program(model, example=x), x.numpy())
    assert verify(model, x.numpy()).holds
    np.testing.assert_allclose(found, want, atol=1e-5)


def test_a_network_of_sequences_folds_as_one_of_images() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv1d(2, 8, 5), nn.BatchNorm1d(8), nn.ReLU()]
    for _ in range(2):
        layers += [BinaryConv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    program = pack_program(model, (2, 40))
    names = [op.op for op in program.ops]
    assert names.count("reshape") == 1  # the sequence as an image of one row
    assert names.count("affine") == 2  # scale and batch norm are one
    assert verify(model, torch.randn(3, 2, 40).numpy()).holds


class Windows(nn.Module):
    """Attention in shifted windows of two by two pixels, as in Swin: windows are merged with the batch."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm(8)
        self.qkv, self.out = linear(8, 24), linear(8, 8)
        self.bias = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-1, -1), (1, 2)).view(n, h // 2, 2, w // 2, 2, c)
        y = y.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 2, 2, c).view(-1, 4, c)
        q, k, v = self.qkv(y).reshape(len(y), 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = ((q * 0.5) @ k.transpose(-2, -1) + self.bias.unsqueeze(0)).softmax(dim=3)
        y = self.out((scores @ v).transpose(1, 2).reshape(len(y), 4, c)).view(n, h // 2, w // 2, 2, 2, c)
        return (x + y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)).mean((1, 2))


@pytest.mark.parametrize("linear", [nn.Linear, BinaryLinear])
def test_an_axis_may_be_merged_with_the_batch_and_taken_apart_again(linear: type[nn.Linear]) -> None:
    torch.manual_seed(1)
    model, x = Windows(linear).eval(), torch.randn(3, 3, 6, 8)
    with torch.no_grad():
        want = model(x).numpy()
    checked = verify(model, x.numpy())
    assert checked.holds
    if not checked.flips:
        np.testing.assert_allclose(run(pack_program(model, example=x), x.numpy()), want, atol=1e-4)
