"""Generated C on emulated chips (`make test-deploy`): the answers of the reference, and what it needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulators import CHIPS, run_on
from generated import answers, build

from xnorpp.export import export_c
from xnorpp.runtime import load
from xnorpp.runtime.format.program import Program, read
from xnorpp.shipped import shipped_path


def images(count: int) -> np.ndarray:
    """Smooth noise, which a network is less sure about than about photographs."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8).repeat(4, axis=1).repeat(4, axis=2)


@pytest.fixture(scope="module")
def program() -> Program:
    return read(shipped_path("cifar10-resnet20"))


@pytest.mark.parametrize("chip", ["cortex-m4", "rv32imafc"])
def test_a_chip_that_fuses_equals_the_engine_bit_for_bit(chip: str, program: Program, tmp_path: Path) -> None:
    made = export_c(program, "resnet20")
    found = run_on(made, CHIPS[chip], images(4), 10, tmp_path)
    assert np.array_equal(found.outputs, load(program, threads=1)(images(4)))
    assert found.flash <= 100_000
    assert found.static + found.stack <= 105_000


@pytest.mark.parametrize("chip", ["cortex-m3", "rv32imac"])
def test_a_chip_without_float_rounds_twice_and_equals_this_machine(
    chip: str, program: Program, tmp_path: Path
) -> None:
    made = export_c(program, "resnet20")
    found = run_on(made, CHIPS[chip], images(3), 10, tmp_path)
    (here,) = answers(build(made, program, tmp_path, ("-O2",)), made, program, images(3))
    assert np.array_equal(found.outputs, here)
    assert np.array_equal(found.outputs.argmax(1), load(program, threads=1)(images(3)).argmax(1))


@pytest.mark.parametrize("chip", ["cortex-m4", "cortex-m3", "rv32imac"])
def test_fixed_point_is_the_same_on_every_chip(chip: str, program: Program, tmp_path: Path) -> None:
    made = export_c(program, "resnet20", fixed=24)
    found = run_on(made, CHIPS[chip], images(3), 10, tmp_path)
    (here,) = answers(build(made, program, tmp_path, ("-O2",)), made, program, images(3))
    assert np.array_equal(found.outputs, here)
    assert found.flash <= 100_000
    assert found.static + found.stack <= 64_000


def test_the_digits_network_fits_into_a_cortex_m0(tmp_path: Path) -> None:
    """In fixed point, with all test images: memory with the stack, and accuracy within half a point."""
    from xnorpp import train
    from xnorpp.data import load_dataset
    from xnorpp.training.packing import pack_checkpoint

    train("digits-small-case4", out=tmp_path / "run")
    pack_checkpoint(tmp_path / "run", tmp_path / "digits.xnor")
    program = read(tmp_path / "digits.xnor")
    data = load_dataset("digits", split="test")
    made = export_c(program, "digits", fixed=24)
    found = run_on(made, CHIPS["cortex-m0"], data.images, 10, tmp_path)
    assert found.static + found.stack <= 10_000
    exact = load(program, threads=1)(data.images).argmax(1)
    accuracy = [float((answer == data.labels).mean()) for answer in (found.outputs.argmax(1), exact)]
    assert abs(accuracy[0] - accuracy[1]) <= 0.005, accuracy
