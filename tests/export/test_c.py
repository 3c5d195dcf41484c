"""Generated C on this machine: strict compilers, sanitizers, and the answers of the reference."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import SANITIZED, answers, build
from random_programs import Builder, random_program

from xnorpp.export import ExportError, Generated, export_c
from xnorpp.runtime import load
from xnorpp.runtime.format.bits import pack_conv_weight
from xnorpp.runtime.format.program import INPUT, Program, read
from xnorpp.runtime.reference import run
from xnorpp.shipped import shipped_path

compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="NO C COMPILER: generated C is not tested")


def close(ours: Any, expected: Any) -> bool:
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=1.0))
    return bool(np.allclose(ours, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))


@compiler
@pytest.mark.parametrize(("seed", "from_bytes", "fixed"), [(3, True, None), (5, False, None), (5, True, 24)])
def test_random_programs_agree_with_the_reference(
    seed: int, from_bytes: bool, fixed: int | None, tmp_path: Path
) -> None:
    """A few here; `benchmarks/generated_c.py` has 200."""
    program = random_program(seed)
    rng = np.random.default_rng(seed)
    c, h, w = program.input_shape
    x: Any = rng.integers(0, 256, (2, h, w, c), dtype=np.uint8)
    if not from_bytes:
        x = rng.standard_normal((2, c, h, w)).astype(np.float32)
    made = export_c(program, from_bytes=from_bytes, fixed=fixed)
    (ours,) = answers(build(made, program, tmp_path, SANITIZED), made, program, x)
    if fixed is not None:
        ours = ours / 2.0 ** shift(made)
    with np.errstate(all="ignore"):
        assert close(ours, run(program, x))


def shift(made: Generated) -> int:
    found = re.search(r"_OUTPUT_SHIFT (-?\d+)", made.header)
    assert found is not None
    return int(found[1])


def has_fma() -> bool:
    try:
        return " fma " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@compiler
@pytest.mark.skipif(not has_fma(), reason="THIS CPU HAS NO FUSED MULTIPLY-ADD: equality is not tested")
def test_the_shipped_network_equals_the_engine_bit_for_bit(tmp_path: Path) -> None:
    program = read(shipped_path("cifar10-resnet20"))
    made = export_c(program, "resnet20")
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    images[1] = images[1] // 64 * 80
    images[2:] = images[2:, :1, :1]
    (ours,) = answers(build(made, program, tmp_path, ("-O2", "-mfma")), made, program, images)
    assert np.array_equal(ours, load(program, threads=1)(images))


def network(classes: int = 3) -> Program:
    """Two outputs, one of them dense, and labels that are awkward in C."""
    rng = np.random.default_rng(1)
    b = Builder((5, 4, 6))
    bits = b.emit("sign", INPUT)
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    weight = pack_conv_weight(rng.standard_normal((classes, 5, 3, 3)))
    dense = b.emit("affine", b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": weight}))
    mean = b.emit("flatten", b.emit("global_avg_pool", dense))
    labels = ('a "quoted" \\ one', "ö*/", "??/")
    return b.program(mean, more_outputs={"map": dense}, output_name="class scores", labels=labels)


@compiler
def test_several_outputs_and_awkward_labels(tmp_path: Path) -> None:
    program = network()
    made = export_c(program, "two", from_bytes=False)
    x = np.random.default_rng(2).standard_normal((3, 5, 4, 6)).astype(np.float32)
    expected = run(program, x)
    ours = answers(build(made, program, tmp_path, SANITIZED), made, program, x)
    assert np.array_equal(ours[1], expected["map"])
    assert close(ours[0], expected["class scores"])
    assert "two_classify" not in made.header


@compiler
@pytest.mark.parametrize("fixed", [None, 24])
def test_operands_that_are_spread(fixed: int | None, tmp_path: Path) -> None:
    """Sums, differences, products and quotients with one number for each channel, pixel or image."""
    b = Builder((5, 4, 6))
    rng = np.random.default_rng(3)
    x = b.emit("affine", INPUT, tensors={"add": rng.standard_normal(5).astype(np.float32)})
    channel = b.emit(
        "offset", b.emit("global_avg_pool", INPUT), tensors={"value": np.full((1, 1, 1), 3, "f4")}
    )
    pixel = b.emit("abs_mean", INPUT)
    one = b.emit("abs_mean", channel)
    broadcast = {"broadcast": True}
    for op, other, attrs in (
        *(("add", channel, broadcast), ("mul", one, broadcast), ("sub", pixel, {}), ("div", channel, {})),
        *(("add", INPUT, {}), ("sub", one, {}), ("mul", pixel, {})),
    ):
        x = b.emit(op, x, other, attrs=attrs)
    for shape in ((5, 1, 1), (1, 4, 6), (5, 4, 6)):
        x = b.emit("offset", x, tensors={"value": rng.standard_normal(shape).astype(np.float32)})
    program = b.program(x)
    images = rng.integers(0, 256, (3, 4, 6, 5), dtype=np.uint8)
    made = export_c(program, fixed=fixed)
    (ours,) = answers(build(made, program, tmp_path, SANITIZED), made, program, images)
    expected = run(program, images)
    if fixed is None:
        assert close(ours, expected)
    else:
        assert np.abs(ours / 2.0 ** shift(made) - expected).max() < 1e-3 * np.abs(expected).max()


def test_generated_code_needs_no_library_and_no_memory() -> None:
    made = export_c(read(shipped_path("cifar10-resnet20")), "resnet20")
    assert set(re.findall(r"#include (\S+)", made.source + made.header)) == {
        '"resnet20.h"', "<stddef.h>", "<string.h>", "<stdint.h>",
    }  # fmt: skip
    assert not re.search(r"\b(?:malloc|calloc|alloca|printf)\b", made.source)
    assert made.arena_bytes < 72_000
    assert made.constant_bytes < 90_000
    assert f"#define RESNET20_ARENA_BYTES {made.arena_bytes} " in made.header


@compiler
def test_fixed_point_has_no_float_and_gives_the_same_classes(tmp_path: Path) -> None:
    program = read(shipped_path("cifar10-resnet20"))
    made = export_c(program, "resnet20", fixed=24)
    code = re.sub(r"/\*.*?\*/", "", made.source + made.header, flags=re.S)
    assert not re.search(r"\b(?:float|double)\b|[0-9]\.[0-9]", code)
    assert made.arena_bytes < 64_000
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 4, 4, 3), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    (ours,) = answers(build(made, program, tmp_path, ("-O2",)), made, program, images)
    expected = load(program, threads=1)(images)
    assert np.array_equal(ours.argmax(1), expected.argmax(1))
    assert np.abs(ours / 2.0 ** shift(made) - expected).mean() < 0.1 * np.abs(expected).max()


def test_examples_are_for_fixed_point_and_bits_are_16_or_24() -> None:
    with pytest.raises(ExportError, match="`fixed` is None"):
        export_c(network(), examples=np.zeros((1, 5, 4, 6), np.float32))
    with pytest.raises(ExportError, match=r"`fixed` \(=8\) must be 16 or 24 bits"):
        export_c(network(), fixed=8)


def test_every_layer_has_its_comment() -> None:
    program = read(shipped_path("cifar10-resnet20"))
    made = export_c(program, "resnet20")
    body = made.source.split("static void infer(")[1]
    calls = re.findall(r"/\* (.+) \*/\n    run_\w+\(&(\w+)\);", body)
    assert len(calls) == len(re.findall(r"\brun_\w+\(&", body)) == len(program.native.steps())
    assert any(text.startswith("layer1.0.conv1: binary convolution 3x3") for text, _ in calls)


def test_a_name_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(ExportError, match=r"`name` \(='my net'\) must be a C identifier"):
        export_c(network(), "my net")
