"""Images that get the size of another value: every engine against the definition and torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cuda_host.cases import Writer
from engines import engines_agree
from torch import Tensor

from xnorpp.runtime.cpu import CpuModel
from xnorpp.runtime.format.program import Program, ProgramError, encode, read
from xnorpp.runtime.plan import make_plan, make_steps

SAME = [0, 1, 1, 0]
INPUTS = [(19, 5, 7), (19, 17, 23), (19, 1, 9), (19, 16, 8)]
RESIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nearest": ({}, {"mode": "nearest"}),
    "nearest-exact": ({}, {"mode": "nearest-exact"}),
    "bilinear": ({}, {"mode": "bilinear", "align_corners": False}),
    "bilinear corners": ({"mode": "bilinear", "align_corners": True}, {}),
    "bicubic": ({}, {"mode": "bicubic", "align_corners": False}),
    "mean": ({}, {"mode": "area"}),
}


def networks(op: str, attrs: dict[str, Any], shape: tuple[int, int, int]) -> tuple[Program, np.ndarray]:
    """Half the image, made as large as the image was, between two other operations."""
    w = Writer(shape)
    pool = {"kernel": [1, 1], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    half = w.op("prelu", w.op("max_pool2d", "input", attrs=pool), slope=np.full(1, -0.5, np.float32))
    bits = w.bits("input", shape[0])  # whose size alone counts
    sized = w.op(op, half, bits, attrs=attrs)
    program = replace(w.program(w.op("relu", sized)), free_axes=(1, 2))
    return program, w.normal(2, *shape)


def halved(x: np.ndarray) -> Tensor:
    return F.prelu(torch.from_numpy(x)[:, :, ::2, ::2], torch.tensor([-0.5]))


@pytest.mark.parametrize("shape", INPUTS)
@pytest.mark.parametrize("name", RESIZES)
def test_resize_to_the_size_of_another_value(name: str, shape: tuple[int, int, int]) -> None:
    own, torchs = RESIZES[name]
    attrs = {"size": [SAME, SAME], "mode": name, "align_corners": False, **own}
    program, x = networks("resize2d", attrs, shape)
    goal = F.interpolate(halved(x), size=shape[1:], **(torchs or attrs_of(own))).relu()
    np.testing.assert_allclose(engines_agree(program, x), goal.numpy(), rtol=0, atol=5e-6)


def attrs_of(own: dict[str, Any]) -> dict[str, Any]:
    return {key: own[key] for key in ("mode", "align_corners")}


def test_one_file_takes_every_size() -> None:
    attrs = {"size": [SAME, SAME], "mode": "bilinear", "align_corners": False}
    program = read(encode(networks("resize2d", attrs, INPUTS[0])[0]))
    engine = CpuModel(program)
    for shape in INPUTS:
        x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
        goal = F.interpolate(halved(x), size=shape[1:], mode="bilinear").relu()
        np.testing.assert_allclose(engine(x), goal.numpy(), rtol=0, atol=5e-6)


@pytest.mark.parametrize("shape", INPUTS[1:])
def test_sizes_by_a_rule(shape: tuple[int, int, int]) -> None:
    """Rows (h + 1) // 2 * 3 - 1, columns as they are; and maxima of windows."""
    attrs = {"size": [[1, 2, 3, -1], None], "mode": "max", "align_corners": False}
    program, x = networks("resize2d", attrs, shape)
    half = halved(x)
    goal = F.adaptive_max_pool2d(half, ((shape[1] + 1) // 2 * 3 - 1, half.shape[3])).relu()
    np.testing.assert_array_equal(engines_agree(program, x), goal.numpy())


@pytest.mark.parametrize("shape", INPUTS)
@pytest.mark.parametrize("place", ["half", "half_up", "half_even", "all", 0])
def test_pad_to_the_size_of_another_value(place: Any, shape: tuple[int, int, int]) -> None:
    attrs = {"size": [SAME, SAME], "before": [place, place], "mode": "constant", "value": 0.25}
    program, x = networks("fit2d", attrs, shape)
    half = halved(x)
    edges = []
    for axis in (3, 2):
        total = shape[axis - 1] - half.shape[axis]
        halves = {"half": total // 2, "half_up": -(-total // 2), "half_even": round(total / 2)}
        before = {**halves, "all": total, 0: 0}[place]
        edges += [before, total - before]
    np.testing.assert_array_equal(engines_agree(program, x), F.pad(half, edges, value=0.25).relu().numpy())


@pytest.mark.parametrize(
    ("place", "start"), [("half", lambda n: -(-n // 2)), ("half_up", lambda n: n // 2), ("all", lambda n: n)]
)
def test_crop_to_the_size_of_another_value(place: str, start: Any) -> None:
    for h, w in ((17, 23), (9, 2), (8, 8)):
        writer = Writer((5, h, w))
        large = writer.op("relu", "input")
        pool = {"kernel": [2, 2], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
        small = writer.op("max_pool2d", writer.op("affine", "input", mult=writer.normal(5)), attrs=pool)
        attrs = {"size": [[0, 2, 1, 0], SAME], "before": [place, place], "mode": "constant", "value": 0.0}
        program = writer.program(writer.op("silu", writer.op("fit2d", large, small, attrs=attrs)))
        x = writer.normal(2, 5, h, w)
        rows, columns = (h - 1) // 2, w - 1
        top, left = start(h - rows), start(w - columns)
        goal = F.silu(torch.from_numpy(x).relu()[:, :, top : top + rows, left : left + columns])
        np.testing.assert_allclose(engines_agree(program, x), goal.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_edges_around_an_image(mode: str) -> None:
    w = Writer((19, 7, 9))
    attrs = {"size": [[7, 8, 8, 0], [0, 1, 1, 3]], "before": [0, "half"], "mode": mode, "value": 0.0}
    program = w.program(w.op("silu", w.op("fit2d", w.op("relu", "input"), "input", attrs=attrs)))
    x = w.normal(2, 19, 7, 9)
    goal = F.silu(F.pad(torch.from_numpy(x).relu(), (1, 2, 0, 1), mode=mode))
    np.testing.assert_allclose(engines_agree(program, x), goal.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(12, 6, 8), (12, 9, 4), (12, 3, 20)])
def test_reshape_by_the_shape_of_another_value(shape: tuple[int, int, int]) -> None:
    """Tokens and back, windows of 3 x 2 pixels, and what only renames a value."""
    c, h, wide = shape
    w = Writer(shape)
    tokens = w.op("reshape_to", w.op("relu", "input"), "input", attrs={"shape": [12, -1]})
    turned = w.op("silu", w.op("permute", tokens, attrs={"axes": [1, 0]}))
    back = w.op("permute", turned, attrs={"axes": [1, 0]})
    image = w.op("reshape_to", back, "input", attrs={"shape": [12, [1, *SAME], [2, *SAME]]})
    blocks = [12, [1, 0, 3, 1, 0], 3, -1, 2]
    windows = w.op(
        "permute", w.op("reshape_to", image, image, attrs={"shape": blocks}), attrs={"axes": [1, 3, 2, 4, 0]}
    )
    again = w.op(
        "reshape_to",
        w.op("relu", windows),
        "input",
        attrs={"shape": [[1, 0, 3, 1, 0], [2, 0, 2, 1, 0], 3, 2, 12]},
    )
    program = w.program(w.op("sigmoid", again))
    x = w.normal(2, *shape)
    y = F.silu(torch.from_numpy(x).relu()).reshape(2, c, h // 3, 3, wide // 2, 2).permute(0, 2, 4, 3, 5, 1)
    np.testing.assert_allclose(engines_agree(program, x), y.relu().sigmoid().numpy(), rtol=1e-6, atol=1e-6)
    assert len(make_steps(program)) == 7  # the last one only renames


def test_a_value_whose_size_alone_counts_is_not_computed() -> None:
    program, _ = networks(
        "resize2d", {"size": [SAME, SAME], "mode": "max", "align_corners": False}, INPUTS[1]
    )
    steps = make_steps(program)
    assert [step.kind for step in steps] == ["max_pool2d", "resize2d"]
    assert steps[1].operands == ()
    assert steps[1].reads == (program.ops[1].output,)
    assert program.ops[2].output not in make_plan(program).offsets  # the signs


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("resize2d", {"size": [SAME, [0, 0, 1, 0]]}, "`size`"),
        ("resize2d", {"size": [SAME]}, "`size`"),
        ("resize2d", {"size": [SAME, [0, 1, 1, -99]]}, "-90 columns, which is out of range"),
        ("resize2d", {"size": [SAME, SAME], "align_corners": True}, "`align_corners`"),
        ("resize2d", {"size": [SAME, SAME], "mode": "area"}, "`mode`"),
        ("fit2d", {"size": [SAME, SAME], "before": [0, "third"]}, "`before`"),
        ("fit2d", {"size": [[0, 1, 2, 0], SAME], "before": [0, 0], "mode": "reflect"}, "cannot get 14"),
        ("fit2d", {"size": [None, [0, 4, 1, 0]], "before": [0, -9]}, "cannot get 2"),
        ("fit2d", {"size": [None, SAME], "before": [0, 0], "value": "zero"}, "`value`"),
        ("reshape_to", {"shape": [-1, -1]}, "`shape`"),
        ("reshape_to", {"shape": [5, -1]}, "with the 189 elements"),
        ("reshape_to", {"shape": [[3, *SAME], -1]}, r"of \(3, 7, 9\)"),
        ("reshape_to", {"shape": [[1, 0, 0, 1, 0], -1]}, "`shape`"),
        ("reshape_to", {"shape": [3, [1, *SAME]]}, "`shape`"),
    ],
)
def test_what_does_not_fit_is_refused(op: str, attrs: dict[str, Any], message: str) -> None:
    more: dict[str, Any] = {"mode": "nearest", "align_corners": False}
    if op != "resize2d":
        more = {"mode": "constant", "value": 0.0} if op == "fit2d" else {}
    w = Writer((3, 7, 9))
    with pytest.raises(ProgramError, match=message):
        w.program(w.op(op, w.op("relu", "input"), "input", attrs={**more, **attrs}))


def test_an_older_set_does_not_have_them() -> None:
    program, _ = networks(
        "resize2d", {"size": [SAME, SAME], "mode": "max", "align_corners": False}, INPUTS[1]
    )
    assert b'\\"opset\\":3' in encode(program)
    w = Writer((3, 7, 9))
    assert b'\\"opset\\":1' in encode(w.program(w.op("relu", "input")))
