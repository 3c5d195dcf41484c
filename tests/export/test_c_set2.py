"""Generated C of operation set 2: curves, layers that move numbers, concatenations, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import SANITIZED, answers, build
from random_programs import Builder

from xnorpp.export import ExportError, export_c
from xnorpp.export.c.fixed import SMOOTH
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.reference import run
from xnorpp.runtime.reference.curves import CURVES

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="NO C COMPILER: generated C is not tested"
)
MOVERS: list[tuple[str, dict[str, Any]]] = [
    ("permute", {"axes": [2, 0, 1]}),
    ("reshape", {"shape": [4, 3, 16]}),
    ("slice", {"start": [1, 0, 1], "stop": [None, -1, None], "step": [2, 1, 3]}),
    ("flip", {"axis": 2}),
    ("channel_shuffle", {"groups": 2}),
    ("pixel_shuffle", {"factor": 2}),
    ("pixel_unshuffle", {"factor": 2}),
    ("edge_pad2d", {"padding": [1, 2, 0, 1], "mode": "reflect"}),
    ("upsample2d", {"size": [5, 7], "scale": None, "mode": "nearest", "align_corners": False}),
]


def differences(program: Program, tmp_path: Path, fixed: int | None) -> list[float]:
    """Of each output, relative to its largest number, under the sanitizers."""
    x = np.random.default_rng(1).uniform(-2, 2, (3, *program.input_shape)).astype(np.float32)
    made = export_c(program, from_bytes=False, fixed=fixed)
    given: Any = x
    if fixed is not None:
        found = re.search(r"_INPUT_SHIFT (-?\d+)", made.header)
        assert found
        given = np.rint(x * 2.0 ** int(found[1])).astype(np.int16)
        x = (given / 2.0 ** int(found[1])).astype(np.float32)
    ours = answers(build(made, program, tmp_path, (*SANITIZED, "-mfma")), made, program, given)
    wanted = run(program, x)
    result = []
    for (name, expected), found_here in zip(wanted.items(), ours, strict=True):
        scaled: Any = found_here
        if fixed is not None:
            shift = re.search(rf"_{name.upper()}_SHIFT (-?\d+)", made.header)
            assert shift
            scaled = found_here / 2.0 ** int(shift[1])
        result.append(float(np.abs(scaled - expected).max() / np.abs(expected).max()))
    return result


def several(b: Builder, outputs: dict[str, str]) -> Program:
    (name, first), *rest = outputs.items()
    return b.program(first, output_name=name, more_outputs=dict(rest))


def curved(names: list[str]) -> Program:
    b = Builder((6, 4, 4))
    outputs = {}
    for name in names:
        x = INPUT
        if name in ("log", "sqrt", "reciprocal"):
            x = b.emit("exp", x)
        outputs[name] = b.emit(name, x, attrs={"alpha": 0.7} if name == "elu" else {})
    return several(b, outputs)


def moved() -> Program:
    b = Builder((12, 4, 4))
    outputs = {f"{name}_out": b.emit(name, INPUT, attrs=attrs) for name, attrs in MOVERS}
    narrow = b.emit("slice", INPUT, attrs={"start": [0, 0, 0], "stop": [5, None, None], "step": [1, 1, 1]})
    for axis, other in ((0, narrow), (1, INPUT), (2, INPUT)):
        more = b.emit("hardtanh", other, attrs={"min": -0.5, "max": 0.25})
        outputs[f"joined{axis}"] = b.emit("concat", INPUT, more, other, attrs={"axis": axis})
    return several(b, outputs)


def test_curves_in_float_have_the_references_bits(tmp_path: Path) -> None:
    if " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("NO FUSED MULTIPLY-ADD: the bits of curves are not compared")
    assert differences(curved(list(CURVES)), tmp_path, None) == [0.0] * len(CURVES)


def test_curves_in_fixed_point_are_close(tmp_path: Path) -> None:
    assert max(differences(curved(list(SMOOTH)), tmp_path, 24)) < 2e-4


@pytest.mark.parametrize("fixed", [None, 24, 16])
def test_moves_and_concatenations(fixed: int | None, tmp_path: Path) -> None:
    found = differences(moved(), tmp_path, fixed)
    assert max(found) <= {None: 0.0, 24: 1e-6, 16: 2e-4}[fixed]


def resized() -> Program:
    """Bilinear images and adaptive pools of several sizes, and those that take them from another value."""
    b = Builder((5, 6, 4))
    outputs = {}
    for number, (size, scale, corners) in enumerate(
        [([13, 9], None, False), ([13, 9], None, True), ([3, 3], None, False), ([1, 4], None, True),
         (None, [2.0, 1.7], False)]
    ):  # fmt: skip
        attrs = {"size": size, "scale": scale, "mode": "bilinear", "align_corners": corners}
        outputs[f"bilinear{number}"] = b.emit("upsample2d", INPUT, attrs=attrs)
    for number, size in enumerate([[4, 3], [1, 1], [9, 6]]):
        for kind in ("avg", "max"):
            outputs[f"{kind}{number}"] = b.emit(f"adaptive_{kind}_pool2d", INPUT, attrs={"size": size})
    for mode in ("bilinear", "mean", "max"):
        attrs = {"size": [[0, 1, 1, -1], [0, 1, 2, 0]], "mode": mode, "align_corners": False}
        outputs[f"{mode}_of_a_rule"] = b.emit("resize2d", outputs["bilinear2"], INPUT, attrs=attrs)
    return several(b, outputs)


@pytest.mark.parametrize("fixed", [None, 24, 16])
def test_bilinear_images_and_adaptive_pools(fixed: int | None, tmp_path: Path) -> None:
    """In float the reference's bits."""
    found = differences(resized(), tmp_path, fixed)
    assert max(found) <= {None: 0.0, 24: 1e-6, 16: 2e-4}[fixed]


def test_not_a_number_wins_an_adaptive_pool(tmp_path: Path) -> None:
    b = Builder((2, 4, 4))
    program = b.program(b.emit("adaptive_max_pool2d", INPUT, attrs={"size": [2, 3]}))
    x = np.random.default_rng(2).uniform(-2, 2, (2, 2, 4, 4)).astype(np.float32)
    x[0, 1, 1, 2], x[1, 0, 3, 0] = np.nan, -np.inf
    made = export_c(program, from_bytes=False)
    (ours,) = answers(build(made, program, tmp_path, SANITIZED), made, program, x)
    np.testing.assert_array_equal(ours, run(program, x))


def test_what_cannot_be_expressed_is_refused_by_name() -> None:
    b = Builder((3, 4, 4))
    with pytest.raises(ExportError, match=r"\(exp\).*fixed-point form of sigmoid.*leave --fixed out"):
        export_c(b.program(b.emit("exp", INPUT)), fixed=24)
    b = Builder((3, 4, 4))
    attrs = {"size": [8, 8], "scale": None, "mode": "bicubic", "align_corners": False}
    with pytest.raises(ExportError, match=r"\(upsample2d\).*bilinear, not bicubic"):
        export_c(b.program(b.emit("upsample2d", INPUT, attrs=attrs)))
    b = Builder((3, 4, 4))
    with pytest.raises(ExportError, match=r"\(reduce\).*does not have"):
        export_c(b.program(b.emit("reduce", INPUT, attrs={"function": "mean", "axes": [0]})))
