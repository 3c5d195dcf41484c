"""The layers behave as torch's own: defaults, lazy sizes, stored states, function transforms, sequences."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from xnorpp import Binarization
from xnorpp.nn import (
    METHOD_SCALES,
    METHODS,
    QUANTIZERS,
    SCALES,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    Identity,
    Sign,
    TanhSign,
    calibrate_scales,
    parameter_groups,
)
from xnorpp.packing import PackError, pack

SPATIAL = [name for name in METHOD_SCALES["xnor++"] if SCALES[name].spatial]
PAIRS = [
    (BinaryConv1d, nn.Conv1d),
    (BinaryConv2d, nn.Conv2d),
    (BinaryConvTranspose2d, nn.ConvTranspose2d),
    (BinaryLinear, nn.Linear),
]


@pytest.mark.parametrize(("kind", "torchs"), PAIRS)
def test_arguments_and_defaults_are_torchs(kind: type[nn.Module], torchs: type[nn.Module]) -> None:
    ours = list(inspect.signature(kind.__init__).parameters.values())
    for mine, theirs in zip(ours, inspect.signature(torchs.__init__).parameters.values()):
        assert (mine.name, mine.default) == (theirs.name, theirs.default)


def test_layers_work_without_reading_the_documentation() -> None:
    conv, linear = BinaryConv2d(64, 128, 3), BinaryLinear(64, 10)
    for size in (9, 5):
        assert conv(torch.randn(2, 64, size, size)).shape == (2, 128, size - 2, size - 2)
    assert linear(torch.randn(3, 64)).shape == (3, 10)
    for layer in (conv, linear):
        assert layer.bias is not None
        assert (layer.method, layer.scale_name) == ("xnor++", "channel")


def test_every_choice_is_in_one_object() -> None:
    config = Binarization(inputs="tanh(end=20.0)", weights="polynomial", scale="dense", padding_value=-1)
    assert config == Binarization.from_dict(config.to_dict())
    assert config.inputs == TanhSign(end=20.0)
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert hash(config) == hash(Binarization.from_dict(config.to_dict()))
    assert eval(repr(config)) == config
    assert config.anneals
    assert not config.replace(inputs="ste").anneals
    assert config.for_linear() == config.replace(scale="channel", padding_value=0)
    assert BinaryConv2d(2, 2, 1, config=config).binarization is config
    assert BinaryConv2d(2, 2, 1, config=config, scale=None).binarization == config.replace(scale=None)
    assert BinaryConv2d(2, 2, 1, config="xnor").binarization == Binarization(scale="alpha")
    with pytest.raises(AttributeError):
        config.scale = None  # type: ignore[misc]


@pytest.mark.parametrize("method", METHODS)
def test_presets_are_the_methods(method: str) -> None:
    config = Binarization.preset(method)
    assert config.method == method
    assert Binarization.of(method=method) == Binarization.of(method) == config
    assert Binarization.from_dict(config.to_dict()) == config
    assert config.is_real == (method == "real")
    stored = {"method": method, "scale": None, "surrogate": "polynomial", "weight_surrogate": "ste"}
    old = Binarization.from_dict(stored)  # as 0.1.0 wrote it
    assert old.method == method
    assert str(old.inputs) == ("polynomial" if config.binarizes_input else "real")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "xnor", "scale": "dense"}, r"`scale` \(='dense'\) must be one of 'alpha"),
        ({"method": "real", "inputs": "ste"}, r"`method` \(='real'\) must agree with inputs='ste'"),
        ({"config": "bnn", "method": "bnn"}, "must not be given together"),
        ({"config": 3}, r"`config` \(=3\) must be a Binarization"),
        ({"inputs": "real", "weights": "real"}, "must be None for method 'real'"),
        ({"surrogate": "real"}, r"`surrogate` \(='real'\) must be one of 'recu', 'polynomial', 'ste'"),
        ({"scale": 3}, r"`scale` \(=3\) must be a scale class"),
        ({"inputs": "real", "padding_value": 1}, r"`padding_value` \(=1\) must be 0"),
        ({"colour": 1}, "`colour` is not a setting"),
    ],
)
def test_choices_that_do_not_fit_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Binarization.of(**settings)


@pytest.mark.parametrize("scale", SPATIAL)
def test_a_spatial_scale_infers_its_size_at_the_first_pass(scale: str) -> None:
    torch.manual_seed(3)
    lazy = nn.Sequential(nn.BatchNorm2d(4), BinaryConv2d(4, 6, 3, padding=1, scale=scale))
    assert any(is_lazy(p) for p in lazy.parameters())
    with pytest.raises(ValueError, match="uninitialized"):
        sum(p.numel() for p in lazy.parameters())
    copied, half = copy.deepcopy(lazy), copy.deepcopy(lazy).to(torch.float64)
    stored = lazy.state_dict()
    x = torch.randn(2, 4, 5, 7)
    expected = lazy(x)
    assert lazy[1].output_size == (5, 7)
    assert not any(is_lazy(p) for p in lazy.parameters())
    sized = nn.Sequential(
        nn.BatchNorm2d(4), BinaryConv2d(4, 6, 3, padding=1, scale=scale, output_size=(5, 7))
    )
    sized.load_state_dict(lazy.state_dict())
    assert torch.equal(sized(x), expected)
    assert torch.equal(copied(x), expected)
    assert half(x.double()).dtype == half[1].scale.alpha.dtype == torch.float64
    alpha = lazy[1].scale.tensor().mean((1, 2))
    torch.testing.assert_close(alpha, 0.8 * lazy[1].weight.abs().mean((1, 2, 3)))
    with pytest.raises(ValueError, match=r"bound to output size \(5, 7\)"):
        lazy(torch.randn(2, 4, 9, 9))
    again = nn.Sequential(nn.BatchNorm2d(4), BinaryConv2d(4, 6, 3, padding=1, scale=scale))
    again.load_state_dict(lazy.state_dict())  # the sizes come from the state
    assert again[1].output_size == (5, 7)
    assert torch.equal(again(x), expected)
    empty = nn.Sequential(nn.BatchNorm2d(4), BinaryConv2d(4, 6, 3, padding=1, scale=scale))
    empty.load_state_dict(stored)  # stored before the first pass
    assert torch.equal(empty(x), expected)
    parameter_groups(empty, 1e-4)
    calibrated = nn.Sequential(nn.BatchNorm2d(4), BinaryConv2d(4, 6, 3, padding=1, scale=scale))
    calibrate_scales(calibrated, x)
    assert calibrated[1].output_size == (5, 7)


def test_the_parameters_of_a_lazy_scale_stay_the_same_objects() -> None:
    layer = BinaryConv2d(4, 6, 3, scale="channel_height_width")
    before = dict(layer.named_parameters())
    layer(torch.randn(1, 4, 5, 5))
    assert {name: p is before[name] for name, p in layer.named_parameters()} == dict.fromkeys(before, True)


@pytest.mark.parametrize("name", [n for n in QUANTIZERS if n != "real"])
def test_per_sample_gradients_through_function_transforms(name: str) -> None:
    """`torch.func.vmap(grad)` gives each sample the gradient that it has alone."""
    model = nn.Sequential(BinaryConv2d(2, 3, 3, inputs=name, weights=name), nn.Flatten(), BinaryLinear(12, 2))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, labels = torch.randn(4, 2, 4, 4), torch.tensor([0, 1, 1, 0])

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        y = torch.func.functional_call(model, values, (image[None],))
        return F.cross_entropy(y, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, labels)
    for index in range(4):
        model.zero_grad()
        F.cross_entropy(model(x[index : index + 1]), labels[index : index + 1]).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(each[key][index], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [None, "alpha", "alpha_k", *METHOD_SCALES["xnor++"]])
@pytest.mark.parametrize("padding_value", [0, -1])
def test_a_sequence_is_an_image_of_one_row(scale: str | None, padding_value: int) -> None:
    config = Binarization(scale=scale, padding_value=padding_value)
    geometry = {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}
    layer = BinaryConv1d(4, 6, 3, **geometry, config=config)
    flat = BinaryConv2d(4, 6, (1, 3), stride=(1, 2), padding=(0, 2), dilation=(1, 2), groups=2, config=config)
    x = torch.randn(2, 4, 11)
    y = layer(x)
    assert y.shape == nn.Conv1d(4, 6, 3, **geometry)(x).shape
    flat(x[:, :, None])
    with torch.no_grad():
        for mine, theirs in zip(layer.parameters(), flat.parameters(), strict=True):
            theirs.copy_(mine.reshape(theirs.shape))
    torch.testing.assert_close(y, flat(x[:, :, None])[:, :, 0])
    y.square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert layer(x[0]).shape == y.shape[1:]
    twin = BinaryConv1d(4, 6, 3, **geometry, config=config)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin.eval()(x), layer.eval()(x))
    if scale in METHOD_SCALES["xnor++"]:
        calibrate_scales(layer, x)


def test_a_real_sequence_layer_is_torchs_and_a_vector_is_no_sequence() -> None:
    layer = BinaryConv1d(2, 3, 3, padding="same", padding_mode="circular", config="real")
    twin = nn.Conv1d(2, 3, 3, padding="same", padding_mode="circular")
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(2, 2, 9)
    assert torch.equal(layer(x), twin(x))
    assert "method='real'" in repr(layer)

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BinaryConv1d(2, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.flatten(1))  # (2, 48): one sequence of two channels

    with pytest.raises(PackError, match=r"conv.*BinaryConv1d is applied to shape \(n, 48\)"):
        pack(Flat(), (3, 4, 4))
    with pytest.raises(ValueError, match="`padding_mode`"):
        BinaryConv1d(2, 2, 1, padding_mode="circular")


@pytest.mark.parametrize("config", ["xnor++", "bnn"])
@pytest.mark.parametrize(
    "geometry", [{"stride": 2}, {"stride": (2, 3), "padding": 1, "output_padding": 1, "groups": 2}]
)
def test_a_transposed_convolution_is_that_of_signs(config: str, geometry: dict[str, Any]) -> None:
    layer = BinaryConvTranspose2d(4, 6, 3, **geometry, config=config)
    x = torch.randn(2, 4, 5, 7, requires_grad=True)
    y = layer(x)
    signs = [torch.where(t > 0, 1.0, -1.0) for t in (x, layer.weight)]
    dots = nn.functional.conv_transpose2d(*signs, **geometry)
    scale = layer.scale.tensor() if layer.scale is not None else torch.ones(())
    torch.testing.assert_close(y, dots * scale + layer.bias.reshape(-1, 1, 1))
    assert y.shape[2:] == layer.output_size_for((5, 7))
    y.square().sum().backward()
    assert layer.weight.grad is not None
    assert x.grad is not None
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_the_scale_of_a_transposed_convolution_starts_from_its_filters() -> None:
    layer = BinaryConvTranspose2d(4, 6, 3, groups=2)
    real = layer.weight.detach().unflatten(0, (2, 2))  # group, input, output of the group, 3, 3
    means = real.abs().mean((1, 3, 4)).flatten()
    torch.testing.assert_close(layer.scale.tensor().flatten(), 0.8 * means)
    spatial = BinaryConvTranspose2d(4, 6, 2, stride=2, scale="channel_height_width")
    assert spatial(torch.randn(1, 4, 5, 6)).shape == (1, 6, 10, 12)
    assert spatial.output_size == (10, 12)
    with pytest.raises(ValueError, match="XNOR-Net's K"):
        BinaryConvTranspose2d(4, 6, 2, config="xnor", scale="alpha_k")
    with pytest.raises(ValueError, match="`output_size`"):
        layer(torch.randn(1, 4, 5, 5), output_size=[7, 7])


def test_weights_may_stay_real_while_inputs_are_binary() -> None:
    layer = BinaryConv2d(3, 4, 3, bias=False, weights=Identity(), scale=None)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(layer(x), F.conv2d(Sign()(x), layer.weight))
    assert not layer.weights_are_binary
    with pytest.raises(ValueError, match="has no binary weight"):
        layer.binary_weight()


def test_the_names_of_the_methods_need_no_torch() -> None:
    code = "import sys; from xnorpp.nn.methods import METHODS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    import xnorpp.nn

    assert sorted(xnorpp.nn._HOME) == sorted(xnorpp.nn.__all__) == dir(xnorpp.nn)
    assert all(getattr(xnorpp.nn, name) is not None for name in xnorpp.nn.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = xnorpp.nn.nothing
