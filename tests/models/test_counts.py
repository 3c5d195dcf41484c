"""Weights and multiply-adds against the architecture table of He et al. 2016, which is also torchvision's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from xnorpp.models import create_model
from xnorpp.nn import binary_layers

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
PUBLISHED_WEIGHTS = {"resnet18": 11_678_912, "resnet34": 21_779_648}
PUBLISHED_MULTIPLY_ADDS = {"resnet18": 1_814_073_344, "resnet34": 3_663_761_408}


def from_the_table(name: str) -> tuple[int, int]:
    """(weights, multiply-adds) at 224 pixels: 7x7 stem, stages at 56, 28, 14 and 7, 1x1 projections."""
    weights = 64 * 3 * 49
    operations = weights * 112 * 112
    inputs = 64
    for stage, count in enumerate(BLOCKS[name]):
        width, side = 64 << stage, 56 >> stage
        convolutions = [inputs * width * 9, *[width * width * 9] * (2 * count - 1)]
        if inputs != width:
            convolutions.append(inputs * width)
        weights += sum(convolutions)
        operations += sum(convolutions) * side * side
        inputs = width
    return weights + 512 * 1000, operations + 512 * 1000


def counted(model: nn.Module, size: int) -> tuple[int, int]:
    """(weights, multiply-adds) of the convolutions and linears that a real forward pass runs through."""
    weights = operations = 0

    def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal weights, operations
        weights += module.weight.numel()
        positions = output.shape[-2] * output.shape[-1] if output.dim() == 4 else 1
        operations += module.weight.numel() * positions

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, size, size))
    return weights, operations


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(
    "options", [{"method": "real"}, {"method": "xnor++"}, {"method": "bnn", "downsample": "real"}]
)
def test_weights_and_multiply_adds_are_torchvisions(name: str, options: dict[str, str]) -> None:
    expected = (PUBLISHED_WEIGHTS[name], PUBLISHED_MULTIPLY_ADDS[name])
    assert from_the_table(name) == expected
    model = create_model(name, input_size=224, num_classes=1000, **options)
    assert counted(model, 224) == expected


def test_resnet20_has_he_et_als_convolutions_and_two_projections() -> None:
    plain = (
        3 * 16 * 9 + 6 * 16 * 16 * 9 + 16 * 32 * 9 + 5 * 32 * 32 * 9 + 32 * 64 * 9 + 5 * 64 * 64 * 9 + 64 * 10
    )
    model = create_model("resnet20", input_size=32, num_classes=10)
    assert counted(model, 32)[0] == plain + 16 * 32 + 32 * 64


def test_reactnet_a_has_the_papers_binary_multiply_adds() -> None:
    """4.82e9 binary ones at 224 pixels (Liu et al. 2020, Table 2); stem and classifier are the real ones."""
    model = create_model("reactnet-a", input_size=224, num_classes=1000)
    weights, operations = counted(model, 224)
    real = 3 * 32 * 9 * 112 * 112 + 1024 * 1000
    assert round((operations - real) / 1e9, 2) == 4.82
    assert weights - 3 * 32 * 9 - 1024 * 1000 == sum(m.weight.numel() for _, m in binary_layers(model))
