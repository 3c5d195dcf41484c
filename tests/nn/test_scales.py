from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from xnorpp.nn import (
    METHOD_SCALES,
    SCALES,
    AlphaKScale,
    AlphaScale,
    BinaryConv2d,
    ChannelHeightWidthScale,
    ChannelScale,
)
from xnorpp.nn.means import input_scale

SHAPES = {
    "channel": [(5, 1, 1)],
    "dense": [(5, 3, 4)],
    "channel_spatial": [(5, 1, 1), (1, 3, 4)],
    "channel_height_width": [(5, 1, 1), (1, 3, 1), (1, 1, 4)],
}
LEARNED = METHOD_SCALES["xnor++"]
SPATIAL = [name for name in LEARNED if SCALES[name].spatial]


@pytest.mark.parametrize("name", LEARNED)
def test_factors_have_the_papers_shapes_and_multiply_to_the_tensor(name: str) -> None:
    scale = SCALES[name](5, (3, 4))
    for parameter in scale.parameters():
        torch.nn.init.normal_(parameter)
    assert [tuple(factor.shape) for factor in scale.factors()] == SHAPES[name]
    product = torch.ones(1)
    for factor in scale.factors():
        product = product * factor
    assert torch.equal(scale.tensor(), product)
    assert scale.tensor().shape == ((5, 1, 1) if name == "channel" else (5, 3, 4))
    assert scale.name == name


@pytest.mark.parametrize("name", LEARNED)
def test_scale_gradients_are_those_of_finite_differences(name: str) -> None:
    layer = BinaryConv2d(2, 3, 3, padding=1, scale=name, output_size=(2, 3), dtype=torch.float64)
    x = torch.randn(2, 2, 2, 3, dtype=torch.float64)
    factors = layer.scale_factors()

    def loss(*values: torch.Tensor) -> torch.Tensor:
        replaced = {f"scale.{n}": v for (n, _), v in zip(layer.scale.named_parameters(), values, strict=True)}
        return torch.func.functional_call(layer, replaced, (x,)).square().sum()

    values = tuple(torch.randn_like(f).requires_grad_() for f in factors)
    assert torch.autograd.gradcheck(loss, values)


@pytest.mark.parametrize("name", LEARNED)
def test_start_sets_alpha_and_leaves_the_other_factors_one(name: str) -> None:
    scale = SCALES[name](5, (3, 4))
    alpha = torch.arange(1.0, 6.0)
    scale.start_(alpha)
    torch.testing.assert_close(scale.tensor(), alpha.view(5, 1, 1).expand_as(scale.tensor()))
    scale.start_()
    assert torch.equal(scale.tensor(), torch.ones_like(scale.tensor()))


@pytest.mark.parametrize("name", SPATIAL)
def test_another_size_is_an_error_with_both_sizes_until_resized(name: str) -> None:
    layer = BinaryConv2d(2, 3, 3, padding=1, scale=name, output_size=(4, 6))
    x = torch.randn(1, 2, 8, 5)
    with pytest.raises(ValueError, match=r"\(4, 6\).*\(8, 5\).*resize"):
        layer(x)
    before = layer.scale.tensor().mean((1, 2))
    layer.scale.resize((8, 5))
    assert layer(x).shape == (1, 3, 8, 5)
    assert layer.output_size == layer.scale.output_size == (8, 5)
    torch.testing.assert_close(layer.scale.tensor().mean((1, 2)), before)  # a constant map stays constant


@pytest.mark.parametrize("name", SPATIAL)
def test_resizing_from_one_pixel_and_to_the_same_size(name: str) -> None:
    scale = SCALES[name](2, (1, 1))
    same = scale.factors()
    scale.resize((1, 1))
    assert all(a is b for a, b in zip(same, scale.factors(), strict=True))
    scale.resize((2, 3))
    assert scale.tensor().shape == (2, 2, 3)


def test_resizing_interpolates_rows_and_columns() -> None:
    scale = ChannelHeightWidthScale(1, (2, 1))
    with torch.no_grad():
        scale.beta.copy_(torch.tensor([1.0, 3.0]).view(1, 2, 1))
    scale.resize((4, 1))
    assert scale.beta.flatten().tolist() == pytest.approx([1.0, 1.5, 2.5, 3.0])


def test_a_channel_scale_takes_any_size() -> None:
    scale = ChannelScale(2)
    scale.check_size((9, 9))
    scale.resize((3, 3))
    assert scale.output_size is None
    assert scale.tensor().shape == (2, 1, 1)


@pytest.mark.parametrize("name", SPATIAL)
@pytest.mark.parametrize("size", [(0, 3), (3,)])
def test_bad_sizes_are_named(name: str, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="`output_size`"):
        SCALES[name](4, size)
    with pytest.raises(ValueError, match="`output_size`"):
        SCALES[name](4, (2, 2)).resize((0, 1))
    with pytest.raises(ValueError, match="`out_channels`"):
        SCALES[name](0, (2, 2))


def test_analytic_alpha_is_the_mean_magnitude_of_a_filter() -> None:
    weight = torch.randn(4, 3, 2, 2)
    expected = torch.tensor([w.abs().sum().item() / 12 for w in weight]).view(4, 1, 1)
    scale = AlphaScale()
    torch.testing.assert_close(scale.tensor(weight), expected)
    torch.testing.assert_close(scale.factors(weight)[0], expected)
    assert scale.name == "alpha"


def test_the_scale_with_k_has_no_constant_tensor() -> None:
    scale = AlphaKScale()
    assert scale.uses_input
    with pytest.raises(ValueError, match="depends on the input"):
        scale.tensor(torch.randn(2, 2, 1, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_k_is_the_box_filtered_mean_magnitude(groups: int) -> None:
    x = torch.randn(2, 4, 5, 6)
    kernel, stride, pads, dilation = (3, 2), (2, 1), (1, 1, 2, 2), (1, 2)
    k = input_scale(x, kernel, stride, pads, dilation, groups)
    a = x.abs().view(2, groups, 4 // groups, 5, 6).mean(2)
    columns = F.unfold(F.pad(a, pads), kernel, dilation, 0, stride).view(2, groups, 6, -1).mean(2)
    torch.testing.assert_close(k, columns.view_as(k))
