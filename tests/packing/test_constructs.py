"""Each construct of common networks: made binary, trained, packed, and compared with torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from constructs import CONSTRUCTS, Enlarged, Transformer, UNet
from torch import nn

from xnorpp import PackedModel, binarize, pack
from xnorpp.packing import PackError, verify


def tensors(result: Any) -> list[Any]:
    return list(result.values()) if isinstance(result, dict) else [result]


def trained(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    make, shape = CONSTRUCTS[name]
    model = make()
    report = binarize(model, example=torch.randn(2, *shape))
    assert report.changed, "something is binary"
    assert report.obstacles == ()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        sum(y.square().mean() for y in tensors(model(torch.randn(8, *shape)))).backward()
        optimizer.step()
    return model.eval(), shape


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_construct_packs_and_gives_torchs_class(name: str) -> None:
    model, shape = trained(name)
    x = torch.randn(100, *shape)
    with torch.no_grad():
        want = [y.numpy() for y in tensors(model(x))]
    packed = pack(model, example=x[:2])
    found = tensors(packed(x.numpy()))
    for a, b in zip(want, found, strict=True):
        assert a.shape == b.shape
        assert np.mean(a.argmax(1) == b.argmax(1)) >= 0.99
    assert verify(model, x[:8].numpy()).holds
    for a, b in zip(found, tensors(PackedModel(packed.program, isa="reference")(x[:3].numpy())), strict=True):
        close = np.isclose(a[:3], b, rtol=1e-4, atol=1e-4).reshape(3, -1).all(1)
        same = (a[:3].argmax(1) == b.argmax(1)).reshape(3, -1).all(1)
        assert close.any()
        assert (close | same).all()  # rounding may turn the sign of a value that is nearly 0


@pytest.mark.parametrize("kind", [UNet, Enlarged])
def test_a_dense_network_takes_images_of_any_size(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    binarize(model, example=(3, 16, 16))
    packed = pack(model.eval(), (3, 16, 16))
    assert packed.program.variable
    for size in ((16, 16), (24, 12), (20, 36)):
        x = torch.randn(2, 3, *size)
        with torch.no_grad():
            want = model(x).numpy()
        np.testing.assert_allclose(packed(x.numpy()), want, atol=1e-4)
    assert not pack(model, (3, 16, 16), any_size=False).program.variable


def test_what_is_bound_to_a_size_is_packed_for_it_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1))
    model.append(nn.Conv2d(8, 2, 1))
    binarize(model, example=(3, 12, 12), scale="channel_height_width")
    assert not pack(model.eval(), (3, 12, 12)).program.variable
    with pytest.raises(PackError, match="is not possible: the model does not run on 44x76"):
        pack(model, (3, 12, 12), any_size=True)
    with pytest.raises(PackError, match="`any_size`"):
        pack(Transformer().eval(), (3, 16, 16), any_size=True)
    with pytest.raises(ValueError, match=r"`any_size` \(=True\) is for images"):
        pack(nn.Sequential(nn.Linear(4, 3)), (4,), any_size=True)
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    assert not pack(pooled, (3, 8, 8)).program.variable
    packed = pack(pooled, (3, 8, 8), any_size=True)
    x = torch.randn(2, 3, 9, 17)
    with torch.no_grad():
        np.testing.assert_allclose(packed(x.numpy()), pooled(x).numpy(), atol=1e-5)
