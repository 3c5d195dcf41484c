"""`xnorpp export`: what it writes, and what it refuses in one sentence."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from random_programs import Builder

from xnorpp.cli.main import main
from xnorpp.export import ExportError, export_c
from xnorpp.export.c.layers import make_layers
from xnorpp.export.c.memory import plan_memory
from xnorpp.export.one_size import for_one_size
from xnorpp.runtime.format.program import INPUT, Program, read, write
from xnorpp.runtime.reference import run
from xnorpp.shipped import shipped_path


def test_c_writes_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "c", "cifar10-resnet20", "-o", str(tmp_path / "new"), "--name", "net"]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["net.c", "net.h"]
    assert "arena 69,672 bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["c", "--batch", "2"], "`--batch` (=2) is for openvino, not for c"),
        (["onnx", "--fixed"], "`--fixed` (=24) is for c, not for onnx"),
        (["qonnx", "--layout", "qdq"], "`--layout` (='qdq') is for onnx, not for qonnx"),
        (["openvino", "--input", "bytes"], "`--input` (='bytes') is for c and onnx"),
        (["c", "--size", "96"], "`--size` (='96') must be HEIGHTxWIDTH"),
        (["c", "--size", "96x96"], "this one takes one size"),
        (["c", "--examples", "x.npy"], "decides the scales of --fixed, which is not given"),
        (["c", "--name", "my-net"], "must be a C identifier"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form, *options = arguments
    assert main(["export", form, "cifar10-resnet20", "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("form", "package"), [("onnx", "onnx"), ("qonnx", "onnx"), ("openvino", "openvino")])
def test_a_missing_package_is_named(
    form: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["export", form, "cifar10-resnet20", "-o", str(tmp_path / "out.xml")]) == 2
    assert f"pip install 'xnorpp[{package}]'" in capsys.readouterr().err


def any_size() -> Program:
    b = Builder((3, 8, 8))
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    x = b.emit("conv2d", INPUT, attrs=attrs, tensors={"weight": weight})
    return b.program(b.emit("flatten", b.emit("global_avg_pool", x)), free_axes=(1, 2))


def test_a_model_of_any_size_is_exported_for_one(tmp_path: Path) -> None:
    write(any_size(), tmp_path / "any.xnor")
    assert main(["export", "c", str(tmp_path / "any.xnor"), "-o", str(tmp_path), "--size", "5x7"]) == 0
    header = (tmp_path / "any.h").read_text()
    assert "#define ANY_HEIGHT 5\n" in header
    assert "#define ANY_WIDTH 7\n" in header


def test_an_operation_that_c_does_not_have_is_refused_by_name() -> None:
    b = Builder((4, 2, 2))
    program = b.program(b.emit("reduce", INPUT, attrs={"function": "max", "axes": [1]}))
    with pytest.raises(ExportError, match=r"layer 'v0' \(reduce\) cannot be exported to c: "):
        export_c(program)


def test_memory_is_shared_only_where_nothing_is_lost() -> None:
    """Values that live at the same time are apart, but for an heir at or below what it is made from."""
    program = read(shipped_path("cifar10-resnet20"))
    layers = make_layers(program, "c")
    size = {name: 4 * value.elements for name, value in program.values.items()}
    memory = plan_memory(program, layers, lambda name, value: size[name], [8] * len(layers))
    assert memory.arena % 4 == 0
    for index, layer in enumerate(layers):
        later = {name for after in layers[index + 1 :] for name in after.reads} | set(
            program.outputs.values()
        )
        live = [name for name in memory.offsets if name in later or name in layer.writes]
        live = [name for name in live if any(name in one.writes for one in layers[: index + 1])]
        spans = sorted((memory.offsets[name], memory.offsets[name] + size[name]) for name in live)
        spans.append((memory.scratch[index], memory.scratch[index] + 8))
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), layer.name
        assert spans[-1][1] <= memory.arena


def test_sizes_of_other_values_are_numbers_in_c(tmp_path: Path) -> None:
    b = Builder((3, 8, 8))
    pool = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    small, rule = b.emit("max_pool2d", INPUT, attrs=pool), [0, 1, 1, 0]
    attrs = {"size": [rule, rule], "mode": "nearest", "align_corners": False}
    large = b.emit("resize2d", small, INPUT, attrs=attrs)
    fit = {"size": [rule, [0, 4, 1, 0]], "before": ["half", "half_up"], "mode": "constant", "value": 0.5}
    fitted = b.emit("fit2d", small, INPUT, attrs=fit)
    program = b.program(large, free_axes=(1, 2), more_outputs={"fitted": fitted})
    x = np.random.default_rng(0).standard_normal((1, 3, 7, 13)).astype(np.float32)
    one = for_one_size(program.for_input((3, 7, 13)))
    assert [op.op for op in one.ops] == ["max_pool2d", "upsample2d", "slice", "pad2d"]
    for mine, theirs in zip(run(one, x).values(), run(program, x).values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    write(program, tmp_path / "any.xnor")
    assert main(["export", "c", str(tmp_path / "any.xnor"), "-o", str(tmp_path), "--size", "7x13"]) == 0
