"""Real numbers in int8: what is rounded, what a reader refuses, and that engines agree on the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from xnorpp.cli.main import main
from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.packing import pack, pack_program, store_int8, verify
from xnorpp.packing.storage import quantise
from xnorpp.packing.storage.whole import centre, mean_input, quantise_fine
from xnorpp.runtime import load
from xnorpp.runtime.cpu import available_isas
from xnorpp.runtime.format.program import Op, Program, ProgramError, encode, read, write
from xnorpp.runtime.reference import run
from xnorpp.runtime.stem import ROLES
from xnorpp.shipped import shipped_path

GEOMETRY = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}


def scaled(**changes: Any) -> Program:
    """A convolution with int8 filters and a linear layer with int16 ones."""
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.integers(-127, 128, (20, 3, 3, 3)).astype(np.int8),
        "w.scale": rng.uniform(0.001, 0.01, 20).astype(np.float16),
        "fc": rng.integers(-9999, 9999, (5, 20)).astype(np.int16),
        "fc.scale": rng.uniform(1e-5, 1e-4, 5).astype(np.float32),
    }
    ops = (
        Op("conv2d", "conv", ("input",), "a", GEOMETRY, {"weight": "w"}),
        Op("global_avg_pool", "mean", ("a",), "b"),
        Op("flatten", "flat", ("b",), "c"),
        Op("linear", "fc", ("c",), "d", {}, {"weight": "fc"}),
    )
    settings: dict[str, Any] = {"tensors": tensors, "scales": {"w": "w.scale", "fc": "fc.scale"}}
    return Program((3, 9, 7), ops, "d", **{**settings, **changes})


def floats(program: Program) -> Program:
    """The same with its numbers multiplied out."""
    tensors = {}
    for op in program.ops:
        for role, name in op.tensors.items():
            tensors[name] = program.real(op, role) if name in program.scales else program.tensors[name]
    return replace(program, tensors=tensors, scales={})


def test_whole_numbers_with_a_scale_are_real_numbers() -> None:
    program = scaled()
    again = read(encode(program))
    assert again.scales == {"w": "w.scale", "fc": "fc.scale"}
    assert encode(again) == encode(program)
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 7)).astype(np.float32)
    wanted = floats(program)
    np.testing.assert_array_equal(run(again, x), run(wanted, x))
    for isa in available_isas():
        np.testing.assert_array_equal(load(again, isa=isa)(x), load(wanted, isa=isa)(x))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scales": {"w": "w.scale"}}, "`weight` is int16"),
        ({"scales": {"w": "nothing", "fc": "fc.scale"}}, "its `scale` 'nothing' is not in the file"),
        ({"scales": {"w": "fc.scale", "fc": "fc.scale"}}, "must be float32 or float16 of shape"),
        ({"scales": {"w": "fc", "fc": "fc.scale"}}, "must be float32 or float16"),
        ({"scales": {"w": "w.scale", "fc": "fc.scale", "x": "w.scale"}}, "is not in the program"),
        ({"version": 1}, "no scale"),
    ],
)
def test_wrong_scales_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason.replace("(", r"\(")):
        scaled(**changes)


def test_a_scale_that_is_not_finite_is_refused() -> None:
    program = scaled()
    for bad in (np.nan, np.inf, 3e38):
        tensors = dict(program.tensors)
        tensors["fc.scale"] = np.full(5, bad, np.float32)
        with pytest.raises(ProgramError, match="`weight` holds NaN or infinite numbers"):
            replace(program, tensors=tensors)


def test_set_1_has_no_scales(tmp_path: Path) -> None:
    blob = encode(scaled())
    length = int.from_bytes(blob[:8], "little")
    text = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["program"])
    assert text["opset"] == 2
    assert text["tensors"]["w"] == {"encoding": "int8", "scale": "w.scale"}
    plain = encode(floats(scaled()))
    assert b'\\"opset\\":1' in plain


def test_rounding_is_near_and_channel_by_channel() -> None:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((6, 40)) * 10.0 ** np.arange(-3, 3)[:, None]).astype(np.float32)
    weight[2] = 0
    whole, scale = quantise(weight)
    assert whole.dtype == np.int8
    assert np.abs(whole).max() <= 127
    back = whole * scale.astype(np.float32)[:, None]
    error = np.sqrt(((back - weight) ** 2).mean(1))
    size = np.sqrt((weight**2).mean(1))
    assert np.all(error <= 0.012 * size)
    np.testing.assert_array_equal(back[2], 0)


def test_tiny_and_huge_weights_have_float32_scales() -> None:
    whole, scale = quantise(np.array([[1e-30, -2e-30], [1e30, 2e30]], np.float32))
    assert scale.dtype == np.float32
    np.testing.assert_allclose(whole * scale[:, None], [[1e-30, -2e-30], [1e30, 2e30]], rtol=0.01)


def test_resnet18_files_in_int8() -> None:
    """ResNet-18 for 1,000 classes: at most 2.0 MB with the paper's block, 2.15 MB with the default one."""
    torch.manual_seed(0)
    for settings, limit in ((PAPER_BLOCK, 2.0e6), ({}, 2.15e6)):
        model = create_model("resnet18", input_size=224, num_classes=1000, **settings).eval()
        program = pack_program(model, 224, real="int8")
        assert len(encode(program)) <= limit
        (last,) = (op for op in program.ops if op.name == "fc")
        assert program.encodings[last.tensors["weight"]].name == "int8"


def test_all_before_the_first_int8_layer_stays_as_it_was() -> None:
    """The first downsampling layer has 16 bits, and what feeds it is the same bit for bit."""
    exact = read(shipped_path("cifar10-resnet18"))
    small = store_int8(exact, short_names=False)
    kinds = {name: str(small.tensors[name].dtype) for name in small.scales}
    layer = "layer{}.0.downsample.conv.weight".format
    assert kinds == {layer(2): "int16", layer(3): "int8", layer(4): "int8", "fc.weight": "int8"}
    assert len(encode(small)) <= 1.65e6
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    value = next(op.inputs[0] for op in exact.ops if op.tensors.get("weight") == layer(2))
    before, after = (run(program, x, keep=[value])[1][value] for program in (exact, small))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("layer", [2, 3, 4])
def test_rounding_keeps_the_answer_at_the_mean_input(layer: int) -> None:
    """A filter's error there is a tenth of nearest rounding's at most; its weights are hardly further off."""
    program = read(shipped_path("tiny-imagenet-resnet18"))
    name = f"layer{layer}.0.downsample.conv.weight"
    weight, mean = program.tensors[name], mean_input(program, name)
    assert mean is not None
    (op,) = (op for op in program.ops if name in op.tensors.values())
    small = store_int8(program, short_names=False)
    stored = small.real(next(other for other in small.ops if other.output == op.output), "weight")
    whole, factor = (quantise_fine if layer == 2 else quantise)(weight)
    nearest = whole * factor.astype(np.float32)[:, None, None, None]
    rows = [(found - weight).astype(np.float64).reshape(len(weight), -1) for found in (nearest, stored)]
    at_mean = [np.sqrt(np.mean((row * mean).sum(axis=1) ** 2)) for row in rows]
    size = [np.sqrt(np.mean(row**2)) for row in rows]
    assert at_mean[1] < at_mean[0] / 10
    assert size[1] < 1.1 * size[0]


def test_centring_of_filters_in_groups() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 2, 3, 3)).astype(np.float32)
    whole, factor = quantise(weight)
    mean = np.repeat(rng.standard_normal((3, 2)), 2, axis=0).repeat(9, axis=1)
    found = centre(whole, factor, weight, mean)
    assert found.dtype == np.int8
    assert np.abs(found.astype(np.int64)).max() <= 127
    errors = [
        np.reshape(numbers * factor.astype(np.float64)[:, None, None, None] - weight, (6, -1))
        for numbers in (whole, found)
    ]
    before, after = (np.abs((error * mean).sum(axis=1)) for error in errors)
    assert np.all(after <= before)
    assert after.mean() < before.mean() / 5
    np.testing.assert_array_equal(centre(whole, factor, weight, 0 * mean), whole)


def test_filters_for_bytes_stay_as_they_were() -> None:
    exact = read(shipped_path("tiny-imagenet-resnet18-224"))
    small = store_int8(exact, short_names=False)
    assert small.tensors["conv1.weight"].dtype == np.int8
    for role in ROLES:
        name = exact.ops[0].tensors[role]
        np.testing.assert_array_equal(exact.tensors[name], small.tensors[small.ops[0].tensors[role]])


class Net(nn.Module):
    """A real layer of 4,608 weights before a sign, or none."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        from xnorpp.nn import BinaryConv2d

        self.first = nn.Conv2d(3, 32, 4 if before else 3)
        self.second = nn.Conv2d(32, 32, 3) if before else nn.Identity()
        self.binary = BinaryConv2d(32, 48, 3)
        self.last = nn.Linear(48, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.binary(self.second(self.first(x))).mean((2, 3)))
        return result


@pytest.mark.parametrize("before", [False, True])
def test_only_what_a_rounded_layer_decides_is_stored_smaller(before: bool) -> None:
    torch.manual_seed(1)
    model = Net(before).eval()
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)
    exact = pack_program(model, 12)
    small = store_int8(exact, short_names=False)
    assert set(small.scales) == {"last.weight", *(["second.weight"] if before else [])}
    names = [op.output for op in exact.ops if op.op == "binary_conv2d"]
    dots = [run(program, x, keep=names)[1][names[0]] for program in (exact, small)]
    assert np.array_equal(*dots) != before
    for name, tensor in small.tensors.items():
        if not name.endswith((".scale", "weight")):
            smaller = before and not name.startswith("first")
            assert tensor.dtype == (np.float16 if smaller else np.float32), name
    np.testing.assert_allclose(run(small, x), run(exact, x), atol=0.5 if before else 0.02)
    assert verify(model, x, real="float32").holds
    assert not verify(model, x, real="int8").holds


def test_numbers_instead_of_names_of_tensors() -> None:
    """Operations keep the names of their modules, and everything else is the same."""
    torch.manual_seed(1)
    named = store_int8(pack_program(Net(True).eval(), 12), short_names=False)
    short = pack(Net(True).eval(), 12, real="int8").program
    assert "last.weight" in named.tensors
    assert all(len(name) < 3 for name in short.tensors)
    assert [op.name for op in short.ops] == [op.name for op in named.ops]
    assert len(encode(short)) < len(encode(named))


def test_small_numbers_beside_large_ones_do_not_make_a_bias_float32() -> None:
    from xnorpp.packing.storage.whole import halved

    bias = np.array([1.0, -0.5, 1e-6], np.float32)
    assert halved(bias, {"bias"}).dtype == np.float16
    assert halved(bias, {"mult"}).dtype == np.float32, "a factor's own size matters"
    assert halved(bias, {"bias", "mult"}).dtype == np.float32
    assert halved(np.array([1e-5, 1e-6], np.float32), {"bias"}).dtype == np.float32
    assert halved(np.array([1e5, 1.0], np.float32), {"bias"}).dtype == np.float32, "beyond float16"


def test_real_is_checked() -> None:
    model = Net(False)
    with pytest.raises(ValueError, match=r"`real` \(='int4'\) must be one of float32, float16, int8"):
        pack(model, 12, real="int4")
    with pytest.raises(ValueError, match="leave one out"):
        pack(model, 12, real="int8", half=True)
    assert encode(pack_program(model, 12, real="float16")) == encode(pack_program(model, 12, half=True))


def test_the_command_rounds_a_packed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(2)
    program = pack_program(Net(True).eval(), 12)
    write(program, tmp_path / "net.xnor")
    out = tmp_path / "small.xnor"
    assert main(["pack", str(tmp_path / "net.xnor"), "-o", str(out), "--real", "int8"]) == 0
    assert "times smaller than the packed file" in capsys.readouterr().out
    assert out.read_bytes() == encode(store_int8(program))
    assert encode(store_int8(store_int8(program))) == encode(store_int8(program))
    assert main(["pack", str(tmp_path / "net.xnor"), "-o", str(out)]) == 2
    assert "must be 'int8' where CHECKPOINT" in capsys.readouterr().err


def network_of_blocks() -> tuple[nn.Module, np.ndarray]:
    """A network with a real 1x1 before binary layers, and images it is unsure of."""
    from xnorpp.nn import BinaryConv2d

    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.PReLU(64), nn.Conv2d(64, 96, 1),
        BinaryConv2d(96, 64, 3, padding=1), nn.BatchNorm2d(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 100),
    )  # fmt: skip
    x = torch.randn(96, 3, 10, 10)
    with torch.no_grad():
        model.train()(x)
    return model.eval(), x.numpy()


def test_calibration_rounds_what_leaves_the_answers_as_they_are() -> None:
    model, x = network_of_blocks()
    exact = pack_program(model, 10)
    strict = pack_program(model, 10, real="int8", calibration=x, tolerance=0.0)
    found = strict.meta["int8"]
    assert found["same_answers"] == found["same_answers_mixed"] == 1.0
    assert found["images"] == 96
    free = pack_program(model, 10, real="int8", calibration=x, tolerance=1.0)
    assert free.meta["int8"]["layers"] == {"8": "int8", "3": "int8, input int8"}
    assert [op.op for op in free.ops].count("int_conv2d") == 1
    assert len(encode(free)) < len(encode(exact))
    assert len(encode(free)) <= len(encode(strict))
    for isa in available_isas():
        np.testing.assert_allclose(load(free, isa=isa)(x), run(free, x), rtol=1e-4, atol=1e-4)


def test_few_steps_are_spread_over_what_most_inputs_need() -> None:
    """One input is far larger than all others: the 8 bits are for the others, and it is cut off."""
    from xnorpp.packing.storage.calibrated import Observed, _reach

    columns = np.random.default_rng(1).standard_normal((32, 2048))
    assert _reach(Observed(columns, float(np.abs(columns).max())), 127) > 0.7 * np.abs(columns).max()
    columns[3, 5] = 12.0
    assert 0.3 * 12 <= _reach(Observed(columns, 12.0), 127) < 0.8 * 12


def test_inputs_are_rounded_to_16_bits_where_8_change_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from xnorpp.packing.storage import calibrated

    model, x = network_of_blocks()
    answers = calibrated._answers

    def strict(program: Any, images: np.ndarray) -> np.ndarray:
        found = answers(program, images)
        return 1 - found if any(op.attrs.get("limit") == 127 for op in program.ops) else found

    monkeypatch.setattr(calibrated, "_answers", strict)
    stored = pack_program(model, 10, real="int8", calibration=x, tolerance=0.9)
    assert stored.meta["int8"]["layers"]["3"] == "int8, input rounded"
    assert [op.attrs["limit"] for op in stored.ops if op.op == "int_conv2d"] == [32767]


def test_rounding_with_images_is_nearer_on_them() -> None:
    from xnorpp.packing.storage.calibrated import make_up

    rng = np.random.default_rng(0)
    columns = rng.standard_normal((48, 12)) @ rng.standard_normal((12, 4000))
    columns += 0.05 * rng.standard_normal(columns.shape)
    weight = rng.standard_normal((32, 48)).astype(np.float32)
    plain, factor = quantise(weight)
    made = make_up(weight, factor.astype(np.float64), columns)
    off = [np.sqrt(np.mean(((w * factor[:, None] - weight) @ columns) ** 2)) for w in (plain, made)]
    assert off[1] < 0.5 * off[0]
    assert np.abs(made).max() <= 127


def test_calibration_with_classes_reports_the_accuracy() -> None:
    model, x = network_of_blocks()
    labels = pack(model, 10)(x).argmax(1)
    stored = store_int8(pack_program(model, 10), (x, labels), tolerance=1.0)
    before, after = stored.meta["int8"]["accuracy"]
    assert before == 100.0
    assert 0 < after <= 100
    assert read(encode(stored)).meta["int8"]["accuracy"] == [before, after]


def test_wrong_calibration_is_refused() -> None:
    model, x = network_of_blocks()
    program = pack_program(model, 10)
    for given, reason in (
        (x[:0], "has no images"),
        (x[:, :2], "has shape"),
        ((x, np.zeros(3, np.int64)), "classes of shape"),
    ):
        with pytest.raises(ValueError, match=reason):
            store_int8(program, given)
    with pytest.raises(ValueError, match=r"`tolerance` \(=2\)"):
        store_int8(program, x, tolerance=2)
    with pytest.raises(ValueError, match="`calibration` is for"):
        pack(model, 10, calibration=x)


class TwoInputs(nn.Module):
    """An image and a table of words or numbers."""

    def __init__(self, words: int = 0) -> None:
        super().__init__()
        from xnorpp.nn import BinaryConv2d

        self.image = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Conv2d(64, 96, 1))
        self.table = nn.Embedding(words, 96) if words else nn.Linear(7, 96)
        self.binary = nn.Sequential(BinaryConv2d(96, 64, 3, padding=1), nn.BatchNorm2d(64))
        self.last = nn.Linear(64, 100)

    def forward(self, image: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        seen = self.table(table)
        seen = seen.mean(1) if seen.ndim == 3 else seen
        found: torch.Tensor = self.last(self.binary(self.image(image) + seen[:, :, None, None]).mean((2, 3)))
        return found


@pytest.mark.parametrize("words", [0, 40], ids=["numbers", "words"])
def test_calibration_takes_several_inputs(words: int) -> None:
    torch.manual_seed(1)
    model = TwoInputs(words)
    image = torch.randn(70, 3, 9, 9)
    table = torch.randint(0, words, (70, 5)) if words else torch.randn(70, 7)
    with torch.no_grad():
        model.train()(image, table)
    example = (image[:4], table[:4])
    exact = pack(model.eval(), example=example)
    labels = exact(image.numpy(), table.numpy()).argmax(1)
    for given in ((image, table), [image, table], ((image, table), labels)):
        stored = pack(model, example=example, real="int8", calibration=given, tolerance=1.0)
        found = stored.program.meta["int8"]
        assert "int8" in found["layers"]["last"]
        assert found["images"] == 70
        assert ("same_answers_mixed" in found) == (not words), "the mean of two words is no word"
        assert found["same_answers"] == np.mean(stored(image.numpy(), table.numpy()).argmax(1) == labels)
        assert len(encode(stored.program)) < len(encode(exact.program))
    assert found["accuracy"][0] == 100.0
    for given, reason in (
        (image, "must be a tuple of the 2 inputs that the model takes"),
        ((image, table, labels), "must be a tuple of the 2 inputs"),
        ((image, table[:3]), "input 1 has shape"),
    ):
        with pytest.raises(ValueError, match=reason):
            pack(model, example=example, real="int8", calibration=given)


def test_the_command_calibrates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(6):
                Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).save(folder / f"{i}.png")
    model, _ = network_of_blocks()
    model[8] = nn.Linear(64, 2)
    preprocess = {"channels": 3, "crop": 10, "resize": 12, "mean": [0.5] * 3, "std": [0.3] * 3}
    source, out = tmp_path / "net.xnor", tmp_path / "small.xnor"
    write(pack_program(model, 10, preprocess=preprocess, labels=["dog", "cat"]), source)
    command = ["pack", str(source), "-o", str(out), "--real", "int8"]
    assert main([*command, "--calibration", str(tmp_path / "images")]) == 2
    assert "does not record its data set; `--dataset NAME` is needed" in capsys.readouterr().err
    options = ["--calibration", str(tmp_path / "images"), "--dataset", "folder", "--tolerance", "1"]
    assert main([*command, *options]) == 0
    printed = capsys.readouterr().out
    assert "12 calibration images" in printed
    assert "int8, input int8" in printed
    assert read(out).meta["int8"]["images"] == 12
    assert main([*command, "--tolerance", "1"]) == 2
    assert "is for --calibration DIR" in capsys.readouterr().err
    assert main(["pack", str(source), "-o", str(out), *options]) == 2
    assert "`calibration` is for `real='int8'`" in capsys.readouterr().err
