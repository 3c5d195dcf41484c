"""Values and filters of two numbers that are padded, moved and picked from, and transposed convolutions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images
from test_handwritten import (
    FILTERS,
    VALUES,
    Binarize,
    Conv,
    Function,
    Shift,
    Shift1d,
    network,
    operations,
    straight_through,
)
from torch import nn


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 0.5])
def test_padding_before_a_convolution(value: float) -> None:
    layer = Conv(lambda x: F.pad(torch.sign(x), (1, 1, 1, 1), value=value), straight_through, padding=0)
    made = operations(agrees(network(layer), images(3, 5, 5)))
    assert made.count("binary_conv2d") == (value != 0.5)
    assert made.count("conv2d") == 1 + (value == 0.5)


@pytest.mark.parametrize("sides", [(0, 1, 0, 1), (1, 0, 2, 0), (0, 3, 2, 1)])
@pytest.mark.parametrize("settings", [{}, {"stride": 2}, {"stride": 3, "padding": 1}, {"dilation": 2}])
@pytest.mark.parametrize("values", ["function", "from 2 to 5"])
def test_uneven_padding_before_a_convolution(
    sides: tuple[int, ...], settings: dict[str, int], values: str
) -> None:
    """As "same" padding of other frameworks has it; the values 2 and 5 are padded with neither."""
    layer = Conv(lambda x: F.pad(VALUES[values](x), sides), straight_through, **{"padding": 0, **settings})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Shift(8), layer, nn.PReLU(8)).eval()
    made = operations(agrees(model, images(3, 11, 9)))
    assert made.count("binary_conv2d") == 1
    assert made.count("conv2d") == (2 if values == "from 2 to 5" else 1)


def test_a_sequence_is_padded_before_a_causal_convolution() -> None:
    filters = straight_through(torch.randn(8, 8, 3, 1)).squeeze(3)
    model = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), Shift1d(8),
        Function(lambda x: F.conv1d(F.pad(torch.sign(x), (4, 0)), filters, dilation=2)),
    )  # fmt: skip
    made = operations(agrees(model, images(3, 11)))
    assert made.count("binary_conv2d") == made.count("conv2d") == 1


PICKED: dict[str, Binarize] = {
    "replicated": lambda x: F.pad(torch.sign(x), (1, 1, 1, 1), mode="replicate"),
    "reflected": lambda x: F.pad(0.3 * torch.sign(x), (2, 1, 1, 2), mode="reflect"),
    "circular": lambda x: F.pad(torch.sign(x), (1, 1, 1, 1), mode="circular"),
    "uneven, of a number": lambda x: F.pad(torch.sign(x), (0, 1, 2, 1), value=-1.0),
    "largest": lambda x: F.max_pool2d(torch.sign(x), 2, 1),
    "largest of 0 and 1": lambda x: F.max_pool2d((x > 0).float(), 3, 2, 1),
    "two parts": lambda x: torch.cat([torch.sign(x[:, :4]), torch.where(x[:, 4:] >= 0.1, 1.0, -1.0)], 1),
    "shuffled": lambda x: F.channel_shuffle(torch.sign(x), 2),
    "pixels": lambda x: F.pixel_unshuffle(F.pixel_shuffle(torch.sign(x), 2), 2),
    "turned": lambda x: torch.sign(x).flip(2),
    "rolled": lambda x: torch.sign(x).roll(1, 3),
    "larger": lambda x: F.interpolate(torch.sign(x), scale_factor=2),
    "cut": lambda x: torch.sign(x)[:, :, 1:-1, 1:],
    "ReLU of a sign": lambda x: torch.relu(torch.sign(x)),
    "clipped sign": lambda x: F.hardtanh(torch.sign(x)),
}


@pytest.mark.parametrize("name", PICKED)
def test_numbers_picked_from_two_are_two(name: str) -> None:
    torch.manual_seed(0)
    layer = Conv(PICKED[name], straight_through)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Shift(8), layer, nn.PReLU(8)).eval()
    made = operations(agrees(model, images(3, 9, 8)))
    assert made.count("binary_conv2d") == made.count("conv2d") == 1


@pytest.mark.parametrize("values", ["function", "scaled", "0 and 1", "from 2 to 5"])
@pytest.mark.parametrize("filters", ["straight through", "moved"])
@pytest.mark.parametrize(
    "settings", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "stride": 3}]
)
def test_transposed_convolutions_are_bits(values: str, filters: str, settings: dict[str, int]) -> None:
    torch.manual_seed(0)
    groups = settings.get("groups", 1)
    weight = FILTERS[filters](torch.randn(6, 8 // groups, 3, 3))  # of an ordinary one
    weight = weight.view(groups, 6 // groups, 8 // groups, 3, 3).transpose(1, 2).reshape(8, -1, 3, 3)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Shift(8),
        Function(lambda x: F.conv_transpose2d(VALUES[values](x), weight, torch.ones(6), **settings)),
        nn.PReLU(6),
    ).eval()  # fmt: skip
    made = operations(agrees(model, images(3, 6, 5)))
    assert "binary_conv2d" in made
    sums = filters == "moved" and groups > 1  # of each group
    assert made.count("conv2d") == 1 + sums + (values in ("0 and 1", "from 2 to 5"))
