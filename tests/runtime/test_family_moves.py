"""Joined, chosen, repeated, enlarged and pooled numbers: every engine against the definition and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cuda_host.cases import Writer
from engines import engines_agree
from torch import Tensor

from xnorpp.runtime.cpu import CpuModel
from xnorpp.runtime.format.program import ProgramError

SHAPE = (19, 5, 7)  # channels with a tail, odd rows and columns


def check(
    op: str, attrs: dict[str, Any], want: Callable[[Tensor], Tensor], shape: tuple[int, ...] = SHAPE,
    atol: float = 0.0,
) -> None:  # fmt: skip
    """One operation between two others, so that it reads memory and has an epilogue with bits."""
    w = Writer(shape)
    slope = w.normal(1)
    before = w.op("prelu", "input", slope=slope)
    program = w.program(w.op("relu", w.op(op, before, attrs=attrs)))
    x = w.normal(3, *shape)
    inside = torch.from_numpy(np.where(x > 0, x, x * slope).astype(np.float32))
    goal = want(inside).relu().numpy()
    np.testing.assert_allclose(engines_agree(program, x), goal, rtol=0, atol=atol)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(19, 19), (16, 3, 5), (1, 32, 17, 2), (2, 1, 3, 1, 2, 5, 1, 4)])
def test_concat(axis: int, sizes: tuple[int, ...]) -> None:
    shapes = [tuple(size if i == axis else n for i, n in enumerate((6, 4, 5))) for size in sizes]
    w = Writer((sum(int(np.prod(shape)) for shape in shapes), 1, 1))
    parts, first = [], 0
    for shape in shapes:
        end = first + int(np.prod(shape))
        attrs = {"start": [first, 0, 0], "stop": [end, None, None], "step": [1, 1, 1]}
        part = w.op("reshape", w.op("slice", "input", attrs=attrs), attrs={"shape": list(shape)})
        parts.append(w.op("relu", part))
        first = end
    joined = w.op("concat", *parts, attrs={"axis": axis})
    program = w.program(w.op("affine", joined, mult=w.normal(sum(sizes) if axis == 0 else 6)))
    x = w.normal(2, first, 1, 1)
    pieces = np.split(np.maximum(x, 0), np.cumsum([int(np.prod(s)) for s in shapes])[:-1], axis=1)
    whole = np.concatenate([p.reshape(2, *s) for p, s in zip(pieces, shapes)], axis=axis + 1)
    mult = next(t for name, t in w.tensors.items() if name.endswith("mult"))
    np.testing.assert_array_equal(engines_agree(program, x), whole * mult.reshape(1, -1, 1, 1))


@pytest.mark.parametrize("widths", [(16, 32, 7), (32, 16, 16), (5, 3, 40)])
def test_joined_features_grow_in_place(widths: tuple[int, int, int]) -> None:
    """A dense block: each layer reads all that came before, and something else reads the parts too."""
    a, b, c = widths
    w = Writer((8, 6, 5))
    geometry = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    conv = [w.normal(a, 8, 3, 3), w.normal(b, a, 3, 3), w.normal(c, a + b, 3, 3)]
    first = w.op("conv2d", "input", attrs=geometry, weight=conv[0])
    second = w.op("relu", w.op("conv2d", w.op("relu", first), attrs=geometry, weight=conv[1]))
    pair = w.op("concat", first, second, attrs={"axis": 0})
    third = w.op("conv2d", w.op("affine", pair, mult=w.normal(a + b)), attrs=geometry, weight=conv[2])
    whole = w.op("concat", pair, third, attrs={"axis": 0})
    pool = {"kernel": [3, 2], "stride": [2, 1], "padding": [1, 0], "ceil_mode": False}
    pooled = w.op("max_pool2d", whole, attrs=pool)
    again = w.op("max_pool2d", w.op("concat", second, first, attrs={"axis": 0}), attrs=pool)
    ends = [w.op("global_avg_pool", v) for v in (pooled, again, pair)]
    program = w.program(w.op("concat", *ends, attrs={"axis": 0}))
    engines_agree(program, w.normal(2, 8, 6, 5), rtol=1e-5, atol=1e-4)


def test_an_output_and_the_input_may_be_parts() -> None:
    w = Writer((16, 3, 4))
    relu = w.op("relu", "input")
    joined = w.op("concat", "input", relu, "input", attrs={"axis": 0})
    program = w.program(w.op("concat", joined, relu, attrs={"axis": 0}))
    x = w.normal(2, 16, 3, 4)
    positive = np.maximum(x, 0)
    np.testing.assert_array_equal(
        engines_agree(program, x), np.concatenate([x, positive, x, positive], axis=1)
    )


def test_signs_of_a_concatenation() -> None:
    w = Writer((48, 5, 5))
    one = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    parts = [w.op("conv2d", "input", attrs=one, weight=w.normal(n, 48, 1, 1)) for n in (16, 33)]
    bits = w.op("sign", w.op("concat", *parts, attrs={"axis": 0}), threshold=w.normal(49))
    engines_agree(w.program(w.op("signs", bits)), w.normal(2, 48, 5, 5))


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [((3, 0, 0), (19, None, None), (1, 1, 1)), ((0, 1, 2), (None, -1, None), (1, 1, 2)),
     ((2, 4, 0), (-2, None, 3), (5, 1, 1))],
)  # fmt: skip
def test_slice(start: Any, stop: Any, step: Any) -> None:
    attrs = {"start": list(start), "stop": list(stop), "step": list(step)}
    index = (slice(None), *(slice(*part) for part in zip(start, stop, step)))
    check("slice", attrs, lambda t: t[index])


def test_flip_expand_and_shuffles() -> None:
    for axis in range(3):
        check("flip", {"axis": axis}, lambda t, axis=axis: t.flip(axis + 1))
    check("expand", {"shape": [19, 4, 7]}, lambda t: t.expand(-1, -1, 4, -1), (19, 1, 7))
    check("expand", {"shape": [33, 5, 3]}, lambda t: t.expand(-1, 33, -1, 3), (1, 5, 1))
    check("pixel_shuffle", {"factor": 3}, lambda t: F.pixel_shuffle(t, 3), (45, 5, 7))
    check("pixel_unshuffle", {"factor": 2}, lambda t: F.pixel_unshuffle(t, 2), (5, 6, 4))
    check("channel_shuffle", {"groups": 6}, lambda t: F.channel_shuffle(t, 6), (30, 5, 3))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_edge_pad(mode: str) -> None:
    attrs = {"padding": [2, 1, 0, 6], "mode": mode}
    check("edge_pad2d", attrs, lambda t: F.pad(t, (0, 6, 2, 1), mode=mode))


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(9, 3), (5, 15), (1, 8)])
def test_bilinear_of_a_size(align: bool, size: tuple[int, int]) -> None:
    attrs = {"size": list(size), "scale": None, "mode": "bilinear", "align_corners": align}
    check(
        "upsample2d", attrs, lambda t: F.interpolate(t, size, mode="bilinear", align_corners=align), atol=2e-6
    )


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(9, 3), (1, 15)])
def test_bicubic_of_a_size(align: bool, size: tuple[int, int]) -> None:
    attrs = {"size": list(size), "scale": None, "mode": "bicubic", "align_corners": align}
    check(
        "upsample2d", attrs, lambda t: F.interpolate(t, size, mode="bicubic", align_corners=align), atol=4e-6
    )


@pytest.mark.parametrize("scale", [(2.0, 2.0), (1.7, 0.6), (3.0, 1.25)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_upsampling_by_a_scale(scale: tuple[float, float], mode: str) -> None:
    attrs = {"size": None, "scale": list(scale), "mode": mode, "align_corners": False}
    atol = {"bilinear": 2e-6, "bicubic": 4e-6}.get(mode, 0.0)
    check("upsample2d", attrs, lambda t: F.interpolate(t, scale_factor=scale, mode=mode), atol=atol)


@pytest.mark.parametrize("size", [(3, 4), (1, 1), (5, 2), (7, 9)])
def test_adaptive_pools(size: tuple[int, int]) -> None:
    check("adaptive_max_pool2d", {"size": list(size)}, lambda t: F.adaptive_max_pool2d(t, size))
    check("adaptive_avg_pool2d", {"size": list(size)}, lambda t: F.adaptive_avg_pool2d(t, size), atol=1e-6)


def test_dilated_max_pool() -> None:
    attrs = {"kernel": [2, 3], "stride": [2, 1], "padding": [1, 0], "dilation": [2, 3], "ceil_mode": True}
    want = [2, 3], [2, 1], [1, 0], [2, 3], True
    check("dilated_max_pool2d", attrs, lambda t: F.max_pool2d(t, *want))


def test_a_constant_is_joined_to_every_image() -> None:
    w = Writer((5, 1, 4))
    token = w.op("constant", "input", value=w.normal(5, 1, 2))
    program = w.program(w.op("concat", token, "input", attrs={"axis": 2}))
    x = w.normal(3, 5, 1, 4)
    value = np.broadcast_to(w.tensors["v0.value"], (3, 5, 1, 2))
    np.testing.assert_array_equal(engines_agree(program, x), np.concatenate([value, x], axis=3))


def test_nan_and_infinities_move_and_win() -> None:
    w = Writer((3, 4, 4))
    moved = w.op("flip", "input", attrs={"axis": 2})
    program = w.program(w.op("adaptive_max_pool2d", moved, attrs={"size": [3, 3]}))
    x = w.normal(1, 3, 4, 4)
    x[0, 0, 1, 1], x[0, 1, 2, 2], x[0, 2] = np.nan, np.inf, -np.inf
    engines_agree(program, x)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("concat", {"axis": 3}), ("concat", {"axis": 1}), ("slice", {"start": [0], "stop": [1], "step": [1]}),
     ("slice", {"start": [4, 0, 0], "stop": [4, None, None], "step": [1, 1, 1]}),
     ("slice", {"start": [0, 0, 0], "stop": [9, None, None], "step": [1, 1, 1]}),
     ("flip", {"axis": -1}), ("expand", {"shape": [8, 3, 5]}), ("pixel_shuffle", {"factor": 3}),
     ("pixel_unshuffle", {"factor": 2}), ("channel_shuffle", {"groups": 3}),
     ("edge_pad2d", {"padding": [3, 0, 0, 0], "mode": "reflect"}),
     ("edge_pad2d", {"padding": [0, 0, 0, 0], "mode": "symmetric"}),
     ("upsample2d", {"size": [2, 2], "scale": [1.0, 1.0], "mode": "nearest", "align_corners": False}),
     ("upsample2d", {"size": [2, 2], "scale": None, "mode": "nearest", "align_corners": True}),
     ("upsample2d", {"size": None, "scale": [0.1, 1.0], "mode": "nearest", "align_corners": False}),
     ("adaptive_avg_pool2d", {"size": [0, 1]})],
)  # fmt: skip
def test_what_does_not_fit_is_refused(op: str, attrs: dict[str, Any]) -> None:
    w = Writer((8, 3, 4))
    inputs = ["input", w.op("flatten", "input")] if op == "concat" else ["input"]
    with pytest.raises(ProgramError, match="operation"):
        w.program(w.op(op, *inputs, attrs=attrs))


def test_concatenation_takes_no_time_of_its_own() -> None:
    """Parts of whole vectors are written where they belong; the step of the copy has nothing to do."""
    w = Writer((16, 64, 64))
    left, right = w.op("relu", "input"), w.op("affine", "input", mult=w.normal(16))
    joined = w.op("concat", left, right, attrs={"axis": 0})
    kernel = {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    program = w.program(w.op("max_pool2d", joined, attrs=kernel))
    engine = CpuModel(program, threads=1)
    seconds = dict(engine.step_seconds(w.normal(1, 16, 64, 64)))
    assert seconds["v2"] < seconds["v3"] / 20  # copying would take as long as the pool
