"""What a user adds from outside of the package: scales and quantizers, by object, by name and by path."""

from __future__ import annotations

import copy
import json
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xnorpp import Binarization, binarize, create_model
from xnorpp.models.blocks import Options, PreActivationBlock
from xnorpp.nn import QUANTIZERS, SCALES, BinaryConv2d, BinaryLinear, ChannelScale, parameter_groups, sign
from xnorpp.nn.fused import dispatch as fused
from xnorpp.nn.fused.dispatch import Unit
from xnorpp.packing import PackError, pack
from xnorpp.packing.verify import verify

OWN_SCALES = ["own_width", "own:ScalarScale", "own:EveryScale"]


def network(config: Binarization) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 8, 3, padding=1, config=config),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 4, 3, stride=2, config=config),
        nn.PReLU(),
        nn.Flatten(),
        BinaryLinear(24, 5, config=config.for_linear()),
    )


@pytest.mark.parametrize("scale", OWN_SCALES)
def test_a_scale_of_the_users_own_trains_and_packs(own: ModuleType, scale: str) -> None:
    """The scale stands in no file of the package; trained and packed network decide alike."""
    model = network(Binarization(scale=scale))
    x = torch.randn(8, 3, 6, 7)
    model(x)  # the spatial ones infer their sizes
    optimizer = torch.optim.SGD(parameter_groups(model, 0.0), lr=0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(8) % 5).backward()
        optimizer.step()
    factors = [name for name in before if ".scale." in name]
    assert factors
    assert all(p.grad is not None for p in model.parameters())
    # the batch norm after layer 2 undoes a common factor, so only the other layers' scales must move
    moved = {n for n, p in model.named_parameters() if not torch.equal(before[n], p)}
    assert {name for name in factors if not name.startswith("2.")} <= moved
    model.eval()
    result = verify(model, np.random.default_rng(0).standard_normal((16, 3, 6, 7)).astype(np.float32))
    assert result.holds
    for layer in (model[2], model[4]):
        gamma, parts = layer.scale.tensor(), layer.scale.in_turn()
        product = torch.ones(())
        for part in parts:
            product = product * part
        torch.testing.assert_close(product, gamma.expand_as(product))
    again = network(Binarization(scale=scale))
    again.load_state_dict(model.state_dict())
    probe = torch.randn(2, 3, 6, 7)
    assert torch.equal(again.eval()(probe), model(probe))


def test_the_fused_path_takes_only_scales_that_declare_a_kernel_of_their_shape(own: ModuleType) -> None:
    def reason(scale: object, size: tuple[int, int] | None = (4, 4)) -> str | None:
        conv = BinaryConv2d(4, 4, 3, padding=1, bias=False, scale=scale, output_size=size)
        assert fused.why_not_scale(conv) is None or fused.why_not_unit(
            Unit(nn.BatchNorm2d(4), conv, nn.ReLU())
        ) == fused.why_not_scale(conv)
        return fused.why_not_scale(conv)

    for name in SCALES:
        if name != "own_width":
            assert reason(name) is None or name not in ("channel", "dense", "channel_spatial"), name
    assert reason("channel_height_width") is None
    assert reason("alpha") is None
    assert reason("own_width") == "the scale 'own_width' declares no fused kernel"
    assert reason("own:ScalarScale") == "the scale 'own:ScalarScale' declares no fused kernel"
    assert reason("dense", None) == "the scale 'dense' gets its size at the first forward pass"

    class Widened(ChannelScale):  # inherits the kernel, but its factors are no longer the kernel's
        spans = {"alpha": "c", "gamma": "w"}  # noqa: RUF012

    assert Widened.kernel is None

    class Wrong(ChannelScale):
        def factors(self) -> tuple[Tensor, ...]:
            return (self.alpha, self.alpha)

    assert "are not those of the kernel 'channel'" in (reason(Wrong) or "")
    with pytest.raises(TypeError, match=r"`kernel` \(='dense'\) of Claims must be one of"):

        class Claims(ChannelScale):
            kernel = "dense"


def test_a_scale_that_is_not_one_is_refused(own: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"`scale` \(='own:TriangleSign'\) cannot be used: .*LearnedScale"):
        Binarization(scale="own:TriangleSign")
    with pytest.raises(ValueError, match=r"`scale` \(='own:Missing'\) must name something in own"):
        Binarization(scale="own:Missing")
    with pytest.raises(ValueError, match=r"there is no module 'nowhere'"):
        Binarization(scale="nowhere.at_all:Scale")
    with pytest.raises(
        ValueError, match=r"`scale` \(='chanel'\) must be one of 'channel'.*package.module:Name"
    ):
        Binarization(scale="chanel")
    with pytest.raises(ValueError, match=r"`name` \(='channel'\) must be new; .*ChannelScale"):
        SCALES.add("channel", own.ScalarScale)
    with pytest.raises(ValueError, match=r"`name` \(='a:b'\) must not"):
        SCALES.add("a:b", own.ScalarScale)
    with pytest.raises(TypeError, match=r"not a subclass of xnorpp\.nn\.Quantizer"):
        QUANTIZERS.add("thing", own.ScalarScale)  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", ["own_triangle", "own:TriangleSign", "own_triangle(height=2.0)"])
def test_a_quantizer_of_the_users_own_trains_and_packs(own: ModuleType, spelling: str) -> None:
    config = Binarization(inputs=spelling, weights=spelling, scale="channel")
    height = 2.0 if "2.0" in spelling else 1.0
    assert config.inputs == own.TriangleSign(height)
    assert str(config.inputs) == ("own_triangle(height=2.0)" if height == 2.0 else "own_triangle")
    x = torch.randn(50, requires_grad=True)
    config.inputs(x).backward(torch.arange(50.0))
    torch.testing.assert_close(x.grad, (height - x.detach().abs()).clamp(min=0) * torch.arange(50.0))
    model = network(config)
    model(torch.randn(4, 3, 6, 7)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert verify(
        model.eval(), np.random.default_rng(0).standard_normal((8, 3, 6, 7)).astype(np.float32)
    ).holds
    units = [Unit(nn.BatchNorm2d(8), model[2])]
    assert "not 'ste'" in (fused.why_not_unit(units[0]) or "")


def test_the_same_choices_reach_networks_recipes_and_binarize(own: ModuleType) -> None:
    model = create_model(
        "small", input_size=8, in_channels=1, width=8, scale="own_width", surrogate="own_triangle(height=0.5)"
    )
    assert model.config["inputs"] == "own_triangle(height=0.5)"
    assert model.config["scale"] == "own_width"
    again = create_model(**json.loads(json.dumps(model.config)))
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(again.eval()(x), model.eval()(x))
    report = binarize(
        network(Binarization(scale=None)), overrides={"0": Binarization(scale="own:ScalarScale")}
    )
    assert report.changed == ("0",)
    block = PreActivationBlock(Options(Binarization(scale=own.ScalarScale)), 4, 4, 1, (4, 4))
    assert isinstance(copy.deepcopy(block).conv1.scale, own.ScalarScale)


def test_what_only_claims_to_be_a_sign_is_not_packed(own: ModuleType) -> None:
    with pytest.raises(PackError, match=r"quantizes its inputs by 'own:ShiftedSign', which is not"):
        pack(BinaryConv2d(3, 4, 1, inputs="own:ShiftedSign"), (3, 4, 4))
    with pytest.raises(PackError, match=r"with the encoding 'ternary', which is not supported"):
        pack(BinaryConv2d(3, 4, 1, weights="own:TernaryWeights"), (3, 4, 4))
    shifted = BinaryConv2d(3, 4, 1, weights="own:ShiftedSign")  # +1 or -1, so that one bit holds it
    shifted.eval()
    assert verify(shifted, np.random.default_rng(0).standard_normal((4, 3, 4, 4)).astype(np.float32)).holds


def test_parameters_of_a_quantizer_are_checked(own: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"`inputs` \(='own_triangle\(width=2\)'\) has an unknown parameter"):
        Binarization(inputs="own_triangle(width=2)")
    with pytest.raises(ValueError, match=r"must look like name or name\(key=value\)"):
        Binarization(inputs="own_triangle(open")
    with pytest.raises(ValueError, match=r"`start` \(=0\) and `end` \(=10.0\) must be positive"):
        Binarization(inputs="tanh(start=0)")
    with pytest.raises(ValueError, match="must be a Quantizer or the name of one"):
        Binarization(inputs=sign)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="must define `slope`"):
        type("Empty", (own.Quantizer,), {})()(torch.ones(1))
