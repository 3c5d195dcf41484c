"""Products of two values, softmax along any axis, attention: every engine against torch, odd sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cuda_host.cases import Writer
from engines import engines_agree

from xnorpp.runtime.cpu import CpuModel, available_isas


def shaped(w: Writer, begin: int, shape: tuple[int, ...]) -> str:
    """A value of that shape from numbers `begin`... of the input, a vector."""
    attrs = {"start": [begin, 0, 0], "stop": [begin + math.prod(shape), None, None], "step": [1, 1, 1]}
    return w.op("reshape", w.op("slice", "input", attrs=attrs), attrs={"shape": list(shape)})


@pytest.mark.parametrize(
    ("left", "right"),
    [((5, 7), (7, 3)), ((33, 17), (17, 40)), ((3, 5, 7), (3, 7, 4)), ((18, 2, 9), (18, 9, 1)),
     ((2, 3, 4, 5), (2, 3, 5, 6))],
)  # fmt: skip
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    first, total = math.prod(left), math.prod(left) + math.prod(right)
    w = Writer((total, 1, 1), seed=1)
    value = w.op("matmul", shaped(w, 0, left), shaped(w, first, right))
    x = w.normal(2, total, 1, 1)
    got = engines_agree(w.program(w.op("relu", value)), x, rtol=1e-5, atol=1e-5)
    a, b = x[:, :first].reshape(2, *left), x[:, first:].reshape(2, *right)
    np.testing.assert_allclose(got, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", [isa for isa in available_isas() if isa != "generic"])
@pytest.mark.parametrize("shape", [(1, 2), (3, 1, 2)])
def test_products_that_cancel_leave_what_a_multiply_add_leaves(isa: str, shape: tuple[int, ...]) -> None:
    """a*b - a*b is the rounding of a*b where it is added by multiply-adds, as torch's matrix libraries do. A
    sign after such a sum is the trained network's only if it is the same here: linear attention has many."""
    pairs = math.prod(shape)
    w = Writer((2 * pairs, 1, 1), seed=3)
    right = (*shape[:-2], 2, shape[-2])
    program = w.program(w.op("matmul", shaped(w, 0, shape), shaped(w, pairs, right)))
    a, b = (w.normal(50, pairs // 2, 1) for _ in range(2))
    x = np.concatenate([np.repeat(a, 2, 1), np.stack([b, -b], 2).reshape(50, -1, 1)], 1)[..., None]
    got = CpuModel(program, isa=isa)(x).reshape(50, -1)
    exact = a[..., 0].astype(np.float64) * b[..., 0]
    np.testing.assert_array_equal(got, ((a * b)[..., 0].astype(np.float64) - exact).astype(np.float32))
    assert (got != 0).any()


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(name: str, axis: int) -> None:
    w = Writer((21, 5, 7), seed=axis)
    program = w.program(w.op(name, w.op("relu", "input"), attrs={"axis": axis}))
    x = 4 * w.normal(2, 21, 5, 7)
    want = getattr(F, name)(torch.from_numpy(x).relu(), axis + 1)
    np.testing.assert_allclose(engines_agree(program, x), want.numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "deep", "wide", "queries", "keys"),
    [(3, 8, 8, 11, 11), (2, 5, 7, 4, 19), (1, 64, 64, 20, 20), (4, 3, 2, 1, 1)],
)
def test_attention(heads: int, deep: int, wide: int, queries: int, keys: int) -> None:
    counts = [heads * deep * queries, heads * deep * keys, heads * wide * keys]
    w = Writer((sum(counts), 1, 1), seed=heads)
    shapes = [(heads * deep, queries), (heads * deep, keys), (heads * wide, keys)]
    begins = [0, counts[0], counts[0] + counts[1]]
    values = [shaped(w, begin, shape) for begin, shape in zip(begins, shapes, strict=True)]
    program = w.program(w.op("attention", *values, attrs={"heads": heads, "scale": 0.3}))
    x = 2 * w.normal(2, sum(counts), 1, 1)
    got = engines_agree(program, x, rtol=1e-5, atol=1e-5)
    q, k, v = (
        torch.from_numpy(x[:, begin : begin + count]).view(2, heads, -1, shape[1]).transpose(2, 3)
        for begin, count, shape in zip(begins, counts, shapes, strict=True)
    )
    want = F.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(2, 3).reshape(got.shape)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
