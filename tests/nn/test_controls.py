from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from xnorpp.nn import (
    BinaryConv2d,
    BinaryLinear,
    ChannelShift,
    RPReLU,
    binary_layers,
    calibrate_scales,
    clip_latent_weights_,
    parameter_groups,
    reset_scales,
    set_progress,
    set_stage,
)


def network(**options: object) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        BinaryConv2d(
            4, 6, 3, padding=1, bias=True, output_size=(5, 5), scale="channel_height_width", **options
        ),
        nn.PReLU(6),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.BatchNorm1d(150),
        BinaryLinear(150, 8, **options),
        nn.Linear(8, 3),
        BinaryLinear(3, 3, method="real"),
    )


def test_binary_layers_are_found_by_path_and_real_ones_are_not() -> None:
    assert [path for path, _ in binary_layers(network())] == ["2", "7"]


def test_stage_and_progress_reach_every_layer() -> None:
    model = network(surrogate="tanh")
    set_stage(model, weights_binary=False)
    assert not any(layer.binarize_weights for _, layer in binary_layers(model))
    set_stage(model, weights_binary=True)
    assert all(layer.binarize_weights for _, layer in binary_layers(model))
    set_progress(model, 0.25)
    assert [layer.progress.item() for _, layer in binary_layers(model)] == [0.25, 0.25]
    with pytest.raises(ValueError, match=r"`fraction` \(=1.5\) must lie between 0 and 1"):
        set_progress(model, 1.5)


@pytest.mark.parametrize("clip", [False, True])
def test_latent_weights_are_clipped_only_where_asked(clip: bool) -> None:
    model = network(clip_weights=clip)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(3.0)
    clip_latent_weights_(model)
    assert (model[2].weight.max().item() == 1.0) == clip
    assert (model[7].weight.max().item() == 1.0) == clip
    assert model[0].weight.min() > 1


def test_every_parameter_is_in_one_group_and_scales_have_no_decay() -> None:
    model = network()
    groups = {g["name"]: g for g in parameter_groups(model, 1e-2)}
    assert [g["weight_decay"] for g in groups.values()] == [1e-2, 1e-2, 0.0]
    names = {id(p): name for name, p in model.named_parameters()}
    listed = [names[id(p)] for g in groups.values() for p in g["params"]]
    assert sorted(listed) == sorted(names.values())
    scales = {names[id(p)] for p in groups["scales"]["params"]}
    assert scales == {"2.scale.alpha", "2.scale.beta", "2.scale.gamma", "7.scale.alpha"}
    assert {names[id(p)] for p in groups["weights"]["params"]} == {f"{i}.weight" for i in (0, 2, 7, 8, 9)}
    asked = {g["name"]: g["weight_decay"] for g in parameter_groups(model, 1e-2, 1e-3, 0.0)}
    assert asked == {"weights": 1e-2, "norms": 0.0, "scales": 1e-3}
    torch.optim.Adam(parameter_groups(model, 1e-2), lr=1e-3)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert parameter_groups(model, 1e-2) == []


def test_scales_start_again_from_the_present_weights() -> None:
    model = network()
    with torch.no_grad():
        model[2].weight.mul_(4)
        model[2].scale.beta.fill_(9)
    reset_scales(model)
    torch.testing.assert_close(model[2].scale.alpha.flatten(), 0.8 * model[2].weight.abs().mean((1, 2, 3)))
    assert (model[2].scale.beta == 1).all()


def test_calibration_is_the_least_squares_factor_and_leaves_no_other_trace() -> None:
    model = network().train()
    batch = torch.randn(16, 1, 5, 5)
    state = copy.deepcopy(model.state_dict())
    record = calibrate_scales(model, batch)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed == {"2.scale.alpha", "7.scale.alpha"}
    assert model.training
    layer = model[2]
    x = nn.functional.batch_norm(model[0](batch), None, None, training=True)
    real = nn.functional.conv2d(x, layer.weight, padding=1)
    sign_x, sign_w = torch.where(x > 0, 1.0, -1.0), torch.where(layer.weight > 0, 1.0, -1.0)
    dot = nn.functional.conv2d(sign_x, sign_w, padding=1)
    expected = (real * dot).sum((0, 2, 3)) / (dot * dot).sum((0, 2, 3))
    torch.testing.assert_close(layer.scale.alpha.flatten(), expected, rtol=1e-3, atol=1e-5)
    assert record["method"] == "least_squares"
    assert (record["samples"], record["processes"]) == (16, 1)
    assert record["layers"]["2"]["mean_after"] == pytest.approx(expected.mean().item(), rel=1e-3)
    again = network()
    again.load_state_dict(state)
    assert calibrate_scales(again, batch) == record
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_calibration_refuses_a_compiled_model() -> None:
    with pytest.raises(ValueError, match="before it is wrapped or compiled"):
        calibrate_scales(torch.compile(network()), torch.randn(2, 1, 5, 5))


@pytest.mark.parametrize("kind", ["empty", "nan", "inf"])
def test_calibration_refuses_a_batch_that_says_nothing(kind: str) -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    batch = torch.randn(0 if kind == "empty" else 2, 1, 5, 5)
    batch[1:, 0, 0, 0] = float("nan" if kind == "empty" else kind)
    with pytest.raises(ValueError, match=r"`batch` has (shape \(0, 1, 5, 5\)|numbers that are not finite);"):
        calibrate_scales(model, batch)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_layer_that_runs_twice_is_calibrated_once() -> None:
    layer = BinaryLinear(4, 4)
    model = nn.Sequential(layer, layer)
    assert list(calibrate_scales(model, torch.randn(8, 4))["layers"]) == ["0"]


@pytest.mark.parametrize("spatial", [False, True])
def test_shifts_are_a_constant_a_channel(spatial: bool) -> None:
    x = torch.randn(2, 3, 4, 4) if spatial else torch.randn(2, 3)
    shift, activation = ChannelShift(3, spatial=spatial), RPReLU(3, spatial=spatial)
    assert torch.equal(shift(x), x)
    constants = torch.tensor([1.0, -2.0, 0.5]).reshape(shift.shift.shape)
    with torch.no_grad():
        shift.shift.copy_(constants)
        activation[0].shift.copy_(constants)
        activation[2].shift.copy_(2 * constants)
    assert torch.equal(shift(x), x + constants)
    expected = nn.functional.leaky_relu(x + constants, 0.25) + 2 * constants
    torch.testing.assert_close(activation(x), expected)
    activation(x).sum().backward()
    assert all(p.grad is not None for p in activation.parameters())
    assert "3" in repr(shift)
    with pytest.raises(ValueError, match=r"`channels` \(=0\)"):
        ChannelShift(0)
