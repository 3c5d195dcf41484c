"""Files whose tensors and values have numbers instead of names: smaller, and the same program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from random_programs import random_program, random_program_2

import xnorpp
from xnorpp.cli.main import main
from xnorpp.runtime import Op, Program, load
from xnorpp.runtime.format.names import with_short_names
from xnorpp.runtime.format.program import encode, read
from xnorpp.runtime.reference import run


@pytest.mark.parametrize("make", [random_program, random_program_2])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_the_same_bits(make, seed: int) -> None:  # type: ignore[no-untyped-def]
    program = make(seed)
    short = read(encode(with_short_names(program)))
    x = np.random.default_rng(seed).standard_normal((2, *program.input_shape)).astype(np.float32)
    np.testing.assert_array_equal(run(short, x), run(program, x))
    np.testing.assert_array_equal(load(short)(x), load(program)(x))
    assert [(op.op, op.name, op.attrs) for op in short.ops] == [
        (op.op, op.name, op.attrs) for op in program.ops
    ]
    assert len(encode(short)) <= len(encode(program))


def test_a_shipped_model_is_smaller_and_answers_the_same(tmp_path: Path) -> None:
    model = xnorpp.load("cifar10-resnet20")
    assert model.save(tmp_path / "short.xnor", short_names=True) <= 90_000
    short = xnorpp.load(tmp_path / "short.xnor")
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(short(images), model(images))
    assert short.labels == model.labels
    assert short.program.meta == model.program.meta
    assert max(len(name) for name in short.program.tensors) == 2
    assert encode(with_short_names(short.program)) == encode(short.program)


def test_scales_and_further_outputs_are_renamed_too() -> None:
    tensors = {
        "fc.weight": np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
        "fc.weight.scale": np.array([0.5, 1, 2], np.float32),
    }
    ops = (
        Op("linear", "fc", ("input",), "sum", tensors={"weight": "fc.weight"}),
        Op("relu", "act", ("sum",), "positive"),
    )
    program = Program(
        (4,), ops, "sum", tensors, output_name="logits", more_outputs={"features": "positive"},
        scales={"fc.weight": "fc.weight.scale"},
    )  # fmt: skip
    short = read(encode(with_short_names(program)))
    assert dict(short.outputs) == {"logits": "0", "features": "1"}
    assert len(short.scales) == 1
    x = np.array([[1, -2, 3, 4]], np.float32)
    for name in ("logits", "features"):
        np.testing.assert_array_equal(load(short)(x)[name], load(program)(x)[name])


def test_the_command_line_numbers_a_packed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(xnorpp.shipped_path("cifar10-resnet20"))
    output = str(tmp_path / "short.xnor")
    assert main(["pack", source, "-o", output, "--short-names"]) == 0
    assert "times smaller than the packed file" in capsys.readouterr().out
    assert read(output).ops[0].tensors == {"weight": "0"}
    assert main(["pack", source, "-o", output]) == 2
    assert "must be 'int8' where CHECKPOINT" in capsys.readouterr().err
