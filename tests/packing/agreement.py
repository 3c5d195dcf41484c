"""What every form that packs must satisfy: torch's numbers in both engines, and `verify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from networks import Lambda
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import verify


def images(*shape: int, n: int = 3, seed: int = 0) -> Tensor:
    """Random numbers, some of which are exactly zero."""
    x = np.random.default_rng(seed).standard_normal((n, *shape)).astype(np.float32)
    x[np.abs(x) < 0.1] = 0
    return torch.from_numpy(x)


def agrees(function: Callable[[Tensor], Any] | nn.Module, x: Tensor, rtol: float = 1e-4) -> Any:
    """Packs a function of images by their shape (zeros) and by these images, and compares with torch."""
    model = function if isinstance(function, nn.Module) else Lambda(function)
    model.eval()
    with torch.no_grad():
        wanted = model(x.clone()).numpy()
    for example in (torch.zeros_like(x[:2]), x):
        packed = xnorpp.pack(model, example=example)
        for isa in (None, "reference"):
            found = xnorpp.PackedModel(packed.program, isa=isa)(x.numpy())
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=1e-3))
    assert verify(model, x.numpy()).holds
    return packed
