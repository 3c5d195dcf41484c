"""The families of operation set 2 on a real GPU: the same bits as the CPU engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_host.cases import Writer

from xnorpp.runtime.cpu import CpuModel
from xnorpp.runtime.cuda.driver import Device
from xnorpp.runtime.cuda.model import CudaError, CudaModel
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.reference.curves import CURVES


def _missing() -> str:
    try:
        Device()
    except CudaError as error:
        return str(error)
    return ""


MISSING = _missing()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"NOT RUN: the CUDA engine needs a GPU. {MISSING}"),
]


def equal(program: Program, x: np.ndarray) -> None:
    np.testing.assert_array_equal(CudaModel(program)(x), CpuModel(program)(x))


@pytest.mark.parametrize("name", CURVES)
def test_curves(name: str) -> None:
    w = Writer((21, 9, 7), seed=1)
    source = w.op("affine", "input", mult=w.normal(21), add=w.normal(21))
    if name in ("log", "sqrt"):
        source = w.op("prelu", source, slope=np.full(1, -1, np.float32))
    program = w.program(w.op(name, source, attrs={"alpha": 0.7} if name == "elu" else {}))
    equal(program, 6 * w.normal(5, 21, 9, 7))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("swap", [False, True])
def test_operands_that_spread(name: str, swap: bool) -> None:
    attrs = {"broadcast": True} if name in ("add", "mul") else {}
    w = Writer((20, 5, 3), seed=2)
    pooled = {"stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    total = w.op("relu", "input")
    for kernel, one in (([5, 3], False), ([1, 1], True), ([5, 3], True), ([5, 1], False), ([1, 3], True)):
        small = w.op("max_pool2d", "input", attrs={"kernel": kernel, **pooled})
        small = w.op("abs_mean", small) if one else small
        large = w.op("affine", "input", mult=w.normal(20))
        value = w.op(name, *((small, large) if swap else (large, small)), attrs=attrs)
        total = w.op("add", total, value)
    equal(w.program(w.op("offset", total, value=w.normal(20, 5, 1))), 3 + w.normal(4, 20, 5, 3))


def test_moved_axes() -> None:
    w = Writer((12, 7, 3), seed=3)
    value = w.op("permute", w.op("relu", "input"), attrs={"axes": [2, 0, 1]})
    value = w.op("reshape", value, attrs={"shape": [4, 9, 7]})
    equal(w.program(w.op("silu", value)), w.normal(3, 12, 7, 3))


MOVES: dict[str, dict[str, Any]] = {
    "slice": {"start": [1, 0, 2], "stop": [-1, None, None], "step": [2, 1, 1]},
    "flip": {"axis": 2},
    "pixel_shuffle": {"factor": 2},
    "pixel_unshuffle": {"factor": 3},
    "channel_shuffle": {"groups": 4},
    "edge_pad2d": {"padding": [2, 0, 1, 3], "mode": "reflect"},
    "upsample2d": {"size": None, "scale": [1.7, 2.0], "mode": "bilinear", "align_corners": False},
    "adaptive_avg_pool2d": {"size": [4, 2]},
    "adaptive_max_pool2d": {"size": [5, 7]},
    "dilated_max_pool2d": {
        "kernel": [2, 3], "stride": [2, 1], "padding": [1, 1], "dilation": [2, 1], "ceil_mode": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    w = Writer((76, 6, 9), seed=4)
    value = w.op(name, w.op("affine", "input", mult=w.normal(76)), attrs=MOVES[name])
    equal(w.program(w.op("relu", value)), w.normal(5, 76, 6, 9))


def test_joined_and_repeated() -> None:
    w = Writer((24, 4, 5), seed=5)
    relu, token = w.op("relu", "input"), w.op("constant", "input", value=w.normal(24, 2, 5))
    rows = w.op("concat", relu, token, "input", attrs={"axis": 1})
    mean = w.op("expand", w.op("global_avg_pool", rows), attrs={"shape": [24, 10, 5]})
    joined = w.op("concat", rows, mean, attrs={"axis": 0})
    again = w.op("concat", joined, rows, w.op("relu", mean), attrs={"axis": 0})
    bits = w.op("sign", again, threshold=w.normal(96))
    pool = {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    pooled = w.op("max_pool2d", again, attrs=pool)
    equal(w.program(w.op("add", w.op("signs", bits), pooled)), w.normal(3, 24, 4, 5))


@pytest.mark.parametrize("function", ["mean", "sum", "max", "min", "l2"])
@pytest.mark.parametrize("axes", [[1, 2], [0], [2], [0, 1, 2]])
def test_reductions(function: str, axes: list[int]) -> None:
    w = Writer((21, 5, 7), seed=4)
    attrs = {"function": function, "axes": axes}
    equal(w.program(w.op("reduce", w.op("relu", "input"), attrs=attrs)), w.normal(3, 21, 5, 7))


@pytest.mark.parametrize("groups", [1, 3, 24])
@pytest.mark.parametrize("pixels", [False, True])
def test_norms(groups: int, pixels: bool) -> None:
    w = Writer((24, 9, 7), seed=5)
    attrs = {"groups": groups, "pixels": pixels, "centre": groups != 3, "eps": 1e-5}
    equal(w.program(w.op("norm", w.op("relu", "input"), attrs=attrs)), w.normal(3, 24, 9, 7))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_axes(name: str, axis: int) -> None:
    w = Writer((21, 5, 7), seed=6)
    equal(w.program(w.op(name, w.op("relu", "input"), attrs={"axis": axis})), 4 * w.normal(3, 21, 5, 7))


def test_products_and_attention() -> None:
    w = Writer((24, 1, 19), seed=7)
    scaled = [w.op("affine", "input", mult=w.normal(24)) for _ in range(3)]
    tokens = [w.op("reshape", value, attrs={"shape": [24, 19]}) for value in scaled]
    value = w.op("attention", *tokens, attrs={"heads": 3, "scale": 0.4})
    turned = w.op("permute", value, attrs={"axes": [1, 0]})
    program = w.program(w.op("matmul", value, turned))
    x = w.normal(4, 24, 1, 19)
    np.testing.assert_allclose(CudaModel(program)(x), CpuModel(program)(x), rtol=1e-4, atol=1e-4)
