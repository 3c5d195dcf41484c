"""Layers whose input has one sign only, and layers that produce an output, found by one run of the model."""

from __future__ import annotations

from collections.abc import Callable

import networks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.convert import binarize
from xnorpp.convert.analysis import constant_inputs, output_layers

IMAGE = (3, 16, 16)


class Before(nn.Module):
    """A convolution, a function, and the layer whose input that function makes."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.function = function
        self.layer = nn.LazyConv2d(4, 1)
        self.shift = nn.Parameter(torch.zeros(1))
        self.register_buffer("mask", torch.rand(8, 1, 1) + 0.5)
        self(torch.zeros(1, *IMAGE))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.function(self.first(x)))


POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: F.softmax(x, 1),
    "hardsigmoid": F.hardsigmoid,
    "hardsigmoid by hand": lambda x: F.relu6(x + 3) / 6,
    "one minus sigmoid": lambda x: 1 - torch.sigmoid(x),
    "average of relu": lambda x: F.avg_pool2d(F.relu(x), 2),
    "global average of relu": lambda x: F.adaptive_avg_pool2d(x.relu(), 1),
    "mean of relu": lambda x: torch.relu_(x).mean((2, 3), keepdim=True),
    "average of relu6": lambda x: F.avg_pool2d(F.relu6(x), 3, 2, 1),
    "average, max pool, reshape": lambda x: F.max_pool2d(F.avg_pool2d(F.relu(x), 2), 2).view(-1, 8, 4, 4),
    "sum": lambda x: F.relu(x).sum((2, 3), keepdim=True),
    "clamp above zero": lambda x: x.clamp(0.1, 2),
    "exp": torch.exp,
    "softplus": F.softplus,
    "abs": lambda x: x.abs(),
    "square": lambda x: x * x,
    "relu plus sigmoid": lambda x: F.relu(x) + torch.sigmoid(x),
    "concatenated": lambda x: torch.cat([torch.sigmoid(x), F.softplus(x)], 1),
    "scaled": lambda x: torch.sigmoid(x) * 3 * torch.full((8, 1, 1), 2.0),
    "dropped": lambda x: F.dropout(torch.sigmoid(x), 0.5, training=False),
    "norm": lambda x: x.norm(dim=1, keepdim=True),
}
NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "minus relu": lambda x: -F.relu(x),
    "log softmax": lambda x: F.log_softmax(x, 1),
    "minus sigmoid": lambda x: torch.sigmoid(x) * -2,
    "relu of negative": lambda x: F.relu(-torch.sigmoid(x)),
}
BOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "max pool of relu": lambda x: F.max_pool2d(F.relu(x), 2),
    "adaptive max pool of relu": lambda x: F.adaptive_max_pool2d(F.relu(x), 8),
    "average": lambda x: F.avg_pool2d(x, 2),
    "relu of average": lambda x: F.relu(F.avg_pool2d(x, 2)),
    "subsampled relu": lambda x: F.avg_pool2d(F.relu(x), 1, 2),
    "relu and relu": lambda x: F.relu(x) + F.relu(-x - 1),
    "relu of a small shift": lambda x: F.relu(x + 0.5),
    "gate": lambda x: x * torch.sigmoid(x),
    "gated relu": lambda x: F.relu(x) * torch.sigmoid(x),
    "centred sigmoid": lambda x: torch.sigmoid(x) - 0.5,
    "hardswish by hand": lambda x: x * F.relu6(x + 3) / 6,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "one of two": lambda x: torch.cat([torch.sigmoid(x), x], 1),
    "sigmoid and relu": lambda x: torch.cat([torch.sigmoid(x), F.relu(x)], 1),
    "where": lambda x: torch.where(x > 0, torch.sigmoid(x), -torch.sigmoid(x)),
    "normalised again": lambda x: F.batch_norm(torch.sigmoid(x), torch.zeros(8), torch.ones(8)),
    "unknown function": lambda x: torch.special.bessel_j0(torch.sigmoid(x)),
}


@pytest.mark.parametrize("name", POSITIVE)
def test_positive_inputs_are_found_without_data(name: str) -> None:
    found = constant_inputs(Before(POSITIVE[name]), IMAGE)
    assert list(found) == ["layer"]
    assert "every bit would be +1" in found["layer"]
    assert "(after torch" in found["layer"]


@pytest.mark.parametrize("name", NEGATIVE)
def test_negative_inputs_are_found_without_data(name: str) -> None:
    found = constant_inputs(Before(NEGATIVE[name]), IMAGE)
    assert list(found) == ["layer"]
    assert "every bit would be -1" in found["layer"]


@pytest.mark.parametrize("name", BOTH)
def test_inputs_of_both_signs_are_not_reported(name: str) -> None:
    torch.manual_seed(0)
    model = Before(BOTH[name])
    assert constant_inputs(model, IMAGE) == {}
    if name not in ("normalised again", "unknown function"):  # on untrained weights these are all of one sign
        assert constant_inputs(model, torch.randn(8, *IMAGE)) == {}


def test_parameters_and_buffers() -> None:
    model = Before(torch.sigmoid)
    model.function = lambda x: torch.sigmoid(x) * model.shift  # a learned factor may become negative
    assert constant_inputs(model, IMAGE) == {}
    model.function = lambda x: torch.sigmoid(x) * model.mask
    assert list(constant_inputs(model, IMAGE)) == ["layer"]
    model.function = lambda x: torch.sigmoid(x) + torch.rand(8, 1, 1)
    assert constant_inputs(model, IMAGE) == {}


def test_squeeze_excitation_is_found() -> None:
    for gate in (nn.Sigmoid(), nn.Hardsigmoid()):
        model = networks.SqueezeExcitationNet()
        model.se.gate = gate
        found = constant_inputs(model, IMAGE)
        assert list(found) == ["se.reduce", "fc"]
        assert "after torch.Tensor.mean in 'se'" in found["se.reduce"]


@pytest.mark.parametrize("name", [*POSITIVE, *NEGATIVE, *BOTH])
def test_the_symbolic_graph_shows_the_same(name: str) -> None:
    function = {**POSITIVE, **NEGATIVE, **BOTH}[name]
    found = constant_inputs(Before(function))
    if name in BOTH:
        assert found == {}
    elif name != "scaled":  # by a tensor made in the forward pass, which the symbolic graph does not see
        assert list(found) == ["layer"]
        assert found == constant_inputs(Before(function), IMAGE)


def test_without_an_example() -> None:
    found = constant_inputs(networks.SqueezeExcitationNet())
    assert list(found) == ["se.reduce", "fc"]
    assert found == constant_inputs(networks.SqueezeExcitationNet(), IMAGE)
    assert list(constant_inputs(networks.adaptive_pool())) == ["4"]
    assert constant_inputs(networks.vgg()) == {}
    assert list(constant_inputs(networks.ResNet())) == ["fc"]
    assert constant_inputs(networks.ReadsValues()) == {}  # cannot be traced


def test_statistics_find_what_the_graph_does_not_show() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3)
            self.layer = nn.Conv2d(8, 4, 1)
            self.other = nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            square = torch.from_numpy(x.numpy() ** 2 + 0.01)
            return self.layer(square) + self.other(-square)

    model = Hidden()
    assert constant_inputs(model, IMAGE) == {}
    assert constant_inputs(model, torch.zeros(4, *IMAGE)) == {}, "zeros say nothing"
    found = constant_inputs(model, torch.randn(4, *IMAGE))
    assert list(found) == ["layer", "other"]
    assert "positive in 100.00 % of the example: nearly every bit would be +1" in found["layer"]
    assert "not positive in 100.00 % of the example: nearly every bit would be -1" in found["other"]


def test_untrained_batch_norms_do_not_mislead_the_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AvgPool2d(4), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), nn.Sigmoid(),
        nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1),
    ).train()  # fmt: skip
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert constant_inputs(model, torch.randn(8, *IMAGE)) == {}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_layer_that_runs_twice_is_constant_only_if_every_time() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.sigmoid(self.layer(x)))

    assert constant_inputs(Twice(), IMAGE) == {}


def test_in_place_changes_through_a_view() -> None:
    def changed(x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        y.view(-1).sub_(0.5)
        return y

    assert constant_inputs(Before(changed), IMAGE) == {}


@pytest.mark.parametrize(
    ("network", "size", "layers"),
    [
        (networks.vgg, IMAGE, {"16"}),
        (networks.ResNet, IMAGE, {"fc"}),
        (lambda: networks.ResNet(head=False), IMAGE, {"layer2.conv2", "layer2.shortcut.0"}),
        (networks.TwoHeads, IMAGE, {"classes", "boxes.2"}),
        (networks.DictOutput, IMAGE, {"classes", "boxes.2"}),
        (networks.DataclassOutput, IMAGE, {"classes", "boxes.2"}),
        (networks.UNet, IMAGE, {"head"}),
        (networks.Tokens, IMAGE, {"fc"}),
        (networks.mlp, (16,), {"3"}),
        (networks.sequences, (4, 16), {"5"}),
    ],
)
def test_every_head_is_an_output_layer(
    network: Callable[[], nn.Module], size: tuple[int, ...], layers: set[str]
) -> None:
    assert output_layers(network(), size) == layers


def test_a_shortcut_around_later_layers_is_no_output() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(F.relu(x))
            return x

    assert output_layers(Chain(), IMAGE) == {"layers.3"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_outputs_through_code_that_is_not_seen() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.ReLU(), nn.Flatten()))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), scripted)
    assert output_layers(model, IMAGE) == {"1"}


def test_binarize_leaves_these_layers_real() -> None:
    model = networks.SqueezeExcitationNet()
    report = binarize(model, example=IMAGE)
    reasons = {row.path: row.reason for row in report.rows}
    assert report.changed == ("se.expand", "conv")
    assert "every bit would be +1" in reasons["se.reduce"]
    assert not report.obstacles
    model = networks.SqueezeExcitationNet()
    model.se.gate = networks.Sine()
    hindered = binarize(model, example=IMAGE)
    assert [obstacle.path for obstacle in hindered.obstacles] == ["se.gate"]
    assert "to packing:\n  se.gate: torch.lgamma is not supported" in str(hindered)
    assert binarize(networks.SqueezeExcitationNet()).changed == report.changed
    heads = binarize(networks.DictOutput(), example=(torch.randn(2, *IMAGE), torch.arange(2)))
    assert heads.changed == ("body.3", "boxes.0")
