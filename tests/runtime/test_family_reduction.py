"""Sums, means, extremes and normalisation: every engine against the definition and torch, odd sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cuda_host.cases import Writer
from engines import engines_agree

REDUCE = {
    "mean": lambda t, d: t.mean(d, keepdim=True),
    "sum": lambda t, d: t.sum(d, keepdim=True),
    "max": lambda t, d: t.amax(d, keepdim=True),
    "min": lambda t, d: t.amin(d, keepdim=True),
    "l2": lambda t, d: torch.linalg.vector_norm(t, dim=d, keepdim=True),
}


@pytest.mark.parametrize("function", REDUCE)
@pytest.mark.parametrize("axes", [(1, 2), (0,), (2,), (1,), (0, 2), (0, 1, 2)])
def test_reduce(function: str, axes: tuple[int, ...]) -> None:
    w = Writer((21, 5, 7), seed=1)
    value = w.op("reduce", w.op("relu", "input"), attrs={"function": function, "axes": list(axes)})
    x = w.normal(2, 21, 5, 7)
    twice = np.full(1 if 0 in axes else 21, 2, np.float32)
    got = engines_agree(w.program(w.op("affine", value, mult=twice)), x)
    want = 2 * REDUCE[function](torch.from_numpy(x).relu(), [axis + 1 for axis in axes])
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(24, 5, 7), (6, 1, 1), (48, 9, 2)])
@pytest.mark.parametrize(
    ("groups", "pixels", "centre"),
    [
        (1, False, True),
        (1, False, False),
        (3, True, True),
        (1, True, True),
        (6, True, True),
        (3, False, True),
    ],
)
def test_norm(shape: tuple[int, int, int], groups: int, pixels: bool, centre: bool) -> None:
    w = Writer(shape, seed=2)
    attrs = {"groups": groups, "pixels": pixels, "centre": centre, "eps": 1e-5}
    value = w.op("norm", w.op("affine", "input", add=w.normal(shape[0])), attrs=attrs)
    program = w.program(w.op("affine", value, mult=w.normal(shape[0]), add=w.normal(shape[0])))
    x = 3 * w.normal(2, *shape)
    got = engines_agree(program, x)
    t = torch.from_numpy(x).double() + torch.from_numpy(w.tensors["v0.add"]).view(1, -1, 1, 1)
    parts = t.view(2, groups, shape[0] // groups, *shape[1:])
    axes = (2, 3, 4) if pixels else (2,)
    mean = parts.mean(axes, keepdim=True) if centre else torch.zeros(1)
    want = (parts - mean) / ((parts - mean).square().mean(axes, keepdim=True) + 1e-5).sqrt()
    mult, add = (torch.from_numpy(w.tensors[f"v2.{role}"]).view(1, -1, 1, 1) for role in ("mult", "add"))
    np.testing.assert_allclose(got, (want.view(t.shape) * mult + add).numpy(), rtol=1e-5, atol=2e-5)


def test_norm_is_torchs() -> None:
    w = Writer((24, 5, 7), seed=3)
    t = torch.from_numpy(w.normal(2, 24, 5, 7))
    forms = {
        (4, True): F.group_norm(t, 4),
        (24, True): F.instance_norm(t),
        (1, False): F.layer_norm(t.movedim(1, 3), [24]).movedim(3, 1),
    }
    for (groups, pixels), want in forms.items():
        own = Writer((24, 5, 7))
        attrs = {"groups": groups, "pixels": pixels, "centre": True, "eps": 1e-5}
        program = own.program(own.op("norm", "input", attrs=attrs))
        np.testing.assert_allclose(engines_agree(program, t.numpy()), want.numpy(), rtol=1e-5, atol=1e-5)
