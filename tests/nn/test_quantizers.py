from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xnorpp.nn import QUANTIZERS, hard_sign, sign
from xnorpp.nn.quantizers import find_quantizer

SURROGATES = {name: kind() for name, kind in QUANTIZERS.items() if kind.encoding is not None}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def stated_slope(name: str, x: float, progress: float, mean: float = 0.0) -> float:
    """The gradient each docstring states, written again in plain Python; `mean` is that of |x|."""
    if name == "window":
        return 1.0 if abs(x) <= 3 - 2 * progress else 0.0
    if name == "recu":
        quantile = 0.85 + 0.14 * math.expm1(progress) / math.expm1(1)
        return 1.0 if abs(x) <= -mean * math.log(2 - 2 * quantile) else 0.0
    if name == "ste":
        return 1.0 if abs(x) <= 1 else 0.0
    if name == "polynomial":
        return 2 - 2 * abs(x) if abs(x) <= 1 else 0.0
    assert name == "tanh"
    t = 0.1 * 100**progress
    return max(1 / t, 1) * t * (1 - math.tanh(t * x) ** 2)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_is_exactly_plus_or_minus_one(name: str, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor(
        [0.0, -0.0, tiny, -tiny, 0.3, -0.3, 7.7, -7.7, math.inf, -math.inf, math.nan], dtype=dtype
    )
    expected = torch.tensor([-1, -1, 1, -1, 1, -1, 1, -1, 1, -1, -1], dtype=dtype)
    result = SURROGATES[name](x.requires_grad_(), 0.5)
    assert result.dtype == dtype
    assert torch.equal(result, expected)
    assert torch.equal(torch.compile(SURROGATES[name], backend="eager")(x, 0.5), expected)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_is_the_stated_formula(name: str, progress: float, compiled: bool) -> None:
    values = [-3.0, -1.0 - 2**-23, -1.0, -0.6, -1e-3, 0.0, 1e-3, 0.25, 1.0, 1.0 + 2**-23, 40.0]
    x = torch.tensor(values, requires_grad=True)
    upstream = torch.linspace(-2, 3, len(values))
    function = torch.compile(SURROGATES[name], backend="aot_eager") if compiled else SURROGATES[name]
    function(x, torch.tensor(progress)).backward(upstream)
    mean = sum(map(abs, values)) / len(values)
    expected = torch.tensor([stated_slope(name, v, progress, mean) for v in values]) * upstream
    saturation = 2e-5 if name == "tanh" else 1e-7  # 1 - tanh^2 cancels in float32
    torch.testing.assert_close(x.grad, expected, rtol=2e-6, atol=saturation)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [False, True])
def test_straight_through_gradient_includes_one_and_nothing_beyond(
    dtype: torch.dtype, compiled: bool
) -> None:
    above = 1 + torch.finfo(dtype).eps
    x = torch.tensor([-above, -1.0, 1.0, above, math.inf, -math.inf], dtype=dtype, requires_grad=True)
    function = torch.compile(sign, backend="aot_eager") if compiled else sign
    function(x).backward(torch.full_like(x, 3.0))
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 3.0, 3.0, 0.0, 0.0, 0.0]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_sign_agrees_with_equation_one_on_any_float(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    expected = [1.0 if v > 0 else -1.0 for v in values]
    assert sign(x).tolist() == expected
    assert hard_sign(x).tolist() == expected


@pytest.mark.parametrize(
    "spelling", ["window(start=0.0)", "window(end=-1.0)", "recu(start=0.4)", "recu(start=0.9, end=0.8)"]
)
def test_windows_and_quantiles_out_of_range_are_refused(spelling: str) -> None:
    with pytest.raises(ValueError, match=r"`start` \(=.*`end` \(=.*must"):
        find_quantizer(spelling)


def test_annealed_tanh_follows_its_progress_tensor_without_recompiling() -> None:
    compilations = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        compilations.append(graph)
        return graph

    function = torch.compile(SURROGATES["tanh"], backend=backend)
    slopes = []
    for progress in (0.0, 0.5, 1.0):
        x = torch.tensor([0.2], requires_grad=True)
        function(x, torch.tensor(progress)).backward()
        assert x.grad is not None
        slopes.append(x.grad.item())
    assert slopes == pytest.approx([stated_slope("tanh", 0.2, p) for p in (0.0, 0.5, 1.0)], rel=1e-5)
    assert len(compilations) == 1
