"""Functions of one number: the stated error against float64, equal bits in every engine, edges and tails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda_host.cases import Writer
from engines import engines_agree

from xnorpp.runtime.reference.curves import CURVES

F = torch.nn.functional
# name -> (the function in float64, the bound in units of 2**-24 of (|y|, |x|, 1))
TRUE = {
    "sigmoid": (torch.sigmoid, (4, 0, 0)),
    "silu": (F.silu, (5, 0, 0)),
    "tanh": (torch.tanh, (4, 0, 0)),
    "elu": (lambda x: F.elu(x, 1.5), (5, 0, 0)),
    "softplus": (lambda x: torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0), (5, 0, 0)),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), (8, 0, 0)),
    "gelu": (F.gelu, (3, 2, 0)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (3, 2, 0)),
    "hardswish": (F.hardswish, (4, 1, 0)),
    "exp": (torch.exp, (3, 0, 0)),
    "log": (torch.log, (3, 0, 0)),
    "erf": (torch.erf, (4, 0, 0)),
    "sqrt": (torch.sqrt, (1, 0, 0)),
    "reciprocal": (torch.reciprocal, (1, 0, 0)),
}


def numbers() -> np.ndarray:
    rng = np.random.default_rng(5)
    near = np.concatenate([np.linspace(-12, 12, 20001), np.linspace(-80, 80, 4001), rng.normal(size=4000)])
    tiny = rng.choice([-1, 1], 2000) * np.exp2(rng.uniform(-120, 6, 2000))
    return np.concatenate([near, tiny]).astype(np.float32)


def test_every_curve_is_here() -> None:
    assert set(TRUE) == set(CURVES)


@pytest.mark.parametrize("name", TRUE)
def test_the_stated_error_holds(name: str) -> None:
    x = numbers()
    if name in ("log", "sqrt"):
        x = np.abs(x)
    function, (of_y, of_x, of_one) = TRUE[name]
    want = function(torch.from_numpy(x).double()).numpy()
    with np.errstate(all="ignore"):
        got = CURVES[name](x, 1.5) if name == "elu" else CURVES[name](x)
        fits = np.isfinite(want) & (np.abs(want) < 3.4e38)
        bound = 2.0**-24 * (of_y * np.abs(want) + of_x * np.abs(x) + of_one) + 2.0**-149
        error = np.abs(got.astype(np.float64) - want)
    assert (error <= bound)[fits].all(), np.max((error / bound)[fits])


@pytest.mark.parametrize("name", TRUE)
def test_edges(name: str) -> None:
    function = TRUE[name][0]
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 89.5, -104.5, 1e30, -1e30, 1e-45], np.float32)
    with np.errstate(all="ignore"):
        got = CURVES[name](x, 1.5) if name == "elu" else CURVES[name](x)
    want = function(torch.from_numpy(x)).numpy()
    if name in ("silu", "mish", "gelu", "gelu_tanh", "hardswish"):
        got, want = (
            np.delete(got, [1, 2]),
            np.delete(want, [1, 2]),
        )  # 0 times infinity
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=3e-38)


@pytest.mark.parametrize("channels", [1, 21, 64])
def test_engines_give_the_same_bits(channels: int) -> None:
    """All curves in one program, each on a line of its own and all of them summed."""
    w = Writer((channels, 5, 7), seed=channels)
    total = "input"
    for name in CURVES:
        source = w.op("affine", "input", mult=w.normal(channels), add=w.normal(channels))
        if name in ("log", "sqrt"):
            source = w.op("prelu", source, slope=np.full(1, -1, np.float32))
        value = w.op(name, source, attrs={"alpha": 0.7} if name == "elu" else {})
        total = w.op("add", total, w.op("hardtanh", value, attrs={"min": -50.0, "max": 50.0}))
    x = 4 * w.normal(2, channels, 5, 7)
    assert np.isfinite(engines_agree(w.program(total), x)).all()


def test_a_curve_after_a_binary_convolution_and_before_a_sign() -> None:
    w = Writer((40, 6, 5), seed=2)
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    value = w.op("binary_conv2d", w.bits("input", 40), attrs=attrs, weight=w.signs(33, 40, 3, 3))
    value = w.op("silu", w.op("affine", value, mult=w.normal(33) / 20, add=w.normal(33)))
    value = w.op("binary_conv2d", w.bits(value, 33), attrs=attrs, weight=w.signs(20, 33, 3, 3))
    engines_agree(
        w.program(w.op("gelu", w.op("affine", value, mult=w.normal(20) / 20))), w.normal(3, 40, 6, 5)
    )
