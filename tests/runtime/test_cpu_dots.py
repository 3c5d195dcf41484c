"""Integer dot products of every instruction set, bit for bit against the definition."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from engines import threads_agree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import Builder

from xnorpp.runtime import load
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.reference import run

cpu = pytest.importorskip("xnorpp.runtime.cpu", reason="THE NATIVE CORE IS NOT BUILT: no kernel was tested")

TABLE = cpu.isa_table()
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.fixture(params=[name for name, _, _ in TABLE])
def isa(request: pytest.FixtureRequest) -> str:
    name = request.param
    built, detected = next((row[1], row[2]) for row in TABLE if row[0] == name)
    if not (built and detected):
        reason = "this machine does not have it" if built else "it is not built for this architecture"
        warnings.warn(f"KERNELS NOT TESTED: {name}: {reason}", stacklevel=1)
        pytest.skip(f"KERNELS NOT TESTED: {name}: {reason}")
    return str(name)


def dots(c: int, size: tuple[int, int], weight: Any, attrs: dict[str, Any]) -> Program:
    """A sign and a binary convolution; the empty affine makes the dot product the output."""
    b = Builder((c, *size))
    dot = b.emit("binary_conv2d", b.emit("sign", INPUT), attrs=attrs, tensors={"weight": weight})
    return b.program(b.emit("affine", dot))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    fan=st.integers(1, 140),
    out=st.integers(1, 70),
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    kernel=pairs,
    stride=pairs,
    dilation=pairs,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    pad_value=st.sampled_from([-1, 0, 1]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_convolution(
    isa: str, groups: int, fan: int, out: int, size: Any, kernel: Any, stride: Any, dilation: Any,
    padding: Any, pad_value: int, threads: int, seed: int,
) -> None:  # fmt: skip
    if any(s + 2 * p <= d * (k - 1) for s, p, d, k in zip(size, padding, dilation, kernel)):
        size = (size[0] + 9, size[1] + 9)
    rng = np.random.default_rng(seed)
    weight = pack_conv_weight(rng.standard_normal((groups * out, fan, *kernel)))
    attrs = {"stride": list(stride), "padding": list(padding), "dilation": list(dilation), "groups": groups}
    program = dots(groups * fan, size, weight, {**attrs, "pad_value": pad_value})
    x = rng.standard_normal((2, groups * fan, *size)).astype(np.float32)
    np.testing.assert_array_equal(load(program, threads=threads, isa=isa)(x), run(program, x))


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("size", "stride"), [((7, 7), 1), ((15, 21), 2), ((9, 17), 1)])
def test_rows_that_are_no_multiple_of_the_threads(
    isa: str, size: tuple[int, int], stride: int, real: bool
) -> None:
    """Some channels then have their border between two threads at another row than others."""
    rng = np.random.default_rng(size[0])
    attrs = {"stride": [stride, stride], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    x = rng.standard_normal((1, 70, *size)).astype(np.float32)
    for filters in (64, 130, 224):
        weight = rng.standard_normal((filters, 70, 3, 3)).astype(np.float32)
        if real:
            b = Builder((70, *size))
            single = {**attrs, "stride": [1, 1], "padding": [0, 0]}
            point = b.emit("conv2d", INPUT, attrs=single, tensors={"weight": weight[:, :, :1, :1].copy()})
            square = rng.standard_normal((64, filters, 3, 3)).astype(np.float32)
            program = b.program(b.emit("conv2d", point, attrs=attrs, tensors={"weight": square}))
        else:
            program = dots(70, size, pack_conv_weight(weight), {**attrs, "pad_value": 0})
        expected = threads_agree(program, x, isa, calls=3)
        if not real:
            np.testing.assert_array_equal(expected, run(program, x))


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14), (512, 7)])
def test_shapes_of_resnet18(isa: str, channels: int, size: int) -> None:
    rng = np.random.default_rng(channels)
    filters = 64 if isa != "generic" else 8
    weight = pack_conv_weight(rng.standard_normal((filters, channels, 3, 3)))
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    program = dots(channels, (size, size), weight, attrs)
    x = rng.standard_normal((1, channels, size, size)).astype(np.float32)
    np.testing.assert_array_equal(load(program, threads=2, isa=isa)(x), run(program, x))


@pytest.mark.parametrize("stride", [1, 2])
def test_every_width_of_a_row(isa: str, stride: int) -> None:
    """Runs of up to twelve pixels of kernels three columns wide: each length, as signs and as counts."""
    rng = np.random.default_rng(stride)
    attrs = {"stride": [stride, stride], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    weights = [pack_conv_weight(rng.standard_normal((40, c, 3, 3))) for c in (70, 40)]
    scales = [rng.standard_normal(40).astype(np.float32) for _ in range(2)]
    for width in range(1, 27):
        b = Builder((70, 3, width))
        value = INPUT
        for weight, scale in zip(weights, scales):
            dot = b.emit("binary_conv2d", b.emit("sign", value), attrs=attrs, tensors={"weight": weight})
            value = b.emit("affine", dot, tensors={"mult": scale})
        program = b.program(value)
        x = rng.standard_normal((1, 70, 3, width)).astype(np.float32)
        np.testing.assert_array_equal(load(program, isa=isa)(x), run(program, x), err_msg=f"width {width}")


@pytest.mark.parametrize("inputs", [1, 31, 4096, 65536, 70001])
@pytest.mark.parametrize("same", [False, True])
def test_long_linear(isa: str, inputs: int, same: bool) -> None:
    """Counts beyond 16 bits: every input differs from its weight, or half of them."""
    rng = np.random.default_rng(inputs)
    weight = rng.choice([-1.0, 1.0], (33, inputs))
    b = Builder((inputs, 1, 1))
    bits = b.emit("sign", b.emit("flatten", INPUT))
    dot = b.emit("binary_linear", bits, tensors={"weight": pack_linear_weight(weight)})
    program = b.program(b.emit("affine", dot))
    x = -weight[:1] if same else rng.standard_normal((1, inputs))
    x = x.astype(np.float32).reshape(1, inputs, 1, 1)
    expected = run(program, x)
    assert not same or expected[0, 0] == -inputs
    np.testing.assert_array_equal(load(program, isa=isa)(x), expected)
