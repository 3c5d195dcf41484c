"""Random binary layers of torch's own functions are counted in bits and agree with torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_handwritten import FILTERS, VALUES, Shift
from test_handwritten_moved import PICKED
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import verify

GEOMETRIES: dict[str, dict[str, Any]] = {
    "3x3": {"kernel": (3, 3), "padding": 1},
    "1x1": {"kernel": (1, 1)},
    "2x3": {"kernel": (2, 3), "padding": (0, 1)},
    "wide": {"kernel": (5, 5), "padding": 2},
    "strided": {"kernel": (3, 3), "padding": 1, "stride": 2},
    "dilated": {"kernel": (3, 3), "padding": 2, "dilation": 2},
    "grouped": {"kernel": (3, 3), "groups": 2},
    "depthwise": {"kernel": (3, 3), "padding": 1, "groups": 8},
    "same": {"kernel": (2, 4), "padding": "same"},
    "transposed": {"kernel": (3, 3), "padding": 1},
    "transposed by two": {"kernel": (2, 2), "stride": 2},
    "linear": {"kernel": (1, 1)},
}
BORDERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "zeros": {"pad": (1, 1, 1, 1)},
    "uneven": {"pad": (0, 1, 2, 0)},
    "replicated": {"pad": (1, 0, 1, 2), "mode": "replicate"},
}
ENDS = ("nothing", "shortcut", "second reader", "concatenated", "gate", "largest")


class Layer(nn.Module):
    """Values, filters, geometry and what follows, each drawn by a seed."""

    def __init__(self, draw: random.Random, inputs: int = 8) -> None:
        super().__init__()
        values = draw.choice([*VALUES, *PICKED])
        self.values = (VALUES | PICKED)[values]
        self.filters = FILTERS[draw.choice(list(FILTERS))]
        self.geometry = draw.choice(list(GEOMETRIES))
        self.settings = dict(GEOMETRIES[self.geometry])
        kernel, groups = self.settings.pop("kernel"), self.settings.get("groups", 1)
        outputs = inputs if groups > 1 else draw.choice([inputs, 5, 33])
        self.weight = nn.Parameter(torch.randn(outputs, inputs // groups, *kernel) * draw.choice([0.01, 1.0]))
        self.bias = nn.Parameter(torch.randn(outputs)) if draw.random() < 0.3 else None
        self.border = BORDERS[draw.choice(list(BORDERS))]
        self.before = nn.Sequential(Shift(inputs), nn.PReLU(inputs)) if draw.random() < 0.3 else Shift(inputs)
        self.norm = nn.BatchNorm2d(outputs) if draw.random() < 0.7 else nn.Identity()
        self.act = draw.choice([nn.PReLU(outputs), nn.Hardtanh(), nn.ReLU(), nn.Identity(), nn.GELU()])
        self.end = draw.choice(ENDS)
        self.outputs = outputs + (inputs if self.end == "concatenated" else 0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        bits, w = self.values(x.clone()), self.filters(self.weight)
        if self.geometry == "linear":
            y = F.linear(bits.movedim(1, 3), w.flatten(1), self.bias).movedim(3, 1)
        elif self.geometry.startswith("transposed"):
            y = F.conv_transpose2d(bits, w.transpose(0, 1), self.bias, **self.settings)
        else:
            padded = bits if self.border is None or self.geometry == "same" else F.pad(bits, **self.border)
            y = F.conv2d(padded, w, self.bias, **self.settings)
        y = self.act(self.norm(y))
        if self.end == "shortcut":
            y = y + F.adaptive_avg_pool2d(x, y.shape[2:]).mean(1, keepdim=True)
        elif self.end == "second reader":
            y = y + F.adaptive_max_pool2d(bits, y.shape[2:]).mean(1, keepdim=True)
        elif self.end == "concatenated":
            y = torch.cat([y, F.adaptive_avg_pool2d(x, y.shape[2:])], 1)
        elif self.end == "gate":
            y = y * torch.sigmoid(y.mean((2, 3), keepdim=True))
        elif self.end == "largest":
            y = F.max_pool2d(y, 2, ceil_mode=True)
        return y


def network(seed: int) -> nn.Module:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    layers = [Layer(draw)]
    if draw.random() < 0.3:
        layers += [nn.Conv2d(layers[0].outputs, 8, 1), nn.BatchNorm2d(8), Layer(draw)]
    last = layers[-1].outputs
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(4 * last, 5),
    )  # fmt: skip
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight, -1.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("seed", range(48))
def test_a_random_layer_is_counted_in_bits_and_agrees(seed: int) -> None:
    model = network(seed)
    size = random.Random(seed).choice([(11, 9), (8, 12), (13, 10)])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    packed = xnorpp.pack(model, (3, *size))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    made = [op.op for op in packed.program.ops]
    assert made.count("binary_conv2d") >= sum(isinstance(part, Layer) for part in model)
    for count in (1, 3):
        x = np.random.default_rng(seed).standard_normal((count, 3, *size)).astype(np.float32)
        with torch.no_grad():
            wanted = model(torch.from_numpy(x.copy())).numpy()
        for isa in (None, "reference"):
            found = xnorpp.PackedModel(packed.program, isa=isa)(x)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    assert verify(model, x).holds
