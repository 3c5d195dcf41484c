"""`check_packable` on networks as other people write them: every obstacle with its remedy, at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import networks
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xnorpp
from xnorpp.nn import BinaryConv2d, BinaryLinear
from xnorpp.packing import Obstacle, Packability, PackError, check_packable, pack, pack_program, verify
from xnorpp.packing.obstacles import remedy_for

IMAGE = (3, 16, 16)
RELU = "replace it by nn.ReLU or nn.Hardtanh"
Expected = list[tuple[str, str, str]]  # path, operation, part of the remedy

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Expected]] = {
    "vgg": (networks.vgg, IMAGE, []),
    "post-activation resnet": (networks.ResNet, IMAGE, []),
    "squeeze-excitation": (networks.SqueezeExcitationNet, IMAGE, []),
    "two heads": (networks.TwoHeads, IMAGE, []),
    "dict": (networks.DictOutput, IMAGE, []),
    "dataclass": (networks.DataclassOutput, IMAGE, []),
    "sine": (networks.sine, IMAGE, [("1", "torch.lgamma", RELU), ("6", "torch.lgamma", RELU)]),
    "group norm": (networks.group_norm, IMAGE, []),
    "u-net": (networks.UNet, IMAGE, []),
    "antialiased u-net": (
        networks.AntialiasedUNet,
        IMAGE,
        [("", "torch.nn.functional.interpolate", "leave `antialias` out")],
    ),
    "shufflenet": (networks.ShuffleNet, IMAGE, []),
    "adaptive pool": (networks.adaptive_pool, IMAGE, []),
    "mlp": (networks.mlp, (16,), []),
    "conv1d": (networks.sequences, (4, 16), []),
    "attention": (networks.Tokens, IMAGE, []),
    "masked attention": (lambda: networks.Tokens(masked=True), IMAGE, []),
    "added keys": (
        lambda: networks.Tokens(added=True),
        IMAGE,
        [("attention", "nn.MultiheadAttention", "leave `add_bias_kv`")],
    ),
    "reads values": (
        networks.ReadsValues,
        IMAGE,
        [
            ("", "torch.Tensor.amax", "nn.AdaptiveMaxPool2d"),
            ("", "torch.Tensor.__bool__", "decide by shapes"),
            ("", "torch.lgamma", RELU),
        ],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_obstacle_is_listed_with_its_remedy(name: str) -> None:
    make, size, expected = NETWORKS[name]
    model = make()
    found = check_packable(model, size)
    assert [(o.path, o.operation) for o in found.obstacles] == [(path, op) for path, op, _ in expected]
    for obstacle, (_, _, remedy) in zip(found.obstacles, expected, strict=True):
        assert remedy in obstacle.remedy
        assert remedy in str(found)
        assert obstacle.operation in str(found)
    assert bool(found) == (not expected)
    if found:
        assert str(found).startswith("packable: the whole model")
        pack(model, size)
    else:
        assert str(found).startswith(f"not packable: {len(expected)} obstacle")
        with pytest.raises(PackError) as error:
            pack(model, example=size)
        assert str(error.value).startswith(str(found.obstacles[0]))
        assert ("more obstacle" in str(error.value)) == (len(expected) > 1)
        if len(expected) > 1:
            assert f"({len(expected) - 1} more obstacle" in str(error.value)
            assert "xnorpp.check_packable(model, example) lists all" in str(error.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_example_batch_gives_the_same_list_as_a_size(name: str) -> None:
    make, size, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    for example in (
        torch.randn(5, *size),
        torch.randn(1, *size).numpy(),
        [torch.randn(3, *size), torch.arange(3)],
    ):
        assert check_packable(model, example).obstacles == check_packable(model, size).obstacles


def test_the_line_is_that_of_the_model() -> None:
    found = check_packable(networks.ReadsValues(), IMAGE)
    assert found.obstacles[0].line.startswith("networks.py:")
    assert found.obstacles[0].line.endswith("if x.amax() > 1e6:")
    alone = check_packable(nn.Sequential(nn.FractionalMaxPool2d(2, 3)), IMAGE)
    assert alone.obstacles[0].line == "nn.FractionalMaxPool2d"  # there is no line of the model's own


def test_parts_that_could_be_packed_are_named() -> None:
    found = check_packable(networks.AntialiasedUNet(), IMAGE)
    assert [part.name for part in found.packable_parts] == ["down", "middle", "up", "merge", "head"]
    assert "packable parts, which xnorpp.pack_submodules packs:\n  down (1 layer)" in str(found)
    assert [part.name for part in check_packable(networks.sine(), IMAGE).packable_parts] == [
        "0", "2 to 5", "7 to 9",
    ]  # fmt: skip
    nothing = check_packable(nn.Sequential(networks.Sine()), IMAGE)
    assert str(nothing).endswith("no part with a convolution or linear layer can be packed by itself")


def test_the_same_line_is_reported_once_and_counted() -> None:
    class Loop(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(5):
                x = torch.lgamma(x)
            return x

    found = check_packable(nn.Sequential(Loop(), Loop()), IMAGE)
    assert [(o.path, o.calls) for o in found.obstacles] == [("0", 5), ("1", 5)]
    assert str(found).count("remedy:") == 1  # the same operation, reason and remedy


def test_the_model_is_left_as_it_was() -> None:
    model = networks.SqueezeExcitationNet().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_packable(model, IMAGE)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_inputs_without_a_batch_are_an_obstacle_and_the_rest_is_still_checked() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.lgamma(self.conv(x) + y.mean())

    images = torch.zeros(2, *IMAGE)
    found = check_packable(Two(), (images, images[:1]))
    assert [o.operation for o in found.obstacles] == ["forward", "torch.lgamma"]
    assert "takes 2 inputs" in found.obstacles[0].reason
    assert "as many images" in found.obstacles[0].remedy
    assert [part.name for part in found.packable_parts] == ["conv"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_scripted_module_is_an_obstacle() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 1)))
    found = check_packable(nn.Sequential(nn.Conv2d(3, 8, 3), scripted), IMAGE)
    assert [(o.path, o.operation) for o in found.obstacles] == [("1", "torch.jit")]
    assert [part.name for part in found.packable_parts] == ["0"]
    assert [o.operation for o in check_packable(torch.jit.script(nn.Conv2d(3, 8, 3)), IMAGE).obstacles] == [
        "torch.jit"
    ]


def test_inputs_of_other_kinds_are_an_obstacle() -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4), networks.Lambda(torch.normal))
    found = check_packable(model, torch.randint(0, 10, (2, 5)))
    assert [(o.path, o.operation) for o in found.obstacles] == [("2", "torch.normal")]
    found = check_packable(networks.Lambda(torch.abs), torch.zeros(2, 5, dtype=torch.complex64))
    assert [o.operation for o in found.obstacles] == ["the input"]
    assert "int64" in found.obstacles[0].remedy
    assert check_packable(networks.vgg(), torch.zeros(2, *IMAGE, dtype=torch.uint8))  # bytes are numbers


def test_what_only_folding_finds_is_an_obstacle_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    found = check_packable(model, (3, 4, 4))
    assert len(found.obstacles) == 1
    assert "`weight` has NaN" in found.obstacles[0].reason
    found = check_packable(networks.ReadsValues(), torch.zeros(1, 3, 16, 16))
    assert len(found.obstacles) == 3

    class Sign(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(torch.sign(x), torch.ones(4, 3, 1, 1)) * torch.lgamma(x[:, :1])

    found = check_packable(Sign(), IMAGE)
    assert [o.operation for o in found.obstacles] == ["torch.nn.functional.conv2d", "torch.lgamma"]
    assert "xnorpp.nn.sign" in found.obstacles[0].remedy


def test_values_of_shapes_that_do_not_broadcast_are_an_obstacle() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3), keepdim=True) - x.mean((2, 3))

    found = check_packable(Mixed(), IMAGE)
    assert ["of shapes" in o.reason for o in found.obstacles] == [True]


def test_an_example_that_does_not_run_is_a_value_error() -> None:
    with pytest.raises(
        ValueError, match=r"`example` of shape \(2, 5, 16, 16\) is none that the model runs on"
    ):
        check_packable(networks.ResNet(), (5, 16, 16))
    with pytest.raises(ValueError, match=r"`example` \(=0\) must be a positive side"):
        check_packable(networks.ResNet(), 0)
    with pytest.raises(ValueError, match="is that of a vector; the model has convolutions"):
        check_packable(networks.ResNet(), (16,))
    with pytest.raises(ValueError, match="at least one image"):
        check_packable(networks.ResNet(), torch.zeros(0, *IMAGE))
    with pytest.raises(ValueError, match="tensors or a size are needed"):
        check_packable(networks.ResNet(), ["image.png"])
    with pytest.raises(ValueError, match=r"`model` is str; an nn\.Module is needed"):
        check_packable("resnet18", IMAGE)  # type: ignore[arg-type]


def test_a_whole_binary_layer_may_be_an_obstacle() -> None:
    model = nn.Sequential(
        BinaryConv2d(3, 4, 2, padding="same", config="xnor", scale="alpha_k"), networks.Sine()
    )
    found = check_packable(model, (3, 8, 8))
    assert [(o.path, o.operation) for o in found.obstacles] == [("0", "BinaryConv2d"), ("1", "torch.lgamma")]


def test_a_large_network_takes_about_a_second() -> None:
    from xnorpp.models import create_model

    model = create_model("resnet18", input_size=64, num_classes=1000)
    check_packable(model, 64)
    begin = time.perf_counter()
    assert check_packable(model, 64)
    assert time.perf_counter() - begin < 5.0  # a second or less; the limit leaves room for a busy machine


def test_pack_returns_a_model_that_runs() -> None:
    torch.manual_seed(0)
    model = networks.vgg().eval()
    images = torch.randn(3, *IMAGE)
    packed = xnorpp.pack(model, example=images, labels=[str(i) for i in range(10)])
    with torch.no_grad():
        assert np.allclose(packed(images.numpy()), model(images).numpy(), atol=1e-4)
    assert packed.labels == tuple("0123456789")
    assert packed.program.input_shape == IMAGE
    assert pack_program(model, 16).input_shape == IMAGE
    with pytest.raises(ValueError, match="neither is given"):
        pack(model)
    with pytest.raises(ValueError, match="both `input_size` and `example` are given"):
        pack(model, 16, example=16)


def test_several_named_outputs() -> None:
    torch.manual_seed(0)
    images = torch.randn(3, *IMAGE)
    for kind, names in (
        (networks.TwoHeads, ["0", "1"]),
        (networks.DictOutput, ["classes", "boxes"]),
        (networks.DataclassOutput, ["classes", "boxes"]),
    ):
        model = kind().eval()
        found = pack(model, example=images, labels=[str(i) for i in range(10)])(images.numpy())
        assert list(found) == names
        with torch.no_grad():
            for mine, goal in zip(found.values(), networks.TwoHeads.forward(model, images), strict=True):
                assert np.allclose(mine, goal.numpy(), atol=1e-5)
        assert verify(model, images.numpy()).holds


def test_vector_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(networks.mlp(), BinaryLinear(10, 6, scale="channel"), nn.ReLU()).eval()
    x = torch.randn(5, 16)
    packed = pack(model, (16,))
    assert packed.program.input_shape == (16,)
    with torch.no_grad():
        assert np.allclose(packed(x.numpy()), model(x).numpy(), atol=1e-5)
    assert verify(model, x.numpy()).holds


def test_public_names() -> None:
    assert xnorpp.check_packable is check_packable
    assert isinstance(check_packable(networks.vgg(), IMAGE), Packability)
    assert issubclass(PackError, ValueError)
    assert str(Obstacle("a", "op", "line", "is refused", "do this")) == "a: op is refused (line): do this"
    assert remedy_for("unheard_of").startswith("replace it by an operation that docs/packing.md lists")
