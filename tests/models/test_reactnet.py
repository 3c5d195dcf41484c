from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from xnorpp.models import create_model
from xnorpp.nn import BinaryConv2d, RPReLU, binary_layers, fuse_for_training, hard_sign, parameter_groups
from xnorpp.packing import pack_program, verify
from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.reference import run
from xnorpp.training import load_recipe


def unsettled(**options: object) -> nn.Module:
    """A narrow network whose shifts, slopes and batch norms are not those of the start."""
    torch.manual_seed(1)
    arguments = {"input_size": 16, "num_classes": 7, "width": 0.25, **options}
    model = create_model("reactnet-a", **arguments)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "running_var" in name:
                tensor.uniform_(0.5, 2)
            elif tensor.is_floating_point() and "scale" not in name and (tensor.ndim == 1 or "shift" in name):
                tensor.normal_(0, 0.5)
    return model.eval()


@pytest.mark.parametrize(
    ("size", "reduction", "sides"),
    [
        (224, 32, [112, 56, 56, 28, 28, *[14] * 6, 7, 7]),
        (64, 16, [64, 32, 32, 16, 16, *[8] * 6, 4, 4]),
        (32, 8, [32, 32, 32, 16, 16, *[8] * 6, 4, 4]),
        ((16, 29), 8, [16, 16, 16, 8, 8, *[4] * 6, 2, 2]),
    ],
)
def test_the_layout_is_mobilenets_and_follows_the_image_size(
    size: int | tuple[int, int], reduction: int, sides: list[int]
) -> None:
    model = create_model("reactnet-a", input_size=size, num_classes=4, width=0.25)
    assert model.config["reduction"] == reduction
    assert [block.output_size[0] for block in model.blocks] == sides
    widths = [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    assert [4 * block.conv2.out_channels for block in model.blocks] == widths
    assert [m.kernel_size for _, m in binary_layers(model)] == [(3, 3), (1, 1)] * 13


def test_its_own_defaults_can_be_changed() -> None:
    model = unsettled()
    assert (model.config["activation"], model.config["sign_shift"]) == ("rprelu", True)
    plain = unsettled(activation="prelu", sign_shift=False, reduction=16)
    assert (plain.config["activation"], plain.config["sign_shift"]) == ("prelu", False)
    assert not any(isinstance(m, RPReLU) for m in plain.modules())
    assert plain.blocks[-1].output_size == (1, 1)
    assert create_model("resnet20").config["sign_shift"] is False


@pytest.mark.parametrize(
    ("options", "message"),
    [({"width": 0}, r"`width` \(=0\) must be greater than 0"), ({"reduction": 4}, r"`reduction` \(=4\)")],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model("reactnet-a", **options)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_is_the_papers(stride: int) -> None:
    """Two 1x1 convolutions of the same input with shortcuts and batch norms of their own, concatenated."""
    model = unsettled(scale="channel", input_size=32, reduction=16)
    block = model.blocks[1 if stride == 2 else 0]
    assert block.conv1.stride == (stride, stride)
    channels = block.conv1.in_channels
    x = torch.randn(2, channels, 12, 12)

    def convolved(conv: BinaryConv2d, y: torch.Tensor, part: slice, **window: int) -> torch.Tensor:
        weight = hard_sign(conv.weight[part]) * conv.scale_factors()[0][part, :, :, None]
        return F.conv2d(hard_sign(y), weight, **window)

    def normed(norm: nn.BatchNorm2d, y: torch.Tensor, part: slice) -> torch.Tensor:
        state = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return F.batch_norm(y, *(one[part] for one in state))

    def rprelu(act: RPReLU, y: torch.Tensor) -> torch.Tensor:
        return F.prelu(y + act[0].shift, act[1].weight) + act[2].shift

    every = slice(None)
    around = F.avg_pool2d(x, 2) if stride == 2 else x
    dots = convolved(block.conv1, x + block.before1.shift, every, stride=stride, padding=1)
    y = rprelu(block.act1, normed(block.bn1, dots, every) + around)
    signed = y + block.before2.shift
    halves = [
        normed(block.bn2, convolved(block.conv2, signed, part), part) + y
        for part in (slice(0, channels), slice(channels, 2 * channels))
    ]
    torch.testing.assert_close(block(x), rprelu(block.act2, torch.cat(halves, 1)))


def test_one_shortcut_around_both_convolutions() -> None:
    block = unsettled(shortcut="block").blocks[2]
    x = torch.randn(1, block.conv1.in_channels, 16, 16)
    y = block.act1(block.bn1(block.conv1(block.before1(x))))
    torch.testing.assert_close(block(x), block.act2(block.bn2(block.conv2(block.before2(y))) + x))


def test_its_real_valued_baseline_has_the_same_convolutions() -> None:
    model = create_model("reactnet-a", method="real", input_size=16, width=0.25)
    assert not list(binary_layers(model))
    binary = unsettled(num_classes=1000)
    convolutions = [m for m in binary.modules() if isinstance(m, nn.Conv2d)]
    assert [m.weight.shape for m in model.modules() if isinstance(m, nn.Conv2d)] == [
        m.weight.shape for m in convolutions
    ]
    block, x = model.eval().blocks[2], torch.randn(1, 32, 16, 16)
    y = block.act1(block.bn1(block.conv1(x)) + x)
    torch.testing.assert_close(block(x), block.act2(block.bn2(block.conv2(y)) + y))


@pytest.mark.parametrize("method", ["xnor++", "real"])
def test_it_learns(method: str) -> None:
    """By the optimiser of its recipe. The sums grow from shortcut to shortcut, so that most signs are +1
    until the shifts have moved: a binary one needs more steps, which are larger here."""
    torch.manual_seed(0)
    part = load_recipe("student-cifar10-reactnet-a").optimizer
    assert part.name == "adam"
    model = create_model("reactnet-a", method=method, input_size=16, num_classes=3, width=0.25).train()
    faster = 1 if method == "real" else 5
    optimizer = torch.optim.Adam(parameter_groups(model, part.weight_decay), lr=faster * part.lr)
    templates, labels = torch.randn(3, 3, 16, 16), torch.arange(24) % 3
    losses = []
    for _ in range(10 if method == "real" else 40):
        loss = F.cross_entropy(model(templates[labels] + 0.3 * torch.randn(24, 3, 16, 16)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.5 * np.log(3), losses


def test_shifts_decay_like_batch_norms_and_not_like_weights() -> None:
    groups = {group["name"]: group for group in parameter_groups(unsettled(), 5e-4, norm_weight_decay=0.0)}
    assert {p.dim() for p in groups["weights"]["params"]} == {2, 4}
    assert any(p.dim() == 3 for p in groups["norms"]["params"])


def test_fusing_for_training_finds_its_convolutions_and_changes_nothing_on_the_cpu() -> None:
    model = unsettled().train()
    plain = copy.deepcopy(model)
    chains = fuse_for_training(model)
    assert len(chains) == 26
    assert all(chain.shortcut and chain.plain is None for chain in chains)
    x = torch.randn(4, 3, 16, 16)
    for one in (model, plain):
        one(x).square().sum().backward()
    for (name, fused), (_, alone) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(fused.grad, alone.grad), name


@pytest.mark.parametrize("size", [16, 15])
def test_packed_it_is_the_same_on_every_instruction_set(size: int) -> None:
    model = unsettled(input_size=size)
    x = np.random.default_rng(0).standard_normal((3, 3, size, size)).astype(np.float32)
    result = verify(model, x)
    assert [layer for layer in result.layers if layer.beyond] == []
    assert result.flips == 0
    assert result.same_class == 1.0
    program = pack_program(model, size)
    assert sum(op.op == "binary_conv2d" for op in program.ops) == 26
    want = run(program, x)
    for isa in available_isas():
        # Stem and classifier are real, and their sums have another order on each.
        got = CpuModel(program, isa=isa, threads=1)(x)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=isa)
