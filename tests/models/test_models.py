from __future__ import annotations

import copy
import json
from types import ModuleType

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from xnorpp.models import ACTIVATIONS, NETWORKS, create_model, list_models, register_model
from xnorpp.nn import (
    METHOD_SCALES,
    METHODS,
    Binarization,
    BinaryLayer,
    ChannelShift,
    RPReLU,
    binary_layers,
)
from xnorpp.runtime.registry import without_imports

VARIANTS = [(method, scale) for method in METHODS for scale in METHOD_SCALES[method] or (None,)]
FEW = [
    ("real", None),
    ("xnor++", "channel_height_width"),
]  # for resnet34, which only has more of the same blocks
ONE_OF_EACH_BLOCK = [
    name for name in list_models() if name not in ("resnet18", "resnet34")
]  # resnet20 has theirs
SIZES = {"alexnet": 67, "resnet18": 16, "resnet34": 16, "reactnet-a": 16}
SMALL_OPTIONS: dict[str, dict[str, object]] = {
    "alexnet": {"hidden": 24},
    "small": {"width": 8},
    "reactnet-a": {"width": 0.25},
}


def build(name: str, **options: object) -> nn.Module:
    """A network cut down to what a test can afford."""
    arguments = {
        "input_size": SIZES.get(name, 32),
        "num_classes": 7,
        **SMALL_OPTIONS.get(name, {}),
        **options,
    }
    return create_model(name, **arguments)


def image(model: nn.Module, count: int = 2) -> torch.Tensor:
    return torch.randn(count, model.config["in_channels"], *model.config["input_size"])


class Tracer(torch.fx.Tracer):
    """Layers of torch and ours are leaves, as packing sees them."""

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return isinstance(module, (BinaryLayer, ChannelShift)) or super().is_leaf_module(module, path)


@pytest.mark.parametrize(
    ("name", "method", "scale"),
    [(name, *v) for name in list_models() for v in VARIANTS if name != "resnet34" or v in FEW],
)
def test_forward_backward_and_rebuilding_from_the_config(name: str, method: str, scale: str | None) -> None:
    model = build(name, method=method, scale=scale)
    x = image(model)
    y = model(x)
    assert y.shape == (2, 7)
    F.cross_entropy(y, torch.tensor([1, 5])).backward()
    missing = [path for path, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert missing == []
    config = json.loads(json.dumps(model.config))
    twin = create_model(**config)
    assert twin.config == model.config
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.eval()(x), model.eval()(x))


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("method", METHODS)
def test_first_and_last_layers_are_real_and_the_rest_is_not(name: str, method: str) -> None:
    model = build(name, method=method, downsample="binary")
    weighted = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert type(weighted[0]) is nn.Conv2d
    assert type(weighted[-1]) is nn.Linear
    assert weighted[-1].out_features == 7
    inner = [m for m in weighted[1:-1] if not isinstance(m, BinaryLayer)]
    assert inner == (weighted[1:-1] if method == "real" else [])
    assert {layer.method for _, layer in binary_layers(model)} <= {method}
    default = build(name, method=method)
    real = [
        p for p, m in default.named_modules() if isinstance(m, nn.Conv2d) and not isinstance(m, BinaryLayer)
    ]
    if method != "real":
        assert [p for p in real[1:] if not p.endswith("downsample.conv")] == []


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("method", ["real", "xnor", "xnor++"])
def test_the_forward_pass_can_be_traced(name: str, method: str) -> None:
    model = build(name, method=method, sign_shift=True, activation="rprelu").eval()
    graph = Tracer().trace(model)
    x = image(model)
    traced = torch.fx.GraphModule(model, graph)
    torch.testing.assert_close(traced(x), model(x))


@pytest.mark.parametrize("name", list_models())
def test_export_copies_and_channels_last(name: str) -> None:
    model = build(name).eval()
    x = image(model)
    expected = model(x)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    assert copy.deepcopy(model).config == model.config
    last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert last.shape == expected.shape
    assert last.isfinite().all()


@pytest.mark.parametrize("name", ONE_OF_EACH_BLOCK)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_under_autocast(name: str, dtype: torch.dtype) -> None:
    model = build(name)
    with torch.autocast("cpu", dtype=dtype):
        loss = F.cross_entropy(model(image(model)), torch.tensor([0, 1]))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", list_models())
def test_scales_start_from_the_he_initialised_weights(name: str) -> None:
    model = build(name)
    layers = list(binary_layers(model))
    assert layers
    for path, layer in layers:
        dims = tuple(range(1, layer.weight.dim()))
        expected = 0.8 * layer.weight.abs().mean(dims)
        torch.testing.assert_close(layer.scale_factors()[0].flatten(), expected, msg=path)
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 2000:
            fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
            assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
    ones = build(name, scale_init="ones")
    assert all((f == 1).all() for _, layer in binary_layers(ones) for f in layer.scale_factors())


@pytest.mark.parametrize("name", ONE_OF_EACH_BLOCK)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_builds_and_learns(name: str, activation: str) -> None:
    for method in ("real", "bnn"):
        model = build(name, method=method, activation=activation, sign_shift=True)
        model(image(model)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        shifts = [m for m in model.modules() if isinstance(m, ChannelShift)]
        in_activations = [
            m for a in model.modules() if isinstance(a, RPReLU) for m in a if isinstance(m, ChannelShift)
        ]
        assert len(shifts) - len(in_activations) == (
            0 if method == "real" else len(list(binary_layers(model)))
        )


@pytest.mark.parametrize("name", ["resnet18", "resnet20", "small"])
@pytest.mark.parametrize("shortcut", ["block", "conv"])
@pytest.mark.parametrize("downsample", ["binary", "real"])
@pytest.mark.parametrize("padding_value", [0, -1, 1])
def test_residual_options(name: str, shortcut: str, downsample: str, padding_value: int) -> None:
    model = build(name, shortcut=shortcut, downsample=downsample, padding_value=padding_value)
    shortcuts = [(p, m) for p, m in model.named_modules() if p.endswith("downsample.conv")]
    assert len(shortcuts) == {"resnet18": 3, "resnet20": 2, "small": 2}[name]
    assert all(isinstance(m, BinaryLayer) == (downsample == "binary") for _, m in shortcuts)
    assert {layer.padding_value for _, layer in binary_layers(model)} == {padding_value}
    assert model(image(model)).shape == (2, 7)


def test_a_shortcut_a_convolution_adds_the_input_twice() -> None:
    torch.manual_seed(1)
    model = build("small", shortcut="conv", method="bnn", activation="identity")
    block = model.blocks[0].eval()
    x = torch.randn(1, 8, 16, 16)
    middle = x + block.conv1(block.bn1(x))
    torch.testing.assert_close(block(x), middle + block.conv2(block.bn2(middle)))
    block.shortcut_per_conv = False
    torch.testing.assert_close(block(x), x + block.conv2(block.bn2(block.conv1(block.bn1(x)))))


def test_the_real_twin_is_the_ordinary_pre_activation_block() -> None:
    block = build("small", method="real", shortcut="block").blocks[0].eval()
    x = torch.randn(1, 8, 16, 16)
    expected = x + block.conv2(F.relu(block.bn2(block.conv1(F.relu(block.bn1(x))))))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(
    ("size", "stem", "pooled", "trunk"),
    [(224, "7x7", True, 56), (96, "7x7", True, 24), (64, "3x3", True, 32), (32, "3x3", False, 32)],
)
def test_the_stem_follows_the_image_size(size: int, stem: str, pooled: bool, trunk: int) -> None:
    model = create_model("resnet18", input_size=size, num_classes=4)
    assert (model.config["stem"], model.config["stem_pool"]) == (stem, pooled)
    assert model.layer1[0].conv1.output_size == (trunk, trunk)
    forced = create_model("resnet18", input_size=size, num_classes=4, stem="3x3", stem_pool=False)
    assert forced.layer1[0].conv1.output_size == (size, size)
    assert create_model("resnet20", input_size=size, num_classes=4, stem="7x7").config["stem_pool"]


def test_images_need_not_be_square_or_even() -> None:
    for name in list_models():
        size = (75, 99) if name == "alexnet" else (29, 38)
        model = build(name, input_size=size, in_channels=1)
        assert model(torch.randn(2, 1, *size)).shape == (2, 7)


def test_alexnet_is_the_papers() -> None:
    model = create_model("alexnet", method="xnor++", input_size=227, num_classes=1000, hidden=64)
    assert [unit.conv.output_size for unit in model.features] == [(27, 27), (13, 13), (13, 13), (13, 13)]
    assert model.hidden[0].linear.in_features == 256 * 6 * 6
    assert all(m.groups == 1 for m in model.modules() if isinstance(m, nn.Conv2d))
    assert not any(isinstance(m, nn.LocalResponseNorm) for m in model.modules())
    for unit in model.hidden:
        assert [type(m).__name__ for m in unit][:2] == ["Dropout", "BatchNorm1d"]
        assert unit.dropout.p == 0.5
        assert isinstance(unit.linear, BinaryLayer)
    assert NETWORKS["alexnet"].input_size == 227


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, r"`name` \(='resnet19'\) must be one of 'resnet18'"),
        ({"name": "small", "widht": 3}, "`widht` is not an option of 'small'; its options are width"),
        ({"name": "small", "stem": "7x7"}, "`stem` is not an option of 'small'"),
        ({"name": "small", "width": 0}, r"`width` \(=0\) must be at least 1"),
        ({"name": "small", "method": "xnor+"}, r"`method` \(='xnor\+'\) must be one of"),
        ({"name": "small", "activation": "gelu"}, r"`activation` \(='gelu'\)"),
        ({"name": "small", "shortcut": "none"}, r"`shortcut` \(='none'\)"),
        ({"name": "small", "downsample": "max"}, r"`downsample` \(='max'\)"),
        ({"name": "small", "num_classes": 0}, r"`num_classes` \(=0\) must be at least 1"),
        ({"name": "small", "in_channels": 0}, r"`in_channels` \(=0\) must be at least 1"),
        ({"name": "small", "input_size": 0}, r"`input_size` \(=0\) must be at least 1"),
        ({"name": "small", "input_size": (28,)}, r"`input_size` \(=\(28,\)\) must be a side or \(height"),
        ({"name": "small", "input_size": 28.0}, r"`input_size` \(=28.0\) must be a side or \(height"),
        ({"name": "resnet18", "stem": "5x5"}, r"`stem` \(='5x5'\)"),
        ({"name": "alexnet", "input_size": 32}, "`input_size` is too small"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(**arguments)


def test_networks_from_outside_of_the_package(own: ModuleType) -> None:
    model = create_model("own:tiny", width=6, scale="channel", num_classes=4)
    assert create_model("own-tiny").config["name"] == "own-tiny"
    assert "own-tiny" in list_models()
    assert NETWORKS["own-tiny"].summary == "A network of someone else"
    assert model.config["width"] == 6
    again = create_model(**json.loads(json.dumps(model.config)))
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(again.eval()(x), model.eval()(x))
    assert model(x).shape == (2, 4)
    mlp = create_model("own:mlp", num_classes=2, hidden=7)
    assert mlp.config == {"name": "own:mlp", "num_classes": 2, "in_channels": 3, "hidden": 7}
    assert create_model(**mlp.config)(torch.randn(2, 3, 2, 2)).shape == (2, 2)
    for arguments, message in (
        ({"name": "own:mlp"}, r"`num_classes` \(=None\) must be given for 'own:mlp'"),
        ({"name": "own:mlp", "num_classes": 2, "method": "bnn"}, "has no parameter `options`"),
        (
            {"name": "own:mlp", "num_classes": 2, "shortcut": "conv"},
            "`shortcut` is not an option of 'own:mlp'",
        ),
        ({"name": "own:NOT_A_NETWORK"}, "must be a function or class that builds a network"),
        ({"name": "own:nothing"}, "has no 'nothing'"),
        ({"name": "resnet19"}, r"`name` \(='resnet19'\) must be one of 'resnet18'"),
        ({"name": "own:no_module"}, "must build an nn.Module; it returned int"),
    ):
        with pytest.raises(ValueError, match=message):
            create_model(**arguments)
    with pytest.raises(ValueError, match=r"`name` \(='small'\) must be new"):
        register_model("small")(lambda: nn.Identity())


def test_a_name_from_a_file_runs_no_code_that_the_program_did_not_import(own: ModuleType) -> None:
    with without_imports():
        create_model("own:tiny")  # registered
        create_model("own-tiny", inputs="own:TriangleSign", scale="own:ScalarScale")
        with pytest.raises(ValueError, match="is not a registered network"):
            create_model("own:mlp", num_classes=2)
        with pytest.raises(ValueError, match="is not a registered network"):
            create_model("os:system", command="true", num_classes=2)
        for key in ("scale", "inputs"):
            with pytest.raises(ValueError, match="names code that is not imported; import antigravity"):
                create_model("small", **{key: "antigravity:Thing"})
    assert create_model("own:mlp", num_classes=2) is not None


# As 0.1.0 stored them.
STORED = [
    {"method": "xnor++", "scale": "channel_spatial", "surrogate": "tanh", "weight_surrogate": "polynomial"},
    {"method": "real", "scale": None, "padding_value": -1},
    {"method": "binaryconnect", "scale": None, "surrogate": "tanh"},
    {"method": "xnor", "scale": "alpha_k", "padding_value": 1, "clip_weights": True, "center_weights": True},
]


@pytest.mark.parametrize("changes", STORED)
def test_a_network_that_0_1_0_stored_is_built_again(changes: dict[str, object]) -> None:
    config = {
        "name": "small",
        "input_size": [8, 8],
        "num_classes": 3,
        "in_channels": 1,
        "activation": "prelu",
        "shortcut": "block",
        "downsample": "binary",
        "padding_value": 0,
        "scale_init": "ones",
        "surrogate": "ste",
        "weight_surrogate": "ste",
        "sign_shift": True,
        "clip_weights": False,
        "center_weights": False,
        "width": 8,
        "stem_pool": False,
        **changes,
    }
    model = create_model(**config)
    layers = [layer.binarization for _, layer in binary_layers(model)]
    assert bool(layers) == (config["method"] != "real")
    for layer in layers:
        assert (layer.method, layer.scale_name) == (config["method"], config["scale"])
        assert str(layer.weights) == config["weight_surrogate"]
        assert str(layer.inputs) == (config["surrogate"] if layer.binarizes_input else "real")
        assert layer.padding_value == config["padding_value"]
        assert (layer.clip_weights, layer.center_weights) == (
            config["clip_weights"],
            config["center_weights"],
        )
        assert layer.scale_init == "ones"
    assert not any(name.endswith("conv1.bias") for name in model.state_dict())
    again = create_model(**model.config)
    assert again.config == model.config


def test_a_network_takes_a_binarization() -> None:
    config = Binarization(inputs="polynomial", scale="dense")
    model = create_model("small", binarization=config, input_size=8, width=8)
    assert {layer.binarization for _, layer in binary_layers(model)} == {config}
    named = create_model("small", binarization="bnn", input_size=8, width=8)
    assert named.config["method"] == "bnn"
    with pytest.raises(ValueError, match="must not be given together"):
        create_model("small", binarization="bnn", method="xnor")


@pytest.mark.parametrize("name", ONE_OF_EACH_BLOCK)
@pytest.mark.parametrize("method", ["bnn", "real"])
def test_a_batch_norm_after_each_layer(name: str, method: str) -> None:
    """What a layer without scales adds to its shortcut then has the size of the shortcut."""
    normed = build(name, method=method, norm_after=True)
    assert normed.config["norm_after"] is True
    # ReActNet has it in any case
    ends = (".bn1", ".bn2") if name == "reactnet-a" else ("act1.norm", "act2.norm", "act.norm")
    norms = [path for path, _ in normed.named_modules() if path.endswith(ends)]
    assert len(norms) == len(list(binary_layers(build(name, method="bnn"))))
    sizes: dict[str, float] = {}
    for path in norms:
        module = normed.get_submodule(path)
        module.register_forward_hook(lambda _, __, out, path=path: sizes.update({path: out.std().item()}))
    normed(image(normed, 8)).sum().backward()
    assert all(size == pytest.approx(1, abs=0.1) for size in sizes.values())
    assert set(sizes) == set(norms)
    assert all(p.grad is not None for p in normed.parameters())
