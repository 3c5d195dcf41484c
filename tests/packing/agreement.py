"""What every form that packs must satisfy: torch's numbers in both engines, and `verify`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from networks import Lambda
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import PackError, check_packable, pack_program, verify


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


def is_refused(model: nn.Module, example: Any, reason: str, remedy: str) -> None:
    """The first obstacle has this operation with its reason (a pattern), and this in its remedy. The error's
    text has the line of the model too, in which a test may have the pattern itself."""
    (obstacle, *_) = check_packable(model, example).obstacles
    assert re.search(reason, f"{obstacle.operation} {obstacle.reason}"), str(obstacle)
    assert remedy in obstacle.remedy
    assert "\n" not in str(obstacle)
    with pytest.raises(PackError) as error:
        pack_program(model, example=example)
    assert str(error.value).startswith(str(obstacle))
