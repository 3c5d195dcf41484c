"""AdaBin's sets, packed: the same bits in every engine, and those of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engines import engines_agree
from torch import nn

from xnorpp.models import create_model
from xnorpp.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, set_stage
from xnorpp.packing import pack_program, verify


def moved(model: nn.Module) -> nn.Module:
    """Sets, filters and batch norms that are not those of the start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("sets.extent"):
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith(("sets.middle", "running_mean")):
                tensor.normal_(0, 0.3, generator=generator)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif name.endswith("weight") and tensor.dim() > 1:
                shifts = torch.randn(len(tensor), *(1,) * (tensor.dim() - 1), generator=generator)
                tensor.add_(0.5 * tensor.std() * shifts)
    return model.eval()


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "3x3": (BinaryConv2d(20, 40, 3, padding=1, adaptive_sets=True), (20, 9, 7)),
    "strided": (BinaryConv2d(64, 64, 3, 2, 1, adaptive_sets=True, scale=None), (64, 8, 8)),
    "groups": (BinaryConv2d(12, 8, 3, padding=1, groups=4, adaptive_sets=True), (12, 6, 6)),
    "border": (BinaryConv2d(12, 8, 3, padding=1, padding_value=-1, adaptive_sets=True), (12, 6, 6)),
    "pixels": (BinaryConv2d(16, 24, 1, adaptive_sets=True, scale="channel_height_width"), (16, 5, 6)),
    "sequence": (BinaryConv1d(16, 8, 3, padding=1, adaptive_sets=True), (16, 10)),
    "vector": (BinaryLinear(70, 12, adaptive_sets=True), (70,)),
    "vectors": (BinaryLinear(20, 12, adaptive_sets=True), (6, 20)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_equal_in_every_engine(name: str) -> None:
    layer, shape = LAYERS[name]
    model = moved(nn.Sequential(layer))
    x = pixels(3, *shape)
    result = verify(model, x)
    assert result.holds
    assert result.bits > 0
    assert result.flips == 0
    program = pack_program(model, torch.zeros(2, *shape))
    binary = [op.op for op in program.ops if op.op in ("binary_conv2d", "binary_linear")]
    assert len(binary) == 2, "the products, and the sums of the signs"
    want = engines_agree(program, x)
    with torch.no_grad():
        np.testing.assert_allclose(want, model(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"standardize_weights": True, "weights": "recu", "downsample": "binary"}],
    ids=["default", "recu"],
)
def test_a_network_packs(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", input_size=12, num_classes=7, adaptive_sets=True, **options)
    x = pixels(3, 3, 12, 12)
    with torch.no_grad():
        model.train()(torch.from_numpy(x))
    result = verify(moved(model), x)
    assert result.holds
    assert result.bits > 50_000
    assert result.flips <= 1e-3 * result.bits
    engines_agree(pack_program(model, 12), x, rtol=1e-4, atol=1e-4)


def test_the_first_of_two_stages_packs() -> None:
    model = nn.Sequential(BinaryConv2d(6, 8, 3, padding=1, padding_value=1, adaptive_sets=True))
    set_stage(moved(model), weights_binary=False)
    x = pixels(2, 6, 5, 5)
    assert verify(model, x).holds
    engines_agree(pack_program(model, (6, 5, 5)), x, rtol=1e-5, atol=1e-4)
