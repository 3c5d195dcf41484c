"""Products of matrices of windows and heads, whose first axes the CPU engine stores as one."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_host.cases import Writer
from engines import engines_agree

LINKS = {"relu": {}, "hardtanh": {"min": -1.0, "max": 1.0}, "sigmoid": {}}


def windows(
    w: Writer, between: tuple[str, ...], lead: tuple[int, ...], tokens: int, width: int, part: tuple[int, ...]
) -> str:
    """Attention in windows, from (3*width, tokens): scores with a summand, `between` and softmax."""
    names = []
    for i, order in enumerate(([0, 1, 3, 2], [0, 1, 2, 3], [0, 1, 3, 2])):
        size = int(np.prod(lead)) * width
        attrs = {"start": [i * size, 0], "stop": [(i + 1) * size, None], "step": [1, 1]}
        value = w.op("slice", "input", attrs=attrs)
        value = w.op("reshape", value, attrs={"shape": [*lead, width, tokens]})
        names.append(w.op("permute", value, attrs={"axes": order}))
    scores = w.op("matmul", names[0], names[1])
    scores = w.op("affine", scores, mult=np.full(lead[0], 0.3, np.float32))
    scores = w.op("offset", scores, value=w.normal(*part))
    for op in between:
        scores = w.op(op, scores, attrs=LINKS[op])
    weights = w.op("softmax", scores, attrs={"axis": 3})
    return w.op("matmul", w.op("add", weights, scores), names[2])


@pytest.mark.parametrize("between", [(), ("relu", "sigmoid"), ("hardtanh",)])
@pytest.mark.parametrize("lead", [(4, 3), (1, 5), (7, 4), (16, 2)])
@pytest.mark.parametrize("shared", [(), (0,), (1,), (0, 1), (0, 2), (2, 3)])
def test_attention_in_windows(
    between: tuple[str, ...], lead: tuple[int, int], shared: tuple[int, ...]
) -> None:
    tokens, width = 9, 5
    part = tuple(1 if i in shared else n for i, n in enumerate((*lead, tokens, tokens)))
    channels = 3 * lead[0] * lead[1] * width
    w = Writer((channels, tokens))
    made = windows(w, between, lead, tokens, width, part)
    turned = w.op("permute", made, attrs={"axes": [0, 1, 3, 2]})
    back = w.op("reshape", turned, attrs={"shape": [channels // 3, tokens]})
    engines_agree(w.program(w.op("relu", back)), w.normal(3, channels, tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("end", ["output", "norm", "sign", "prelu", "other sum"])
def test_readers_of_other_kinds(end: str) -> None:
    """A value that something else reads keeps its axes."""
    lead, tokens, width = (6, 4), 7, 4
    channels = 3 * 24 * width
    w = Writer((channels, tokens))
    made = windows(w, (), lead, tokens, width, (*lead, tokens, tokens))
    if end == "norm":
        attrs = {"groups": 1, "pixels": False, "centre": True, "eps": 1e-5}
        made = w.op("norm", made, attrs=attrs)
    elif end == "sign":
        made = w.op("signs", w.op("sign", made, threshold=w.normal(6)))
    elif end == "prelu":
        made = w.op("prelu", made, slope=w.normal(6))
    elif end == "other sum":
        mean = w.op("reduce", made, attrs={"function": "mean", "axes": [0]})
        made = w.op("add", made, mean, attrs={"broadcast": True})
    if end != "output":
        made = w.op("relu", w.op("reshape", made, attrs={"shape": [channels // 3, tokens]}))
    engines_agree(w.program(made), w.normal(2, channels, tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 3, 4, 700])
def test_products_of_many_sizes(columns: int) -> None:
    w = Writer((2, 3, 10, 6))
    other = w.op("slice", "input", attrs={"start": [0] * 4, "stop": [None, None, 6, 1], "step": [1] * 4})
    other = w.op("expand", other, attrs={"shape": [2, 3, 6, columns]})
    made = w.op("matmul", "input", w.op("relu", other))
    x = w.normal(2, 2, 3, 10, 6)
    got = engines_agree(w.program(w.op("relu", made)), x, rtol=1e-6, atol=1e-6)
    want = np.maximum(x @ np.maximum(x[..., :6, :1], 0).repeat(columns, -1), 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
