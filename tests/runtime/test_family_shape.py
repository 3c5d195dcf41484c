"""Operations that only move numbers: every engine against the definition, odd sizes and tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_host.cases import Writer
from engines import engines_agree


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 7, 3), (2, 0, 1)), ((17, 4, 9), (1, 2, 0)), ((3, 5), (1, 0)), ((70, 33), (1, 0)),
     ((2, 3, 4, 5), (3, 1, 0, 2))],
)  # fmt: skip
def test_permute(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    w = Writer((math.prod(shape), 1, 1))
    value = w.op("reshape", "input", attrs={"shape": list(shape)})
    value = w.op("permute", value, attrs={"axes": list(axes)})
    program = w.program(w.op("relu", value))
    x = w.normal(3, math.prod(shape), 1, 1)
    want = np.maximum(x.reshape(3, *shape).transpose(0, *(a + 1 for a in axes)), 0)
    np.testing.assert_array_equal(engines_agree(program, x), want)


@pytest.mark.parametrize(
    ("shape", "to"),
    [((6, 5, 4), (4, 5, 6)), ((12, 7, 3), (3, 4, 21)), ((20, 3, 3), (20, 9)), ((35, 2, 1), (70,)),
     ((7, 6, 5), (7, 5, 6))],
)  # fmt: skip
def test_reshape(shape: tuple[int, int, int], to: tuple[int, ...]) -> None:
    w = Writer(shape)
    value = w.op("affine", "input", mult=w.normal(shape[0]))
    program = w.program(w.op("relu", w.op("reshape", value, attrs={"shape": list(to)})))
    x = w.normal(2, *shape)
    factor = w.tensors["v0.mult"].reshape(1, -1, 1, 1)
    np.testing.assert_array_equal(engines_agree(program, x), np.maximum((x * factor).reshape(2, *to), 0))


def test_a_reshape_that_leaves_rows_and_columns_takes_no_step() -> None:
    from xnorpp.runtime.plan import make_steps

    w = Writer((6, 1, 9))
    value = w.op("reshape", w.op("relu", "input"), attrs={"shape": [6, 9]})
    program = w.program(w.op("affine", value, mult=w.normal(6)))
    assert len(make_steps(program)) == 1
    engines_agree(program, w.normal(2, 6, 1, 9))
