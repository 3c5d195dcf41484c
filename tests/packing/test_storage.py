"""Real numbers in int8: what is rounded, what a reader refuses, and that engines agree on the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from xnorpp.cli.main import main
from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.packing import pack, pack_program, store_int8, verify
from xnorpp.packing.storage import quantise
from xnorpp.runtime import load
from xnorpp.runtime.cpu import available_isas
from xnorpp.runtime.format.program import Op, Program, ProgramError, encode, read, write
from xnorpp.runtime.reference import run

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
        assert program.encodings["fc.weight"].scale == "fc.weight.scale"


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
    exact, small = pack_program(model, 12), pack(model, 12, real="int8").program
    assert set(small.scales) == {"last.weight", *(["second.weight"] if before else [])}
    names = [op.output for op in exact.ops if op.op == "binary_conv2d"]
    dots = [run(program, x, keep=names)[1][names[0]] for program in (exact, small)]
    assert np.array_equal(*dots) != before
    kinds = {str(t.dtype) for name, t in small.tensors.items() if not name.endswith((".scale", "weight"))}
    assert kinds == ({"float16"} if before else {"float32"})
    np.testing.assert_allclose(run(small, x), run(exact, x), atol=0.5 if before else 0.02)
    assert verify(model, x, real="float32").holds
    assert not verify(model, x, real="int8").holds


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
