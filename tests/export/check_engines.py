"""Exported models in the engines they are for (`make test-deploy`): onnxruntime, OpenVINO and qonnx."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import qonnx.core.onnx_exec as qonnx_exec
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.transformation.infer_datatypes import InferDataTypes
from qonnx.transformation.infer_shapes import InferShapes
from random_programs import Builder, random_program

from xnorpp.cli.main import main
from xnorpp.export import ExportError, export_onnx, export_openvino, export_qonnx
from xnorpp.export.one_size import for_one_size
from xnorpp.export.onnx.operations import OPERATIONS as ONNX_OPERATIONS
from xnorpp.runtime import load
from xnorpp.runtime.format.bits import pack_conv_weight
from xnorpp.runtime.format.ops import operations
from xnorpp.runtime.format.program import INPUT, Program, ProgramError, read, write
from xnorpp.runtime.reference import normalise, run
from xnorpp.runtime.reference.curves import CURVES
from xnorpp.shipped import shipped_path

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
BIT_OPERATORS = {"BitShift", "BitwiseAnd"}


def close(ours: Any, expected: Any) -> bool:
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=1.0))
    return bool(np.allclose(ours, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))


def floats(program: Program, seed: int, count: int = 2) -> Any:
    return np.random.default_rng(seed).standard_normal((count, *program.input_shape)).astype(np.float32)


def reference(program: Program, x: Any) -> Any:
    with np.errstate(all="ignore"):
        return run(program, x)


def in_onnxruntime(model: Any, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {INPUT: x})[0]


def in_openvino(model: Any, x: Any) -> Any:
    return np.array(openvino.Core().compile_model(model, "CPU", EXACT)(x)[0])


def in_qonnx(model: Any, x: Any) -> tuple[Any, set[str]]:
    wrapper = ModelWrapper(model)
    wrapper.set_tensor_shape(INPUT, list(x.shape))
    wrapper = wrapper.transform(InferShapes()).transform(InferDataTypes())
    quants = [node for node in wrapper.graph.node if node.op_type == "BipolarQuant"]
    kinds = {wrapper.get_tensor_datatype(node.output[0]).name for node in quants}
    return qonnx_exec.execute_onnx(wrapper, {INPUT: x})["output"], kinds


@pytest.mark.parametrize("layout", ["bits", "qdq"])
def test_random_programs_in_onnxruntime(layout: str) -> None:
    for seed in range(40):
        program = random_program(seed)
        x = floats(program, seed)
        assert close(in_onnxruntime(export_onnx(program, layout=layout), x), reference(program, x)), seed


def test_from_bytes_in_onnxruntime() -> None:
    for seed in range(10):
        program = random_program(seed)
        c, h, w = program.input_shape
        x = np.random.default_rng(seed).integers(0, 256, (2, h, w, c), dtype=np.uint8)
        assert close(in_onnxruntime(export_onnx(program, from_bytes=True), x), reference(program, x)), seed


def test_random_programs_in_qonnx() -> None:
    for seed in range(12):
        program = random_program(seed)
        x = floats(program, seed, 1)
        found, kinds = in_qonnx(export_qonnx(program), x)
        assert close(found, reference(program, x)), seed
        assert kinds <= {"BIPOLAR"}


def test_random_programs_in_openvino() -> None:
    agreed, refused = 0, 0
    for seed in range(60):
        program = random_program(seed)
        x = floats(program, seed)
        try:
            model = export_openvino(program, batch=2)
        except ExportError:
            refused += 1
            continue
        assert close(in_openvino(model, x), reference(program, x)), seed
        agreed += 1
    assert agreed >= 5
    assert refused >= 5


NEWER: list[tuple[str, dict[str, Any], tuple[int, int, int], dict[str, Any]]] = [
    *((name, {"alpha": 1.5} if name == "elu" else {}, (12, 6, 8), {}) for name in CURVES),
    ("permute", {"axes": [2, 0, 1]}, (12, 6, 8), {}),
    ("reshape", {"shape": [6, 12, 8]}, (12, 6, 8), {}),
    ("slice", {"start": [2, 0, 1], "stop": [None, 5, -1], "step": [3, 1, 2]}, (12, 6, 8), {}),
    ("flip", {"axis": 1}, (12, 6, 8), {}),
    ("expand", {"shape": [12, 6, 8]}, (12, 1, 8), {}),
    ("pixel_shuffle", {"factor": 2}, (12, 6, 8), {}),
    ("pixel_unshuffle", {"factor": 2}, (12, 6, 8), {}),
    ("channel_shuffle", {"groups": 3}, (12, 6, 8), {}),
    ("edge_pad2d", {"padding": [1, 2, 0, 1], "mode": "reflect"}, (12, 6, 8), {}),
    ("edge_pad2d", {"padding": [1, 2, 0, 1], "mode": "replicate"}, (12, 6, 8), {}),
    *(
        (
            "upsample2d",
            {"size": None, "scale": [2.0, 1.5], "mode": mode, "align_corners": False},
            (4, 6, 8),
            {},
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    ),
    *(
        ("reduce", {"function": function, "axes": [0, 2]}, (12, 6, 8), {})
        for function in ("mean", "sum", "max", "min", "l2")
    ),
    (
        "upsample2d",
        {"size": [9, 13], "scale": None, "mode": "bilinear", "align_corners": True},
        (4, 6, 8),
        {},
    ),
    ("adaptive_avg_pool2d", {"size": [4, 3]}, (12, 6, 8), {}),
    ("adaptive_max_pool2d", {"size": [3, 4]}, (12, 6, 8), {}),
    *(
        (
            "dilated_max_pool2d",
            {"kernel": [3, 2], "stride": [2, 2], "padding": [1, 1], "dilation": [2, 1], "ceil_mode": ceil},
            *((4, 6, 8), {}),
        )
        for ceil in (False, True)
    ),
    ("constant", {}, (4, 6, 8), {"value": np.arange(12, dtype=np.float32).reshape(3, 4)}),
    ("offset", {}, (4, 6, 8), {"value": np.arange(8, dtype=np.float32).reshape(1, 1, 8)}),
]


@pytest.mark.parametrize(("op", "attrs", "shape", "tensors"), NEWER, ids=lambda value: str(value)[:40])
def test_operations_of_set_2_in_onnxruntime(
    op: str, attrs: dict[str, Any], shape: tuple[int, int, int], tensors: dict[str, Any]
) -> None:
    b = Builder(shape)
    program = b.program(b.emit(op, INPUT, attrs=attrs, tensors=tensors))
    x = np.abs(floats(program, 3)) + 0.1 if op in ("log", "sqrt") else floats(program, 3)
    found = in_onnxruntime(export_onnx(program), x)
    assert found.shape == reference(program, x).shape
    assert np.allclose(found, reference(program, x), rtol=1e-5, atol=1e-5)


def sized(op: str, attrs: dict[str, Any]) -> Program:
    """Half an image, made as large as the image is, at any size."""
    b = Builder((5, 9, 12))
    pool = {"kernel": [2, 2], "stride": [2, 2], "padding": [1, 0], "ceil_mode": False}
    half = b.emit("max_pool2d", INPUT, attrs=pool)
    value = b.emit(op, half, INPUT, attrs=attrs)
    scaled = {"size": None, "scale": [2.0, 1.4], "mode": "bilinear", "align_corners": False}
    value = b.emit("upsample2d", value, attrs=scaled)
    value = b.emit("concat", value, b.emit("channel_shuffle", value, attrs={"groups": 5}), attrs={"axis": 0})
    return b.program(b.emit("adaptive_avg_pool2d", value, attrs={"size": [7, 3]}), free_axes=(1, 2))


SIZED: list[tuple[str, dict[str, Any]]] = [
    *(
        ("resize2d", {"size": [[0, 1, 1, 0], [1, 2, 3, -1]], "mode": mode, "align_corners": corners})
        for mode, corners in (
            ("nearest", False), ("nearest-exact", False), ("bilinear", False), ("bilinear", True),
            ("bicubic", False), ("bicubic", True), ("mean", False),
        )
    ),
    *(
        ("fit2d", {"size": [[0, 1, 1, 0], None], "before": [place, 0], "mode": mode, "value": 0.5})
        for place, mode in (
            ("half", "constant"), ("half_up", "constant"), ("all", "replicate"), (1, "reflect"),
            ("half_even", "constant"),
        )
    ),
    (
        "fit2d",
        {"size": [[0, 4, 1, 0], [0, 8, 1, 1]], "before": ["half", "half_up"], "mode": "constant", "value": 0},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs"), SIZED, ids=lambda value: str(value)[:60])
def test_sizes_of_other_values_stay_free_in_onnxruntime(op: str, attrs: dict[str, Any]) -> None:
    program = sized(op, attrs)
    model = export_onnx(program)
    for rows, columns in ((9, 12), (17, 23), (6, 31), (8, 8)):
        x = np.random.default_rng(rows).standard_normal((2, 5, rows, columns)).astype(np.float32)
        try:
            expected = reference(program, x)
        except ProgramError:  # reflection of a few rows to many
            assert attrs["mode"] == "reflect"
            continue
        assert np.allclose(in_onnxruntime(model, x), expected, rtol=1e-5, atol=1e-5), (rows, columns)
        one = in_onnxruntime(export_onnx(for_one_size(program.for_input((5, rows, columns)))), x)
        assert np.allclose(one, expected, rtol=1e-5, atol=1e-5), (rows, columns)


def test_tokens_of_any_size_in_onnxruntime() -> None:
    b = Builder((6, 8, 12))
    flat = b.emit("reshape_to", b.emit("relu", INPUT), INPUT, attrs={"shape": [6, -1]})
    turned = b.emit("sigmoid", b.emit("permute", flat, attrs={"axes": [1, 0]}))
    blocks = {"shape": [[1, 0, 4, 1, 0], 4, [2, 0, 1, 1, 0], -1]}
    program = b.program(b.emit("reshape_to", turned, INPUT, attrs=blocks), free_axes=(1, 2))
    model = export_onnx(program)
    for rows, columns in ((8, 12), (4, 5), (12, 1)):
        x = np.random.default_rng(rows).standard_normal((2, 6, rows, columns)).astype(np.float32)
        assert np.allclose(in_onnxruntime(model, x), reference(program, x), atol=1e-6), (rows, columns)


def test_windows_of_maxima_are_exported_for_one_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = sized("resize2d", {"size": [[0, 4, 1, 0], [0, 6, 1, 0]], "mode": "max", "align_corners": False})
    write(program, tmp_path / "any.xnor")
    command = ["export", "onnx", str(tmp_path / "any.xnor"), "-o", str(tmp_path / "any.onnx")]
    assert main(command) == 2
    assert "(resize2d) cannot be exported to onnx: its windows depend on the size" in capsys.readouterr().err
    assert main([*command, "--size", "8x24"]) == 2  # rows in twos and threes
    assert "windows have different sizes" in capsys.readouterr().err
    assert main([*command, "--size", "14x24"]) == 2
    capsys.readouterr()
    assert main([*command, "--size", "10x24"]) == 0
    x = np.random.default_rng(0).standard_normal((2, 5, 10, 24)).astype(np.float32)
    found = in_onnxruntime(onnx.load(tmp_path / "any.onnx"), x)
    assert np.allclose(found, reference(program, x), rtol=1e-5, atol=1e-5)


def test_an_operation_that_is_not_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(ONNX_OPERATIONS) <= set(operations())
    monkeypatch.delitem(ONNX_OPERATIONS, "relu")
    b = Builder((1, 2, 2))
    with pytest.raises(ExportError, match=r"layer 'v0' \(relu\) cannot be exported to onnx: "):
        export_onnx(b.program(b.emit("relu", INPUT)))


def test_scaled_integers_stay_so_in_the_file() -> None:
    rng = np.random.default_rng(4)
    b = Builder((6, 1, 1))
    weight, scale = rng.integers(-127, 128, (3, 6)).astype(np.int8), rng.uniform(0.1, 1, 3).astype(np.float32)
    value = b.emit("linear", b.emit("flatten", INPUT), tensors={"weight": weight.astype(np.float32)})
    tensors = {**b.tensors, f"{value}.weight": weight, "scale": scale}
    program = Program(b.shape, tuple(b.ops), value, tensors, scales={f"{value}.weight": "scale"})
    x = floats(program, 1)
    model = export_onnx(program)
    assert any(row.data_type == onnx.TensorProto.INT8 for row in model.graph.initializer)
    assert close(in_onnxruntime(model, x), reference(program, x))
    assert close(in_openvino(export_openvino(program, batch=2), x), reference(program, x))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_value_beside_itself_in_openvino(axis: int) -> None:
    """The shortcut of ReActNet-A where the width doubles."""
    b = Builder((3, 4, 5))
    value = b.emit("relu", INPUT)
    program = b.program(b.emit("concat", value, value, attrs={"axis": axis}))
    x = floats(program, 2)
    assert np.array_equal(in_openvino(export_openvino(program, batch=2), x), reference(program, x))


def ties(pad_value: int, channels: int = 16) -> Program:
    """A sign whose input often equals its threshold, some channels flipped, and a padded convolution."""
    rng = np.random.default_rng(7)
    b = Builder((channels, 6, 6))
    threshold = rng.integers(-1, 2, channels).astype(np.float32)
    flip = rng.integers(0, 2, channels).astype(np.uint8)
    bits = b.emit("sign", INPUT, tensors={"threshold": threshold, "flip": flip})
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": pad_value}
    weight = pack_conv_weight(rng.standard_normal((8, channels, 3, 3)))
    return b.program(b.emit("affine", b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": weight})))


@pytest.mark.parametrize("pad_value", [-1, 0, 1])
def test_sign_of_zero_and_padding_are_exact_everywhere(pad_value: int) -> None:
    program = ties(pad_value)
    x = np.random.default_rng(0).integers(-1, 2, (1, *program.input_shape)).astype(np.float32)
    expected = reference(program, x)
    assert np.array_equal(in_onnxruntime(export_onnx(program), x), expected)
    assert np.array_equal(in_onnxruntime(export_onnx(program, layout="qdq"), x), expected)
    assert np.array_equal(in_openvino(export_openvino(program), x), expected)
    assert np.array_equal(in_qonnx(export_qonnx(program), x)[0], expected)


def test_onnx_has_standard_operators_and_is_as_small_as_the_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert main(["export", "onnx", "cifar10-resnet18", "-o", str(path)]) == 0
    assert path.stat().st_size <= 1.15 * shipped_path("cifar10-resnet18").stat().st_size
    model = onnx.load(path)
    assert {node.domain for node in model.graph.node} == {"", "xnorpp"}
    assert [function.name for function in model.functions] == ["BinaryConv2d"]
    inside = {node.op_type for node in model.functions[0].node}
    assert inside >= BIT_OPERATORS
    assert all(onnx.defs.has(name) for name in inside | {n.op_type for n in model.graph.node if not n.domain})


def test_the_shipped_network_gives_the_same_classes() -> None:
    program = read(shipped_path("cifar10-resnet18"))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    expected = load(program, threads=1)(images).argmax(1)
    x = normalise(program, images)
    assert np.array_equal(in_onnxruntime(export_onnx(program), x).argmax(1), expected)
    compiled = openvino.Core().compile_model(export_openvino(program, batch=8), "CPU", EXACT)
    assert np.array_equal(np.array(compiled(x)[0]).argmax(1), expected)
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    binary = [
        row["primitiveType"].astype(str)
        for row in nodes
        if row["layerType"].astype(str) == "BinaryConvolution"
    ]
    assert len(binary) == sum(op.op == "binary_conv2d" for op in program.ops)
    assert all(kind.startswith("jit_") and kind.endswith("_u1") for kind in binary), binary


def test_openvino_files_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.xml"
    assert main(["export", "openvino", "cifar10-resnet20", "-o", str(path), "--batch", "2"]) == 0
    program = read(shipped_path("cifar10-resnet20"))
    x = floats(program, 0)
    assert close(
        in_openvino(openvino.Core().read_model(path), x), in_openvino(export_openvino(program, batch=2), x)
    )
    assert main(["export", "openvino", "cifar10-resnet20", "-o", str(tmp_path / "model.onnx")]) == 2
    assert "must end in .xml" in capsys.readouterr().err
    with pytest.raises(
        ExportError, match=r"layer 'v1' \(binary_conv2d\) cannot be exported to openvino: .*eights"
    ):
        export_openvino(ties(0, channels=12))


@pytest.mark.parametrize("name", ["onnx.model", "openvino", "qonnx"])
def test_examples_of_the_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"xnorpp.export.{name}"))
    assert result.attempted
    assert not result.failed
