"""Inspecting torch networks: counts, reasons, and what only looks binary."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from xnorpp.inspect import inspect_network, inspect_program, render
from xnorpp.models import create_model
from xnorpp.nn import BinaryConv2d, BinaryLinear, set_stage
from xnorpp.packing import pack_program as pack


def test_small_network_before_and_after_packing() -> None:
    model = create_model("small", input_size=16, width=8, in_channels=1).eval()
    found = inspect_network(model)
    packed = inspect_program(pack(model, 16))
    states = {layer.name: layer.state for layer in found.layers}
    assert states == {layer.name: layer.state for layer in packed.layers}
    assert states["conv1"] == states["fc"] == "real"
    assert states["blocks.0.conv1"] == "binary"
    assert found.warnings == packed.warnings == ()
    before = {layer.name: layer for layer in found.layers}
    for layer in packed.layers:
        twin = before[layer.name]
        assert layer.geometry == twin.geometry
        assert (layer.weight_bits, layer.input_bits) == (twin.weight_bits, twin.input_bits)
        assert layer.binary_operations == twin.binary_operations
    assert "first layer" in before["conv1"].why
    assert "last layer" in before["fc"].why
    text = render(found)
    assert "blocks.0.conv1" in text
    assert json.loads(json.dumps(found.to_dict()))["total"]["bytes"] == found.total_bytes


def test_bytes_of_a_file_add_up() -> None:
    program = pack(create_model("small", input_size=16, width=8, in_channels=1).eval(), 16)
    found = inspect_program(program)
    tensors = sum(tensor.nbytes for tensor in program.tensors.values())
    shared = len(program.tensors) < sum(len(op.tensors) for op in program.ops)
    total = sum(layer.bytes for layer in found.layers) + found.other_bytes
    assert total == tensors or (shared and total > tensors)


class Mistakes(nn.Module):
    """Layers that a person might take for binary."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.signed_weights = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        with torch.no_grad():
            alpha = torch.rand(8, 1, 1, 1) + 0.5
            self.signed_weights.weight.copy_(torch.where(self.signed_weights.weight > 0, alpha, -alpha))
        self.fed_signs = nn.Conv2d(8, 8, 3, padding=1)
        self.not_really = BinaryConv2d(8, 8, 3, padding=1, method="real")
        self.weights_only = BinaryConv2d(8, 8, 1, method="binaryconnect")
        self.good = BinaryConv2d(8, 5, 1, method="bnn")
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.signed_weights(self.stem(x))
        x = self.fed_signs(torch.where(x > 0, 1.0, -1.0))
        x = self.good(self.weights_only(self.not_really(x)))
        return self.head(x.mean((2, 3)))


def test_what_only_looks_binary_is_named() -> None:
    found = inspect_network(Mistakes(), torch.randn(2, 3, 6, 6))
    states = {layer.name: layer.state for layer in found.layers}
    assert states["good"] == "binary"
    assert states["weights_only"] == "one-bit weights"
    assert states["not_really"] == states["signed_weights"] == states["fed_signs"] == "real"
    named = {text.partition(":")[0] for text in found.warnings}
    assert named == {"signed_weights", "fed_signs", "not_really", "weights_only"}
    assert next(layer for layer in found.layers if layer.name == "good").wasted_bits == 0


def test_the_same_mistakes_in_a_packed_file() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        BinaryConv2d(8, 8, 3, method="binaryconnect"),
        nn.Conv2d(8, 8, 1, bias=False),
        nn.Flatten(),
        nn.Linear(32, 2),
    )
    with torch.no_grad():
        model[2].weight.copy_(torch.where(model[2].weight > 0, 0.25, -0.25))
    found = inspect_program(pack(model.eval(), 6))
    states = {layer.name: layer.state for layer in found.layers}
    assert states["1"] == "one-bit weights"
    named = {text.partition(":")[0] for text in found.warnings}
    assert {"1", "2"} <= named
    assert any("no layer of this file is binary" in text for text in found.warnings)


def test_first_stage_is_not_binary() -> None:
    model = create_model("small", input_size=16, width=8, in_channels=1).eval()
    set_stage(model, weights_binary=False)
    found = inspect_network(model)
    assert found.count("binary") == 0
    assert any("first training stage" in text for text in found.warnings)
    packed = inspect_program(pack(model, 16))
    assert packed.count("binary") == 0
    assert any("floats" in text for text in packed.warnings)


def test_input_scale_costs_real_operations() -> None:
    plain = nn.Sequential(
        BinaryConv2d(4, 6, 3, method="xnor", scale="alpha"), nn.Flatten(), BinaryLinear(96, 3)
    )
    with_k = nn.Sequential(
        BinaryConv2d(4, 6, 3, method="xnor", scale="alpha_k"), nn.Flatten(), BinaryLinear(96, 3)
    )
    example = torch.randn(1, 4, 6, 6)
    first, second = (inspect_network(model, example).layers[0] for model in (plain, with_k))
    assert first.real_operations == 6 * 16
    assert second.real_operations == 6 * 16 + 4 * 36 + 9 * 16 + 6 * 16


def test_a_foreign_network_needs_an_example() -> None:
    with pytest.raises(ValueError, match="`example`"):
        inspect_network(nn.Sequential(nn.Linear(3, 2)))
