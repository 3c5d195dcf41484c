"""Packed sub-networks inside unpacked ones: what is replaced, that it equals torch, and its state."""

from __future__ import annotations

import copy
import io
import pickle

import networks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xnorpp
from xnorpp.nn import BinaryConv2d, BinaryLinear
from xnorpp.packing import PackedModule, pack_program, pack_submodules

IMAGE = (3, 16, 16)


def with_binary_layers(model: nn.Module, *paths: str) -> nn.Module:
    """The layers at these paths replaced by binary ones, batch norms given statistics, in evaluation mode."""
    torch.manual_seed(0)
    for path in paths:
        old = model.get_submodule(path)
        new: nn.Module
        if isinstance(old, nn.Conv2d):
            new = BinaryConv2d(
                old.in_channels, old.out_channels, old.kernel_size, old.stride, old.padding,
                bias=old.bias is not None, scale="channel",
            )  # type: ignore[arg-type]  # fmt: skip
        else:
            assert isinstance(old, nn.Linear)
            new = BinaryLinear(old.in_features, old.out_features, bias=old.bias is not None, scale="channel")
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.3)
            nn.init.uniform_(module.weight, -1.0, 1.0)
    return model.eval()


def same_output(hybrid: nn.Module, model: nn.Module, *shape: int) -> bool:
    x = torch.randn(4, *shape)
    with torch.no_grad():
        found, goal = hybrid(x.clone()), model(x.clone())
    if isinstance(goal, tuple):
        return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, goal, strict=True))
    return torch.allclose(found, goal, atol=1e-4)


def test_an_activation_in_the_middle_stays() -> None:
    model = with_binary_layers(networks.sine(), "2", "5")
    hybrid, report = pack_submodules(model, IMAGE)
    assert [part.name for part in report.packed] == ["2 to 5"]
    assert [(part.name, part.reason) for part in report.left] == [
        ("0", "has no binary layer"),
        ("1", "torch.lgamma is not supported"),
        ("6", "torch.lgamma is not supported"),
        ("9", "has no binary layer"),
    ]
    assert isinstance(hybrid[2], PackedModule)
    assert all(isinstance(hybrid[i], nn.Identity) for i in (3, 4, 5))
    assert isinstance(model[2], BinaryConv2d), "the model itself is left unchanged"
    assert "binary_conv2d" in {op.op for op in hybrid[2].program.ops}
    assert same_output(hybrid, model, *IMAGE)
    assert str(report).splitlines()[:2] == ["packed  2 to 5 (2 layers)", "left    0: has no binary layer"]


def test_neighbours_in_a_subclass_of_sequential() -> None:
    class Stage(nn.Sequential):
        pass

    class Odd(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[3](self[2](self[0](self[1](x))))

    layers = [nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), networks.Sine(), nn.Conv2d(3, 3, 1)]
    for kind, names in ((Stage, ["0 to 1", "3"]), (Odd, ["0", "1", "3"])):
        model = kind(*layers).eval()
        hybrid, report = pack_submodules(model, (3, 8, 8))
        assert [part.name for part in report.packed] == names
        assert same_output(hybrid, model, 3, 8, 8)


def test_attention_in_the_middle() -> None:
    model = with_binary_layers(networks.Tokens(added=True), "stem.3", "tail.0", "tail.3")
    hybrid, report = pack_submodules(model, torch.randn(3, *IMAGE))
    assert [part.name for part in report.packed] == ["stem", "tail"]
    assert isinstance(hybrid.stem, PackedModule)
    assert hybrid.tail.program.input_shape == (8, 6, 6)
    assert {part.name for part in report.left} == {"attention", "fc"}
    assert same_output(hybrid, model, *IMAGE)


def test_several_outputs_and_vector_inputs() -> None:
    model = with_binary_layers(networks.TwoHeads(), "body.3", "boxes.0")
    hybrid, report = pack_submodules(model, 16)
    assert [part.name for part in report.packed] == ["body", "boxes"]
    assert hybrid.boxes.program.input_shape == (8,)
    assert same_output(hybrid, model, *IMAGE)


@pytest.mark.parametrize(
    ("network", "binary", "packed"),
    [
        (networks.AntialiasedUNet, ["middle.0", "merge.0"], ["middle", "merge"]),
    ],
)
def test_the_largest_packable_parts_of_foreign_networks(
    network, binary: list[str], packed: list[str]
) -> None:  # type: ignore[no-untyped-def]
    model = network()
    model = with_binary_layers(model, *binary)
    hybrid, report = pack_submodules(model, IMAGE)
    assert [part.name for part in report.packed] == packed
    assert [part.name for part in xnorpp.check_packable(model, IMAGE).packable_parts] == packed
    assert same_output(hybrid, model, *IMAGE)


def test_a_model_that_packs_becomes_one_module() -> None:
    model = with_binary_layers(networks.ResNet(), "layer1.conv1", "layer2.conv2")
    hybrid, report = pack_submodules(model, IMAGE)
    assert isinstance(hybrid, PackedModule)
    assert [part.paths for part in report.packed] == [("",)]
    assert same_output(hybrid, model, *IMAGE)
    vectors = networks.mlp().eval()
    hybrid, _ = pack_submodules(vectors, (16,))
    assert isinstance(hybrid, PackedModule)
    assert same_output(hybrid, vectors, 16)


class Keeps(nn.Module):
    """Modules that must stay as they are, though each has a layer that packs."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 3, 1))
        self.sizes = nn.Conv2d(3, 3, 1)
        self.pair = Pair()
        self.unused = nn.Conv2d(3, 3, 1)
        self.shared = self.alias = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.lgamma(x)
        y = self.changes(x)
        x = x + y  # the shortcut has gone through the in-place ReLU
        x = self.sizes(x) + self.sizes(F.max_pool2d(x, 2)).mean((2, 3), keepdim=True)
        return self.alias(self.shared(self.pair(x, x)))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.conv(x) + y


def test_what_cannot_stand_alone_stays() -> None:
    torch.manual_seed(0)
    model = Keeps().eval()
    hybrid, report = pack_submodules(model, (3, 8, 8))
    assert [part.name for part in report.packed] == ["changes.1", "pair.conv", "shared"]
    reasons = {part.name: part.reason for part in report.left}
    assert reasons["sizes"] == "is called with several input sizes, (3, 8, 8) and (3, 4, 4)"
    assert reasons["unused"] == "is not called, or not through its forward pass"
    assert hybrid.alias is hybrid.shared
    assert isinstance(hybrid.alias, PackedModule)
    assert same_output(hybrid, model, 3, 8, 8)


def test_state_pickle_and_deepcopy() -> None:
    torch.manual_seed(0)
    model = with_binary_layers(networks.sine(), "2")
    hybrid, _ = pack_submodules(model, IMAGE, threads=1)
    x = torch.randn(2, *IMAGE)
    with torch.no_grad():
        goal = hybrid(x)
        assert torch.equal(copy.deepcopy(hybrid)(x), goal)
        assert torch.equal(pickle.loads(pickle.dumps(hybrid))(x), goal)
    file = io.BytesIO()
    torch.save(hybrid.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    torch.manual_seed(1)
    other = networks.sine()
    torch.manual_seed(1)
    different, _ = pack_submodules(with_binary_layers(other, "2"), IMAGE)
    with torch.no_grad():
        nn.init.zeros_(different[0].weight)
        assert not torch.allclose(different(x), goal)
        different.load_state_dict(state)
        assert torch.equal(different(x), goal)
    assert not list(hybrid[2].parameters())


def test_a_packed_module_by_itself() -> None:
    torch.manual_seed(0)
    body = with_binary_layers(networks.ResNet(head=False), "layer1.conv1")
    packed = PackedModule(pack_program(body, IMAGE))
    x = torch.randn(2, *IMAGE)
    with torch.no_grad():
        goal = body(x)
    assert torch.allclose(packed(x), goal, atol=1e-4)  # a dense output, (c, h, w)
    assert packed(x).shape == (2, 16, 8, 8)
    assert packed(x.double()).dtype == torch.float64
    assert packed(x.requires_grad_()).requires_grad is False
    assert packed(x[:0]).shape == (0, 16, 8, 8)
    assert "input 3 x 16 x 16" in repr(packed)
    with pytest.raises(ValueError, match=r"has shape \(2, 3, 8, 8\); it was packed for \(n, 3, 16, 16\)"):
        packed(torch.zeros(2, 3, 8, 8))
    with pytest.raises(RuntimeError, match=r"evaluation only; call \.eval\(\)"):
        packed.train()(x)
    with pytest.raises(ValueError, match="none that the model runs on"):
        pack_submodules(body, (4, 16, 16))
