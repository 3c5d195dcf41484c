"""Convolutions of whole numbers (`int_conv2d`): every engine the same bits, and what a reader refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_host.families import CASES, WHOLE, whole_program
from engines import engines_agree

from xnorpp.runtime import load
from xnorpp.runtime.cpu import available_isas
from xnorpp.runtime.format.program import ProgramError


@pytest.mark.parametrize("shape", [form[0] for form in WHOLE])
def test_every_engine_gives_the_same_bits(shape: tuple[int, int, int]) -> None:
    program, x = CASES[f"int_conv2d {shape}"]()
    engines_agree(program, x)


def test_it_is_a_convolution_of_rounded_numbers() -> None:
    program = whole_program((48, 5, 6), (24, 1, 1), bias=False)
    x = np.random.default_rng(2).standard_normal((1, 48, 5, 6)).astype(np.float32)
    got = engines_agree(program, x)
    weight = program.tensors["w"] * program.tensors["w.scale"].astype(np.float64).reshape(-1, 1, 1, 1)
    leaky = np.where(x > 0, x, 0.5 * x)
    want = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], leaky)
    want *= program.tensors["mult"].reshape(1, -1, 1, 1)
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())


def test_a_nan_is_the_lowest_number() -> None:
    program = whole_program((16, 3, 3), (16, 1, 1))
    x = np.zeros((1, 16, 3, 3), np.float32)
    low = x.copy()
    x[0, 3, 1, 1], low[0, 3, 1, 1] = np.nan, -np.inf
    for isa in (*available_isas(), "reference"):
        model = load(program, isa=isa)
        np.testing.assert_array_equal(model(x), model(low))


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"limit": 0}, "`limit`"),
        ({"limit": 40000}, "`limit`"),
        ({"limit": 32767}, "out of range"),
        ({"steps": 0.0}, "`steps`"),
        ({"steps": 1e20}, "`steps`"),
        ({"groups": 2}, "shape"),
        ({"dilation": [1, 2]}, "dilation"),
    ],
)
def test_wrong_programs_are_refused(attrs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        whole_program((900, 3, 4), (4, 1, 2), **attrs)


def test_weights_must_be_int8_with_a_scale() -> None:
    program = whole_program((8, 4, 4), (8, 1, 1))
    for wrong in (np.int16, np.float32):
        tensors = {**program.tensors, "w": program.tensors["w"].astype(wrong)}
        scales = {} if wrong is np.float32 else program.scales
        with pytest.raises(ProgramError, match="int8 with a scale"):
            replace(program, tensors=tensors, scales=scales)
