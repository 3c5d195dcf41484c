from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from xnorpp.nn import METHOD_SCALES, METHODS, QUANTIZERS, SCALES, BinaryConv2d, BinaryLinear

VARIANTS = [(method, scale) for method in METHODS for scale in METHOD_SCALES[method] or (None,)]
SURROGATES = [name for name in QUANTIZERS if QUANTIZERS[name].encoding is not None]
BINARY_VARIANTS = [variant for variant in VARIANTS if variant[0] in ("bnn", "xnor", "xnor++")]


def signs(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1.0, -1.0)


def conv(method: str = "xnor++", scale: str | None = "channel", **kwargs: object) -> BinaryConv2d:
    arguments = {"kernel_size": 3, "padding": 1, "bias": False, "output_size": (6, 5), **kwargs}
    return BinaryConv2d(4, 6, method=method, scale=scale, **arguments)


def linear_scale(scale: str | None) -> str | None:
    return "channel" if scale is not None and SCALES[scale].spatial else scale


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, object]:
    groups = draw(st.sampled_from([1, 2, 3]))
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    padding: object = draw(st.sampled_from(["same", "valid", 0, 1, (2, 1)]))
    stride = 1 if padding == "same" else (draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    return {
        "in_channels": groups * draw(st.integers(1, 3)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": draw(st.sampled_from([1, 2, (1, 2)])),
        "groups": groups,
    }


@given(geometries(), st.sampled_from([0, -1, 1]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_binary_convolution_is_the_float_one_fed_with_signs(
    geometry: dict[str, object], padding_value: int, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = BinaryConv2d(**geometry, bias=bias, method="xnor++", scale="channel", padding_value=padding_value)
    x = torch.randn(2, layer.in_channels, 9, 8)
    padded = F.pad(signs(x), layer.pads, value=float(padding_value))
    dot = F.conv2d(padded, signs(layer.weight), None, layer.stride, 0, layer.dilation, layer.groups)
    assert torch.equal(dot, dot.round())
    expected = dot * layer.scale.tensor() + (layer.bias.view(-1, 1, 1) if bias else 0.0)
    result = layer(x)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    assert result.shape[-2:] == layer.output_size_for((9, 8))
    twin = nn.Conv2d(**geometry, bias=bias)
    assert result.shape == twin(x).shape


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_each_method_computes_its_formula(method: str, scale: str | None) -> None:
    layer = conv(method, scale, bias=True)
    if method == "xnor++":
        for parameter in layer.scale.parameters():
            nn.init.normal_(parameter)
    x = torch.randn(2, 4, 6, 5)
    inputs = signs(x) if method in ("bnn", "xnor", "xnor++") else x
    weight = layer.weight if method == "real" else signs(layer.weight)
    expected = F.conv2d(inputs, weight, padding=1)
    if method == "xnor":
        expected = expected * layer.weight.abs().mean((1, 2, 3)).view(-1, 1, 1)
    if scale == "alpha_k":
        expected = expected * F.avg_pool2d(x.abs().mean(1, keepdim=True), 3, 1, 1)
    if method == "xnor++":
        expected = expected * layer.scale.tensor()
    torch.testing.assert_close(layer(x), expected + layer.bias.view(-1, 1, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_each_method_of_the_linear_layer_computes_its_formula(method: str, scale: str | None) -> None:
    layer = BinaryLinear(7, 5, True, method=method, scale=linear_scale(scale))
    x = torch.randn(3, 7)
    inputs = signs(x) if method in ("bnn", "xnor", "xnor++") else x
    weight = layer.weight if method == "real" else signs(layer.weight)
    expected = inputs @ weight.T
    if method == "xnor":
        expected = expected * layer.weight.abs().mean(1)
    if scale == "alpha_k":
        expected = expected * x.abs().mean(1, keepdim=True)
    if method == "xnor++":
        expected = expected * layer.scale.tensor().flatten()
    torch.testing.assert_close(layer(x), expected + layer.bias, rtol=1e-5, atol=1e-5)
    assert method in repr(layer)


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_every_parameter_and_the_input_get_a_gradient(method: str, scale: str | None) -> None:
    layers = (
        conv(method, scale, bias=True),
        BinaryLinear(5, 4, True, method=method, scale=linear_scale(scale)),
    )
    for layer in layers:
        x = torch.randn(2, 4, 6, 5).requires_grad_()
        layer(x).square().sum().backward()
        for name, parameter in [("x", x), *layer.named_parameters()]:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_the_gradient_goes_through_the_chosen_surrogates(surrogate: str) -> None:
    layer = conv(surrogate=surrogate, weight_surrogate=surrogate)
    layer.progress.fill_(0.4)
    x = (2 * torch.randn(2, 4, 6, 5)).requires_grad_()
    with torch.no_grad():
        layer.weight.mul_(5)
    layer(x).square().sum().backward()
    a, w = signs(x).requires_grad_(), signs(layer.weight).requires_grad_()
    (F.conv2d(a, w, padding=1) * layer.scale.tensor().detach()).square().sum().backward()
    for real, outer in ((x, a), (layer.weight, w)):
        probe = real.detach().clone().requires_grad_()
        QUANTIZERS[surrogate]()(probe, 0.4).backward(outer.grad)
        torch.testing.assert_close(real.grad, probe.grad, rtol=1e-4, atol=1e-5)


def test_real_layers_are_torchs_own() -> None:
    torch.manual_seed(0)
    layer, linear = conv("real", None, bias=True), BinaryLinear(5, 3, True, method="real")
    twin, linear_twin = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(5, 3)
    twin.load_state_dict(layer.state_dict())
    linear_twin.load_state_dict(linear.state_dict())
    x = torch.randn(2, 4, 6, 5)
    assert torch.equal(layer(x), twin(x))
    assert torch.equal(linear(x), linear_twin(x))
    for real in (layer, linear):
        with pytest.raises(ValueError, match="no binary weight"):
            real.binary_weight()


@pytest.mark.parametrize("init", ["ones", "analytic"])
def test_the_scale_starts_from_the_weights_as_they_are(init: str) -> None:
    layer = conv(scale="channel_spatial", scale_init=init)

    def expected() -> Tensor:
        return 0.8 * layer.weight.detach().abs().mean((1, 2, 3)) if init == "analytic" else torch.ones(6)

    torch.testing.assert_close(layer.scale.alpha.detach().flatten(), expected())
    layer.reset_parameters()
    torch.testing.assert_close(layer.scale.alpha.detach().flatten(), expected())
    with torch.no_grad():
        layer.weight.mul_(3)
    layer.reset_scale()
    torch.testing.assert_close(layer.scale.alpha.detach().flatten(), expected())
    linear = BinaryLinear(8, 6, scale_init=init)
    linear.reset_parameters()
    mean = 0.8 * linear.weight.abs().mean(1) if init == "analytic" else torch.ones(6)
    torch.testing.assert_close(linear.scale.alpha.flatten(), mean)


def test_centred_weights_lose_their_filter_mean_before_the_sign() -> None:
    layer = conv("xnor", "alpha", center_weights=True)
    with torch.no_grad():
        layer.weight.add_(0.3)
    centred = layer.weight - layer.weight.mean((1, 2, 3), keepdim=True)
    assert torch.equal(layer.binary_weight(), signs(centred))
    assert not torch.equal(layer.binary_weight(), signs(layer.weight))
    x = torch.randn(1, 4, 6, 5)
    expected = F.conv2d(signs(x), signs(centred), padding=1) * centred.abs().mean((1, 2, 3)).view(-1, 1, 1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("method", "scale"), BINARY_VARIANTS)
def test_in_the_first_stage_the_weight_is_real_and_of_the_same_size(method: str, scale: str | None) -> None:
    layer = conv(method, scale)
    x = torch.randn(4, 4, 6, 5)
    layer.binarize_weights = False
    first = layer(x)
    if (method, scale) == ("xnor", "alpha"):
        torch.testing.assert_close(first, F.conv2d(signs(x), layer.weight, padding=1), rtol=1e-4, atol=1e-5)
    layer.binarize_weights = True
    second = layer(x)
    assert not torch.allclose(first, second)
    assert 0.7 < (first.std() / second.std()).item() < 1.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_autocast_keeps_half_precision_and_the_result(
    method: str, scale: str | None, dtype: torch.dtype
) -> None:
    model = nn.Sequential(conv(method, scale, bias=True), nn.Flatten(), nn.BatchNorm1d(180))
    model.append(BinaryLinear(180, 5, True, method=method, scale=linear_scale(scale)))
    x = torch.randn(3, 4, 6, 5)
    with torch.autocast("cpu", dtype=dtype):
        half = model[0](x)
        model(x).float().square().mean().backward()
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), model[0](x), rtol=3e-2, atol=3e-2)
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def test_signs_stay_exact_in_half_precision() -> None:
    layer = conv("bnn", None)
    x = torch.randn(2, 4, 6, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x).float(), F.conv2d(signs(x), signs(layer.weight), padding=1))


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_channels_last_gives_the_same_numbers_in_its_own_layout(method: str, scale: str | None) -> None:
    layer = conv(method, scale)
    x = torch.randn(2, 4, 6, 5)
    expected = layer(x)
    result = layer.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_state_dict_and_deepcopy_carry_everything(method: str, scale: str | None) -> None:
    layer = conv(method, scale, bias=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(2, 4, 6, 5)
    other = conv(method, scale, bias=True)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x))
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in layer.parameters()}
    assert "progress" not in layer.state_dict()


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_torch_export_gives_the_same_numbers(method: str, scale: str | None) -> None:
    model = nn.Sequential(conv(method, scale), nn.Flatten()).eval()
    model.append(BinaryLinear(180, 5, method=method, scale=linear_scale(scale)))
    x = torch.randn(2, 4, 6, 5)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_the_compiled_graph_has_the_eager_gradients(method: str, scale: str | None) -> None:
    layer = conv(method, scale, bias=True)
    x = torch.randn(2, 4, 6, 5)
    grads = []
    for function in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        layer.zero_grad()
        probe = x.clone().requires_grad_()
        function(probe).square().sum().backward()
        grads.append([probe.grad, *(p.grad.clone() for p in layer.parameters())])
    for eager, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)


def test_a_single_image_without_batch_dimension() -> None:
    for method, scale in BINARY_VARIANTS:
        layer = conv(method, scale, bias=True)
        x = torch.randn(4, 6, 5)
        torch.testing.assert_close(layer(x), layer(x[None])[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "xnorpp"}, r"`method` \(='xnorpp'\) must be one of 'xnor'"),
        ({"scale": "chanel"}, r"`scale` \(='chanel'\) must be one of 'channel'"),
        ({"method": "bnn", "scale": "channel"}, r"`scale` \(='channel'\) must be None for method 'bnn'"),
        ({"padding_value": 2}, r"`padding_value` \(=2\) must be one of"),
        (
            {"method": "real", "scale": None, "padding_value": 1},
            r"`padding_value` \(=1\) must be 0 for method 'real'",
        ),
        ({"padding_mode": "reflect"}, r"`padding_mode` \(='reflect'\) must be 'zeros'"),
        ({"scale_init": "one"}, r"`scale_init` \(='one'\) must be one of 'ones'"),
        ({"surrogate": "sst"}, r"`surrogate` \(='sst'\) must be one of 'ste'"),
        ({"weight_surrogate": "poly"}, r"`weight_surrogate` \(='poly'\) must be one of 'polynomial'"),
        ({"groups": 3}, r"`in_channels` \(=4\) must be divisible by `groups` \(=3\)"),
        ({"groups": 4}, r"`out_channels` \(=6\) must be divisible by `groups` \(=4\)"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv(**arguments)


def test_a_linear_layer_has_no_spatial_scale() -> None:
    with pytest.raises(ValueError, match=r"`scale` \(='dense'\) must be one of 'channel'"):
        BinaryLinear(4, 4, scale="dense")


def test_the_representation_says_how_the_layer_is_binarized() -> None:
    text = repr(conv(surrogate="tanh", padding_value=-1))
    for part in ("padding_value=-1", "method='xnor++'", "scale='channel'", "inputs='tanh'"):
        assert part in text


@pytest.mark.parametrize("groups", [1, 2])
def test_the_input_scale_in_evaluation_is_the_packed_networks(groups: int) -> None:
    """Summed in float64 and rounded once: the same number in whatever order the channels come."""
    generator = torch.Generator().manual_seed(0)
    layer = BinaryConv2d(64, 8, 3, 1, 1, groups=groups, method="xnor", scale="alpha_k").eval()
    sizes = 10.0 ** torch.randint(-3, 3, (64, 1, 1), generator=generator)
    x = torch.randn(2, 64, 7, 9, generator=generator) * sizes
    k = layer._scales(x)[0][:, ::4] if groups == 2 else layer._scales(x)[0]
    means = x.double().abs().reshape(2, groups, -1, 7, 9).mean(2).float().double()
    ones = torch.ones(groups, 1, 3, 3, dtype=torch.float64)
    want = (torch.nn.functional.conv2d(means, ones, padding=1, groups=groups) / 9).float()
    assert torch.equal(k, want)
    mixed = torch.arange(63, -1, -1)  # a group's channels stay together
    assert groups == 2 or torch.equal(layer._scales(x[:, mixed])[0], k)
