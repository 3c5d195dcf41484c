"""Starting weights and teachers: our twin's, torchvision's, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from xnorpp.models import create_model
from xnorpp.nn import binary_layers
from xnorpp.packing import pack_to_file
from xnorpp.training import (
    CheckpointError,
    initialise,
    load_checkpoint,
    load_model,
    load_recipe,
    save_checkpoint,
    train,
)
from xnorpp.training.state.initial import (
    is_checkpoint,
    is_torchvision_resnet,
    read_state_dict,
    translate_torchvision,
)
from xnorpp.training.teacher import TorchvisionResNet, distillation_loss, load_teacher, training_loss


def _torchvision_state(classes: int = 10, bottleneck: bool = False) -> dict[str, Tensor]:
    """A state_dict with the names and shapes of torchvision's resnet18 (or a bottleneck net), one block a
    stage less.
    """
    torch.manual_seed(0)
    state: dict[str, Tensor] = {}

    def conv(name: str, out: int, into: int, kernel: int) -> None:
        state[f"{name}.weight"] = torch.randn(out, into, kernel, kernel) / (into * kernel * kernel) ** 0.5

    def norm(name: str, channels: int) -> None:
        state[f"{name}.weight"] = torch.rand(channels) + 0.5
        state[f"{name}.bias"] = torch.randn(channels)
        state[f"{name}.running_mean"] = torch.randn(channels)
        state[f"{name}.running_var"] = torch.rand(channels) + 0.5
        state[f"{name}.num_batches_tracked"] = torch.tensor(3)

    conv("conv1", 64, 3, 7)
    norm("bn1", 64)
    width = 64
    for stage in range(4):
        for block in range(2):
            name, middle = f"layer{stage + 1}.{block}", 64 * 2**stage
            out = middle * 4 if bottleneck else middle
            shapes = [(middle, width, 1), (middle, middle, 3), (out, middle, 1)] if bottleneck else [
                (middle, width, 3), (middle, middle, 3)]  # fmt: skip
            for index, (outputs, inputs, kernel) in enumerate(shapes, 1):
                conv(f"{name}.conv{index}", outputs, inputs, kernel)
                norm(f"{name}.bn{index}", outputs)
            if width != out:
                conv(f"{name}.downsample.0", out, width, 1)
                norm(f"{name}.downsample.1", out)
            width = out
    state["fc.weight"], state["fc.bias"] = torch.randn(classes, width) / width**0.5, torch.zeros(classes)
    return state


def test_torchvisions_names_become_ours() -> None:
    state = _torchvision_state()
    model = create_model("resnet18", method="xnor++", input_size=64, num_classes=10, downsample="real")
    path_names = set(model.state_dict())
    ours = translate_torchvision(state)
    homeless = {name for name in ours if name.startswith("torchvision.")}
    assert {name.rsplit(".", 1)[0] for name in homeless} == {
        f"torchvision.layer{stage}.{block}.bn2" for stage in range(1, 5) for block in range(2)
    }
    assert set(ours) - homeless <= path_names


def test_starting_from_torchvision_copies_weights_and_restarts_the_scales(tmp_path: Path) -> None:
    state = _torchvision_state(classes=1000)
    torch.save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "tv.pth"
    )
    model = create_model("resnet18", method="xnor++", input_size=224, num_classes=10, downsample="real")
    report = initialise(model, tmp_path / "tv.pth")
    own: Any = model
    assert torch.equal(own.conv1.weight, state["conv1.weight"])
    assert torch.equal(own.layer3[1].conv2.weight, state["layer3.1.conv2.weight"])
    assert torch.equal(own.layer3[1].bn2.running_mean, state["layer3.1.bn1.running_mean"])
    assert torch.equal(own.layer2[0].downsample.conv.weight, state["layer2.0.downsample.0.weight"])
    alpha = own.layer3[1].conv2.scale.factors()[0].flatten()
    assert torch.allclose(alpha, 0.8 * state["layer3.1.conv2.weight"].abs().mean((1, 2, 3)))
    assert {"fc.weight", "fc.bias"} <= set(report.left)
    assert {"fc.weight", "torchvision.layer1.0.bn2.weight"} <= set(report.unused)
    assert report.to_dict()["source"].endswith("tv.pth")


def test_starting_from_the_real_twin_and_from_a_run(tmp_path: Path) -> None:
    twin = create_model("small", method="real", input_size=8, num_classes=10, in_channels=1, width=4)
    path = save_checkpoint(tmp_path / "twin.safetensors", twin.state_dict(), {"model": twin.config})
    binary = create_model("small", input_size=8, num_classes=10, in_channels=1, width=4)
    report = initialise(binary, path)
    own, theirs = binary.state_dict(), twin.state_dict()
    assert torch.equal(own["blocks.1.conv2.weight"], theirs["blocks.1.conv2.weight"])
    assert "fc.weight" in report.loaded
    for _, layer in binary_layers(binary):
        expected = 0.8 * layer.weight.abs().mean((1, 2, 3))
        assert torch.allclose(layer.scale_factors()[0].flatten(), expected)
    trained = create_model("small", input_size=8, num_classes=10, in_channels=1, width=4)
    with torch.no_grad():
        next(binary_layers(trained))[1].scale_factors()[0].fill_(7.0)
    again = save_checkpoint(tmp_path / "again.safetensors", trained.state_dict(), {"model": trained.config})
    report = initialise(binary, again)
    assert not report.left
    assert next(binary_layers(binary))[1].scale_factors()[0].eq(7.0).all()


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    model = create_model("small", input_size=8, num_classes=10, in_channels=1, width=4)
    with pytest.raises(CheckpointError, match="There is no file"):
        initialise(model, tmp_path / "none.pth")
    safetensors.torch.save_file({"foo.weight": torch.ones(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"has no weight that fits the network: it has foo.weight"):
        initialise(model, tmp_path / "other.safetensors")
    torch.save({"a": [1, 2]}, tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match="holds no state_dict"):
        read_state_dict(tmp_path / "list.pth")
    for junk in (b"", b"hi\n", b"<html>", bytes(range(256))):
        (tmp_path / "junk.pth").write_bytes(junk)
        with pytest.raises(CheckpointError, match=r"junk.pth is not a state_dict"):
            read_state_dict(tmp_path / "junk.pth")
    torch.save(model, tmp_path / "whole.pth")
    with pytest.raises(CheckpointError, match="can be read without running code"):
        read_state_dict(tmp_path / "whole.pth")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    assert not is_checkpoint(tmp_path / "bad.safetensors")
    assert not is_checkpoint(tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match="not a state_dict"):
        read_state_dict(tmp_path / "bad.safetensors")


def test_a_packed_model_is_no_checkpoint(tmp_path: Path) -> None:
    """Whatever its name is, and in one sentence of our own."""
    model = create_model("small", input_size=8, num_classes=10, in_channels=1, width=4)
    for name in ("model.xnor", "model.safetensors", "model.pth"):
        path = tmp_path / name
        pack_to_file(model, 8, path)
        for reader in (
            load_model,
            lambda path: initialise(model, path),
            lambda path: load_teacher(path, 10, torch.device("cpu")),
        ):
            with pytest.raises(CheckpointError, match=f"{name} is a packed model; a checkpoint is needed.$"):
                reader(path)  # type: ignore[operator]
    torch.save(model, tmp_path / "whole.pth")
    with pytest.raises(CheckpointError, match=r"not a state_dict") as found:
        read_state_dict(tmp_path / "whole.pth")
    assert "weights_only" not in str(found.value)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_a_torchvision_teacher_is_rebuilt_from_its_names(tmp_path: Path, bottleneck: bool) -> None:
    state = _torchvision_state(bottleneck=bottleneck)
    assert is_torchvision_resnet(state)
    torch.save(state, tmp_path / "teacher.pt")
    teacher, _ = load_teacher(tmp_path / "teacher.pt", 10, torch.device("cpu"))
    assert isinstance(teacher, TorchvisionResNet)
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    x = torch.randn(1, 3, 32, 32)
    assert teacher(x).shape == (1, 10)
    if not bottleneck:
        assert torch.allclose(teacher(x), _plain_resnet(state, x), atol=1e-4)
    with pytest.raises(ValueError, match="knows 10 classes and the data set has 7"):
        load_teacher(tmp_path / "teacher.pt", 7, torch.device("cpu"))
    with pytest.raises(ValueError, match="takes images of 3 channels and the data set's have 1"):
        load_teacher(tmp_path / "teacher.pt", 10, torch.device("cpu"), in_channels=1)


def _plain_resnet(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """He et al.'s network written out with functions."""

    def norm(name: str, x: Tensor) -> Tensor:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return functional.batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"])

    x = functional.relu(norm("bn1", functional.conv2d(x, state["conv1.weight"], stride=2, padding=3)))
    x = functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = functional.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = functional.conv2d(
                functional.relu(norm(f"{name}.bn1", y)), state[f"{name}.conv2.weight"], padding=1
            )
            if stride == 2:
                x = norm(
                    f"{name}.downsample.1",
                    functional.conv2d(x, state[f"{name}.downsample.0.weight"], stride=2),
                )
            x = functional.relu(norm(f"{name}.bn2", y) + x)
    return functional.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def test_a_file_of_another_kind_is_no_teacher(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "x.pt")
    with pytest.raises(
        ValueError, match=r"`loss.teacher` .* must be an xnorpp checkpoint or a state_dict of"
    ):
        load_teacher(tmp_path / "x.pt", 10, torch.device("cpu"))


def test_the_distillation_loss_is_the_stated_formula() -> None:
    torch.manual_seed(0)
    student, teacher, labels = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    p, q = (teacher / 3).softmax(1), (student / 3).softmax(1)
    expected = 9 * (p * (p / q).log()).sum(1).mean()
    assert torch.allclose(distillation_loss(student, teacher, 3.0), expected, atol=1e-6)
    assert distillation_loss(teacher, teacher, 2.0).abs() < 1e-6
    mixed = training_loss(student, labels, teacher_logits=teacher, distill_weight=0.25, temperature=3.0)
    hard = functional.cross_entropy(student, labels)
    assert torch.allclose(mixed, 0.75 * hard + 0.25 * expected, atol=1e-6)
    assert torch.equal(training_loss(student, labels), hard)


def test_training_from_a_twin_with_the_twin_as_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["model.options.width=4", "schedule.max_steps=3", "run.tensorboard=false"]
    held = ["data.holdout=0.25", "data.evaluate=test"]
    real = load_recipe("digits-small-real", [*settings, *held])
    train(real, out=tmp_path / "real", device="cpu", quiet=True)
    recipe = load_recipe("digits-small-case4", [*settings, f"loss.teacher={tmp_path / 'real'}"])
    summary = train(recipe, out=tmp_path / "binary", init_from=tmp_path / "real", device="cpu", quiet=True)
    facts = summary["teacher"]
    assert (facts["recipe"], facts["dataset"], facts["holdout"]) == ("digits-small-real", "digits", 0.25)
    assert "teacher" not in load_checkpoint(tmp_path / "real").meta
    assert "conv1.weight" in summary["init_from"]["loaded"]
    assert summary["init_from"]["differs"] == ""
    assert summary["step"] == 3
    other = load_recipe("digits-small-case4", [*settings, "model.options.shortcut=block"])
    summary = train(other, out=tmp_path / "block", init_from=tmp_path / "real", device="cpu")
    assert (
        "trained with shortcut='conv'; this network has shortcut='block'" in summary["init_from"]["differs"]
    )
    assert summary["init_from"]["differs"] in capsys.readouterr().out
    weight = load_checkpoint(tmp_path / "real").weights["conv1.weight"]
    plain = nn.Module()
    plain.conv1 = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], bias=False)
    assert initialise(plain, tmp_path / "real").differs == "", "a network of one's own has no such option"
    assert torch.equal(plain.conv1.weight, weight)
