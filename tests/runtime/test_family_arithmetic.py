"""Sums, differences, products and quotients: every way in which two operands lie on each other."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_host.cases import Writer
from engines import engines_agree

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
SHAPES = [(20, 5, 3), (20, 1, 1), (1, 5, 3), (1, 1, 1), (20, 5, 1), (1, 1, 3), (20, 1, 3)]


def resized(w: Writer, shape: tuple[int, int, int]) -> str:
    """A value of that shape that is made from the input, (20, 5, 3)."""
    c, h, width = shape
    pool = {"kernel": [5 if h == 1 else 1, 3 if width == 1 else 1], "stride": [1, 1], "padding": [0, 0]}
    value = w.op("max_pool2d", "input", attrs={**pool, "ceil_mode": False})
    return value if c == 20 else w.op("abs_mean", value)


def value_of(x: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    axes = tuple(axis for axis in (2, 3) if shape[axis - 1] == 1)
    value = x.max(axis=axes, keepdims=True)
    return value if shape[0] == 20 else np.abs(value).mean(axis=1, keepdims=True, dtype=np.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("small_first", [False, True])
def test_operands_of_every_shape(name: str, small_first: bool) -> None:
    """The register with a smaller operand, the smaller operand first, and two that spread both."""
    attrs = {"broadcast": True} if name in ("add", "mul") else {}
    w = Writer((20, 5, 3), seed=1)
    x = 3 + w.normal(2, 20, 5, 3)
    total = w.op("relu", "input")
    want = np.maximum(x, 0)
    for shape in SHAPES:
        large, small = w.op("affine", "input", mult=w.normal(20)), resized(w, shape)
        pair = (small, large) if small_first else (large, small)
        total = w.op("add", total, w.op(name, *pair, attrs=attrs))
        factor = w.tensors[f"{large}.mult"].reshape(1, -1, 1, 1)
        operands = [x * factor, value_of(x, shape).astype(np.float32)]
        want = want + FUNCTIONS[name](*(operands[::-1] if small_first else operands))
    got = engines_agree(w.program(total), x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_two_operands_that_spread_each_other() -> None:
    w = Writer((20, 5, 3), seed=3)
    outer = w.op("mul", resized(w, (20, 1, 1)), resized(w, (1, 5, 3)), attrs={"broadcast": True})
    program = w.program(w.op("sub", outer, "input"))
    x = w.normal(2, 20, 5, 3)
    want = value_of(x, (20, 1, 1)) * value_of(x, (1, 5, 3)) - x
    np.testing.assert_allclose(engines_agree(program, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(20, 5, 3), (1, 5, 3), (20, 1, 1), (20, 1, 3), (1, 1, 1)])
def test_constants(shape: tuple[int, ...]) -> None:
    w = Writer((20, 5, 3), seed=4)
    constant = w.normal(*shape)
    value = w.op("relu", w.op("offset", w.op("affine", "input", mult=w.normal(20)), value=constant))
    x = w.normal(2, 20, 5, 3)
    factor = w.tensors["v0.mult"].reshape(1, -1, 1, 1)
    np.testing.assert_array_equal(engines_agree(w.program(value), x), np.maximum(x * factor + constant, 0))


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    from xnorpp.runtime.format.program import ProgramError

    w = Writer((20, 5, 3))
    pooled = w.op("max_pool2d", "input", attrs={"kernel": [2, 1], "stride": [1, 1], "padding": [0, 0],
                                                "ceil_mode": False})  # fmt: skip
    value = w.op("sub", "input", pooled)
    with pytest.raises(ProgramError, match="equal or 1, are needed"):
        w.program(value)
