"""AdaBin's sets: two values per layer and filter against their definition, in training and by gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.models import create_model
from xnorpp.nn import (
    Binarization,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    calibrate_scales,
    fuse_for_training,
    parameter_groups,
    set_stage,
)


def moved(layer: nn.Module) -> nn.Module:
    """A layer whose sets are not those of the start, with filters that are not centred."""
    with torch.no_grad():
        layer.sets.extent.fill_(-1.3)  # its sign means nothing
        layer.sets.middle.fill_(0.2)
        layer.weight.add_(
            layer.weight.std() * torch.randn(len(layer.weight), *(1,) * (layer.weight.dim() - 1))
        )
    return layer


def two_values(x: Tensor, middle: Tensor | float, extent: Tensor | float) -> Tensor:
    return torch.where(x > middle, middle + extent, middle - extent)


def weights_of(layer: nn.Module) -> Tensor:
    dims = tuple(range(1, layer.weight.dim()))
    middle = layer.weight.mean(dims, keepdim=True)
    extent = (layer.weight - middle).square().mean(dims, keepdim=True).sqrt()
    return two_values(layer.weight, middle, extent)


@pytest.mark.parametrize("scale", [None, "channel", "channel_height_width"])
@pytest.mark.parametrize(
    ("geometry", "padding_value"),
    [
        ({"padding": 1}, 0),
        ({"padding": 1, "stride": 2, "groups": 2}, 0),
        ({"padding": 2, "dilation": 2}, -1),
        ({"padding": "same"}, 1),
    ],
)
def test_a_convolution_is_that_of_the_two_sets(
    scale: str | None, geometry: dict[str, object], padding_value: int
) -> None:
    layer = BinaryConv2d(6, 8, 3, **geometry, adaptive_sets=True, scale=scale, padding_value=padding_value)
    moved(layer)
    x = torch.randn(2, 6, 9, 7)
    border = 0.2 + 1.3 * padding_value  # that of the set: 0 is its middle
    inputs = F.pad(two_values(x, 0.2, 1.3), layer.pads, value=border)
    expected = F.conv2d(inputs, weights_of(layer), None, layer.stride, 0, layer.dilation, layer.groups)
    for mode in (True, False):
        y = layer.train(mode)(x)
        factor = layer.scale.tensor() if scale else 1.0
        torch.testing.assert_close(y, expected * factor + layer.bias.reshape(-1, 1, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])


def test_sequences_and_linear_layers() -> None:
    conv = moved(BinaryConv1d(5, 4, 3, padding=1, adaptive_sets=True))
    x = torch.randn(2, 5, 11)
    inputs = F.pad(two_values(x, 0.2, 1.3), (1, 1), value=0.2)
    expected = F.conv1d(inputs, weights_of(conv)) * conv.scale.tensor().reshape(-1, 1) + conv.bias[:, None]
    torch.testing.assert_close(conv(x), expected, rtol=1e-5, atol=1e-5)
    linear = moved(BinaryLinear(12, 5, adaptive_sets=True))
    x = torch.randn(3, 2, 12)
    product = F.linear(two_values(x, 0.2, 1.3), weights_of(linear)) * linear.scale.tensor().flatten()
    torch.testing.assert_close(linear(x), product + linear.bias, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_definition_written_out() -> None:
    """alpha sign((x - beta) / alpha) + beta with the straight-through gradient, on both sides."""
    layer = moved(BinaryConv2d(4, 6, 3, padding=1, bias=False, scale=None, adaptive_sets=True))
    twin = copy.deepcopy(layer)
    x = torch.randn(2, 4, 5, 5)
    other = x.clone().requires_grad_()
    x.requires_grad_()
    goal = torch.randn(2, 6, 5, 5)
    (layer(x) * goal).sum().backward()

    def straight(u: Tensor) -> Tensor:
        inside = torch.where(u.abs() <= 1, u, 0.0)
        return torch.where(u > 0, 1.0, -1.0) + inside - inside.detach()

    alpha, beta = twin.sets.extent.abs(), twin.sets.middle
    inputs = alpha * F.pad(straight((other - beta) / alpha), (1, 1, 1, 1)) + beta
    mean = twin.weight.mean((1, 2, 3), keepdim=True)
    deviation = (twin.weight - mean).square().mean((1, 2, 3), keepdim=True).sqrt()
    weight = deviation * straight((twin.weight - mean) / deviation) + mean
    (F.conv2d(inputs, weight) * goal).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-4)
    for name, parameter in twin.named_parameters():
        mine = layer.get_parameter(name).grad
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-4, msg=name)


def test_the_start_has_the_size_that_it_has_without_sets() -> None:
    layer = BinaryConv2d(16, 8, 3, adaptive_sets=True)
    plain = BinaryConv2d(16, 8, 3, center_weights=True)
    plain.weight.data.copy_(layer.weight.data)
    plain.reset_scale()
    _, extents = layer.weight_sets()
    torch.testing.assert_close(layer.scale.tensor().flatten() * extents, plain.scale.tensor().flatten())
    assert (layer.sets.extent.item(), layer.sets.middle.item()) == (1.0, 0.0)


def test_the_first_of_two_stages_has_real_weights_of_the_same_size() -> None:
    layer = moved(BinaryConv2d(16, 8, 3, adaptive_sets=True, bias=False, scale=None))
    set_stage(layer, weights_binary=False)
    x = torch.randn(1, 16, 6, 6)
    filters = layer.weight - layer.weight.mean((1, 2, 3), keepdim=True)
    sizes = filters.square().mean((1, 2, 3), keepdim=True).sqrt() / filters.abs().mean(
        (1, 2, 3), keepdim=True
    )
    weight = filters * sizes + layer.weight.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(layer(x), F.conv2d(two_values(x, 0.2, 1.3), weight), rtol=1e-4, atol=1e-4)


def test_what_cannot_have_sets_is_refused_in_one_sentence() -> None:
    for settings in ({"scale": "alpha"}, {"inputs": "real"}):
        with pytest.raises(ValueError, match=r"`adaptive_sets` \(=True\) must be False for method"):
            Binarization(adaptive_sets=True, **settings)
    with pytest.raises(ValueError, match="must be False for a transposed convolution"):
        BinaryConvTranspose2d(4, 4, 2, adaptive_sets=True)
    assert BinaryConv2d(4, 4, 3, method="real", adaptive_sets=True).sets is None  # as of a baseline


def test_weights_of_a_network_without_sets_can_be_loaded() -> None:
    plain = create_model("small", input_size=8, width=8, method="real")
    model = create_model("small", input_size=8, width=8, adaptive_sets=True)
    model.load_state_dict(plain.state_dict(), strict=False)
    again = create_model(**model.config)
    again.load_state_dict(model.state_dict())
    with_sets = [name for name in model.state_dict() if ".sets." in name]
    assert len(with_sets) == 2 * 6
    alone = BinaryConv2d(4, 4, 3, adaptive_sets=True)
    alone.load_state_dict(nn.Conv2d(4, 4, 3).state_dict())
    assert torch.equal(alone.sets.extent, torch.ones(1))


def test_sets_are_not_decayed_and_train_unfused() -> None:
    model = create_model("small", input_size=8, width=8, adaptive_sets=True)
    scales = next(g for g in parameter_groups(model, 1e-2) if g["name"] == "scales")
    assert {id(p) for n, p in model.named_parameters() if ".sets." in n} <= {id(p) for p in scales["params"]}
    net = nn.Sequential(nn.BatchNorm2d(4), BinaryConv2d(4, 4, 3, bias=False, adaptive_sets=True))
    (chain,) = fuse_for_training(net)
    assert chain.plain == "the convolution has adaptive sets"
    assert "adaptive_sets=True" in repr(net)


def test_calibration_fits_the_scale_to_the_product_of_the_sets() -> None:
    layer = moved(BinaryConv2d(8, 4, 3, bias=False, adaptive_sets=True))
    x = torch.randn(8, 8, 6, 6)
    calibrate_scales(layer, x)
    real, product = F.conv2d(x, layer.weight), layer.product_of_sets(x)
    expected = (real * product).sum((0, 2, 3)) / product.square().sum((0, 2, 3))
    torch.testing.assert_close(layer.scale.tensor().flatten(), expected)


def test_a_step_under_autocast() -> None:
    model = create_model("small", input_size=8, width=8, adaptive_sets=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.arange(4))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
