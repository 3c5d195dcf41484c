"""Chains found in networks of others; on the CPU they compute what the plain layers compute."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp import binarize, create_model
from xnorpp.nn import BinaryConv2d, fuse_for_training
from xnorpp.nn.fused import dispatch
from xnorpp.nn.fused.graph import Chain, unfuse, unfused_layers


class BasicBlock(nn.Module):
    """torchvision's, in its own words."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class PreActivation(nn.Module):
    """Batch norm first, functional activations, a branch on the mode."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.PReLU(channels))
        self.last = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.body(self.norms[0](x))
        z = F.relu(self.last(torch.relu(self.norms[1](y))))
        return y + (F.dropout(z, 0.0) if self.training else z)


class Network(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(block(), block())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def residual() -> nn.Module:
    net = nn.Sequential()
    net.add_module("stem", nn.Conv2d(3, 8, 3, padding=1))
    net.add_module("first", BasicBlock(8, 8))
    net.add_module("second", BasicBlock(8, 16, 2))
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flat", nn.Flatten())
    net.add_module("head", nn.Linear(16, 5))
    return net


def results(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.train()
    torch.manual_seed(0)
    y = model(x)
    y.square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"y": y.detach(), **found, **dict(model.named_buffers())}


def assert_same(plain: nn.Module, other: nn.Module, x: Tensor) -> None:
    expected, actual = results(plain, x), results(other, x)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    assert torch.equal(plain.eval()(x), other.eval()(x))


def test_the_chains_of_a_torchvision_like_network_are_found() -> None:
    model = residual()
    binarize(model, example=torch.zeros(1, 3, 8, 8), overrides={"second.downsample.0": "real"})
    plain = copy.deepcopy(model)
    chains = fuse_for_training(model)
    inner = ("conv1", "bn1", "conv2", "bn2", "relu")
    assert chains == (Chain("first", inner, True), Chain("second", inner, True))
    assert unfused_layers(model) == ()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    x = torch.randn(4, 3, 8, 8)
    assert_same(copy.deepcopy(plain), copy.deepcopy(model), x)
    assert_same(plain, model, x)


@pytest.mark.parametrize("shortcut_first", [False, True])
def test_a_binary_shortcut_is_part_of_its_block_and_a_stem_ends_fused(shortcut_first: bool) -> None:
    class Ordered(BasicBlock):
        def forward(self, x: Tensor) -> Tensor:
            if not shortcut_first:
                return super().forward(x)
            assert self.downsample is not None
            identity = self.downsample(x)
            return F.relu(identity + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))), inplace=True)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
            self.block, self.head = Ordered(8, 16, 2), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(F.relu(self.norm(self.stem(x)))).mean((2, 3)))

    model = Whole()
    binarize(model)
    plain = copy.deepcopy(model)
    stem, block = fuse_for_training(model)
    assert stem == Chain("", ("norm",), False)
    assert (block.path, block.shortcut) == ("block", True)
    side = ("downsample.0", "downsample.1")
    assert block.layers[:6] == ("conv1", "bn1", "conv2", "bn2", *side)
    assert unfused_layers(model) == ()
    assert_same(plain, model, torch.randn(4, 3, 8, 8))


def test_a_vgg_keeps_its_pooling_and_a_network_without_binary_layers_is_left() -> None:
    def vgg() -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in ((3, 8), (8, 8), (8, 12), (12, 12)):
            layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)] if a == b else []
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 5))

    assert fuse_for_training(vgg()) == ()
    model = vgg()
    binarize(model)
    plain = copy.deepcopy(model)
    chains = fuse_for_training(model)
    assert [chain.layers for chain in chains] == [("1", "3", "4", "5"), ("7", "8", "10", "11", "12")]
    assert_same(plain, model, torch.randn(4, 3, 8, 8))


def test_chains_with_shortcuts_and_functional_activations_are_found() -> None:
    model = Network(lambda: PreActivation(8))
    binarize(model, example=torch.zeros(1, 3, 8, 8), scale="channel_height_width")
    plain = copy.deepcopy(model)
    chains = fuse_for_training(model)
    first, last = ("norms.0", "body.0", "body.1"), ("norms.1", "last")
    expected = [Chain(f"blocks.{i}", *rest) for i in (0, 1) for rest in ((first, True), (last, False))]
    assert sorted(chains, key=str) == sorted(expected, key=str)
    assert_same(plain, model, torch.randn(4, 3, 8, 8))


def test_the_fused_path_is_asked_at_every_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual()
    binarize(model)
    fuse_for_training(model)
    asked: list[int] = []

    def use_fused(x: Tensor, units: tuple[dispatch.Unit, ...], end: dispatch.End) -> bool:
        asked.append(len(units))
        assert dispatch.why_not_unit(units[1]) is None
        assert dispatch.why_not_end(units, end) is None
        return False

    monkeypatch.setattr(dispatch, "use_fused", use_fused)
    model.train()(torch.randn(2, 3, 8, 8))
    assert asked == [2, 2]
    model.eval()(torch.randn(2, 3, 8, 8))
    with torch.no_grad():
        model.train()(torch.randn(2, 3, 8, 8))
    assert asked == [2, 2]


def test_hooks_on_layers_and_blocks_still_listen() -> None:
    model = residual()
    binarize(model)
    fuse_for_training(model)
    heard: list[str] = []
    for path in ("first", "first.conv1", "second.bn1", "second.conv2"):
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: heard.append(path))
    model.train()(torch.randn(2, 3, 8, 8))
    assert sorted(heard) == ["first", "first.conv1", "second.bn1", "second.conv2"]


def test_copying_storing_and_undoing() -> None:
    model = residual()
    binarize(model)
    fuse_for_training(model)
    x = torch.randn(2, 3, 8, 8)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again.train()(x), copy.deepcopy(model).train()(x))
    assert unfused_layers(again) != ()
    assert fuse_for_training(again) == fuse_for_training(model) != ()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.first.conv2.weight.neg_()
    assert not torch.equal(copied.train()(x), model.train()(x))  # the copy's graph has the copy's layers
    unfuse(model)
    assert not any("forward" in vars(module) for module in model.modules())


class Refusing(nn.Module):
    """torch.fx cannot follow it, nor is there a batch norm right before its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.BatchNorm2d(4), BinaryConv2d(4, 4, 1), BinaryConv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.norm(x)) if x.sum() > 0 else self.b(x)


def test_what_cannot_be_followed_or_has_the_path_already_is_left() -> None:
    refusing = Refusing()
    assert fuse_for_training(refusing) == ()
    assert unfused_layers(refusing) == ("a", "b")
    assert refusing(torch.ones(2, 4, 3, 3)).shape == (2, 4, 3, 3)
    assert fuse_for_training(create_model("small", input_size=8, in_channels=1)) == ()
    lone = nn.Sequential(nn.Conv2d(3, 4, 1), BinaryConv2d(4, 4, 1), nn.ReLU())
    assert fuse_for_training(lone) == ()
    assert fuse_for_training(nn.Linear(2, 2)) == ()


def test_what_else_reads_a_value_keeps_it() -> None:
    class Reading(nn.Module):
        """Batch norm and sum are read twice; a shortcut is changed in place."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
            self.after = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            n = self.norm(x)
            y = self.a(n) + n
            z = y * 1.0
            z += self.b(self.after(y))
            return z * n + y

    model = nn.Sequential(nn.Conv2d(3, 4, 1), Reading(), nn.Conv2d(4, 4, 1))
    binarize(model, "bnn", overrides={"1": "bnn"})
    plain = copy.deepcopy(model)
    assert fuse_for_training(model) == (Chain("1", ("after", "b"), True),)
    assert_same(plain, model, torch.randn(4, 3, 5, 5))
