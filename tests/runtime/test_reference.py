"""The definition against torch, operation by operation, and the stated meaning of NaN and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import Builder

from xnorpp.nn.quantizers import sign
from xnorpp.runtime.format.bits import pack_bits, pack_conv_weight, popcount_dot, unpack_bits
from xnorpp.runtime.format.ops import ProgramError
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.reference import check_input, normalise, run

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def one(shape: tuple[int, int, int], op: str, **parts: Any) -> Program:
    b = Builder(shape)
    return b.program(b.emit(op, INPUT, **parts))


@settings(max_examples=80, deadline=None)
@given(
    groups=st.integers(1, 3),
    fan=st.integers(1, 20),
    out=st.integers(1, 5),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=pairs,
    stride=pairs,
    dilation=pairs,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    pad_value=st.sampled_from([-1, 0, 1]),
    seed=st.integers(0, 2**31),
)
def test_binary_convolution(
    groups: int, fan: int, out: int, size: Any, kernel: Any, stride: Any, dilation: Any, padding: Any,
    pad_value: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    b = Builder((groups * fan, *size))
    weight = rng.standard_normal((groups * out, fan, *kernel)).astype(np.float32)
    attrs = {"stride": list(stride), "padding": list(padding), "dilation": list(dilation), "groups": groups}
    parts = {"attrs": {**attrs, "pad_value": pad_value}, "tensors": {"weight": pack_conv_weight(weight)}}
    fits = all(s + 2 * p > d * (k - 1) for s, p, d, k in zip(size, padding, dilation, kernel))
    if not fits:
        with pytest.raises(ProgramError, match="does not fit"):
            b.emit("binary_conv2d", b.emit("sign", INPUT), **parts)
        return
    dot = b.emit("binary_conv2d", b.emit("sign", INPUT), **parts)
    x = rng.standard_normal((2, groups * fan, *size)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = 0  # sign(0) = -1 everywhere
    _, values = run(b.program(b.emit("affine", dot)), x, keep=[dot])
    assert values[dot].dtype == np.int32
    padded = F.pad(
        sign(torch.from_numpy(x)), (padding[1], padding[1], padding[0], padding[0]), value=pad_value
    )
    wanted = F.conv2d(padded, sign(torch.from_numpy(weight)), None, stride, 0, dilation, groups)
    assert np.array_equal(values[dot], wanted.numpy())


def test_sign_is_one_definition() -> None:
    """Training, packing and numpy agree on every kind of number (contract 1)."""
    x = np.array([-np.inf, -1, -1e-45, -0.0, 0.0, 1e-45, 1, np.inf, np.nan], np.float32)
    expected = np.array([-1, -1, -1, -1, -1, 1, 1, 1, -1])
    assert np.array_equal(sign(torch.from_numpy(x)).numpy(), expected)
    assert np.array_equal(unpack_bits(pack_bits(x > 0), len(x)), expected)
    b = Builder((9, 1, 1))
    program = b.program(b.emit("signs", b.emit("sign", INPUT)))
    assert np.array_equal(run(program, x.reshape(1, 9, 1, 1)).reshape(-1), expected)
    assert popcount_dot(pack_bits(x > 0), pack_bits(x > 0), len(x)) == 9


def test_nan_is_minus_one_on_both_sides_of_a_threshold() -> None:
    b = Builder((4, 1, 1))
    tensors = {"threshold": np.float32([1, 1, -np.inf, np.inf]), "flip": np.array([0, 1, 0, 1], np.uint8)}
    program = b.program(b.emit("signs", b.emit("sign", INPUT, tensors=tensors)))
    for value, expected in ((np.nan, [-1, -1, -1, -1]), (1.0, [-1, -1, 1, 1]), (2.0, [1, -1, 1, 1])):
        x = np.full((1, 4, 1, 1), value, np.float32)
        assert run(program, x).reshape(-1).tolist() == expected


POOLS = [(k, s, p, c, i) for k in (2, 3) for s in (1, 2, 3) for p in (0, 1) for c in (0, 1) for i in (0, 1)]


@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil", "include"), POOLS)
def test_pooling(kernel: int, stride: int, padding: int, ceil: int, include: int) -> None:
    attrs: dict[str, Any] = {"kernel": [kernel, kernel], "stride": [stride, 2], "padding": [padding, padding]}
    attrs["ceil_mode"] = bool(ceil)
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 8)).astype(np.float32)
    t = torch.from_numpy(x)
    settings = (kernel, (stride, 2), padding)
    found = run(one((3, 7, 8), "max_pool2d", attrs=attrs), x)
    assert np.array_equal(found, F.max_pool2d(t, *settings, ceil_mode=bool(ceil)).numpy())
    found = run(one((3, 7, 8), "avg_pool2d", attrs={**attrs, "count_include_pad": bool(include)}), x)
    assert np.allclose(found, F.avg_pool2d(t, *settings, bool(ceil), bool(include)).numpy(), atol=1e-6)


def test_real_operations() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 4, 5, 6)).astype(np.float32)
    t = torch.from_numpy(x)
    w, bias = rng.standard_normal((6, 2, 3, 2)).astype(np.float32), np.arange(6, dtype=np.float32)
    attrs = {"stride": [2, 1], "padding": [1, 2], "dilation": [1, 2], "groups": 2}
    found = run(one((4, 5, 6), "conv2d", attrs=attrs, tensors={"weight": w, "bias": bias}), x)
    wanted = F.conv2d(t, torch.from_numpy(w), torch.from_numpy(bias), (2, 1), (1, 2), (1, 2), 2)
    assert np.allclose(found, wanted.numpy(), atol=1e-5)
    packed = {"weight": pack_conv_weight(w)}
    found = run(one((4, 5, 6), "bitweight_conv2d", attrs=attrs, tensors=packed), x)
    wanted = F.conv2d(t, sign(torch.from_numpy(w)), None, (2, 1), (1, 2), (1, 2), 2)
    assert np.allclose(found, wanted.numpy(), atol=1e-5)
    b = Builder((4, 5, 6))
    flat = b.emit("flatten", INPUT)
    fc = rng.standard_normal((3, 120)).astype(np.float16)
    out = b.emit("softmax", b.emit("linear", flat, tensors={"weight": fc}))
    wanted = F.softmax(F.linear(t.flatten(1), torch.from_numpy(fc).float()), 1)
    assert np.allclose(run(b.program(out), x), wanted.numpy(), atol=1e-5)
    assert np.allclose(
        run(one((4, 5, 6), "global_avg_pool"), x), t.mean((2, 3), keepdim=True).numpy(), atol=1e-6
    )


def test_box_filter_is_xnor_nets_k() -> None:
    from xnorpp.nn.means import input_scale

    x = np.random.default_rng(2).standard_normal((2, 6, 7, 8)).astype(np.float32)
    b = Builder((6, 7, 8))
    window = {"kernel": [3, 2], "stride": [2, 1], "padding": [1, 2], "dilation": [1, 2]}
    program = b.program(b.emit("box_filter", b.emit("abs_mean", INPUT), attrs=window))
    wanted = input_scale(torch.from_numpy(x), (3, 2), (2, 1), (2, 2, 1, 1), (1, 2), 1)
    assert np.allclose(run(program, x), wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_go_through(value: float) -> None:
    x = np.zeros((1, 2, 4, 4), np.float32)
    x[0, 1, 2, 2] = value
    t = torch.from_numpy(x)
    pool = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    cases: list[tuple[str, dict[str, Any], Any]] = [
        ("relu", {}, t.relu()),
        ("hardtanh", {"attrs": {"min": -1.0, "max": 1.0}}, F.hardtanh(t)),
        ("prelu", {"tensors": {"slope": np.float32([0.5])}}, F.prelu(t, torch.tensor([0.5]))),
        ("max_pool2d", {"attrs": pool}, F.max_pool2d(t, 2)),
        ("avg_pool2d", {"attrs": {**pool, "count_include_pad": True}}, F.avg_pool2d(t, 2)),
        ("affine", {"tensors": {"mult": np.float32([2, 0])}}, t * torch.tensor([2.0, 0]).reshape(2, 1, 1)),
        ("global_avg_pool", {}, t.mean((2, 3), keepdim=True)),
    ]
    for op, parts, wanted in cases:
        assert np.array_equal(run(one((2, 4, 4), op, **parts), x), wanted.numpy(), equal_nan=True), op


def test_inputs() -> None:
    b = Builder((3, 4, 5))
    program = b.program(b.emit("relu", INPUT), mean=(0.5, 0.25, 0.125), std=(0.5, 1.0, 2.0))
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    x = normalise(program, check_input(program, images))
    assert x.shape == (2, 3, 4, 5)
    assert x.dtype == np.float32
    assert np.isclose(x[1, 2, 3, 4], (images[1, 3, 4, 2] / 255 - 0.125) / 2.0)
    assert run(program, np.zeros((0, 3, 4, 5), np.float32)).shape == (0, 3, 4, 5)
    assert run(program, np.zeros((1, 3, 4, 5))).dtype == np.float32
    for bad in (
        np.zeros((3, 4, 5), np.float32),
        np.zeros((1, 4, 5, 3), np.float32),
        np.zeros((1, 3, 4, 5), np.int32),
    ):
        with pytest.raises(ValueError, match="`x` has"):
            run(program, bad)
    with pytest.raises(ValueError, match="uint8"):
        run(program, np.zeros((1, 3, 4, 5), np.uint8))


def test_keep_gives_any_value() -> None:
    b = Builder((2, 3, 3))
    first = b.emit("relu", INPUT)
    program = b.program(b.emit("affine", first, tensors={"add": np.float32([1, 2])}))
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32)
    output, kept = run(program, x, keep=[INPUT, first])
    assert np.array_equal(kept[INPUT], x)
    assert np.array_equal(kept[first], np.maximum(x, 0))
    assert np.array_equal(output, run(program, x))
