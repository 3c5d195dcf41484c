"""Random programs of operation set 2, in which every operation meets every other: all engines agree."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from engines import engines_agree
from random_programs import random_program_2

from xnorpp.runtime.cpu import available_isas


@pytest.mark.parametrize("seed", range(24))
def test_engines_agree_on_random_programs(seed: int) -> None:
    program = random_program_2(seed, length=8 + seed % 12)
    x = np.random.default_rng(seed).standard_normal((2, *program.input_shape)).astype(np.float32)
    best = available_isas()[0]
    want = engines_agree(program, x, rtol=2e-3, atol=2e-3, isas=[best] if seed % 4 else [])
    assert np.isfinite(want).all()


def test_the_samples_use_the_operations() -> None:
    used = Counter(op.op for seed in range(60) for op in random_program_2(seed, 12).ops)
    assert {"attention", "matmul", "norm", "reduce", "offset", "div", "log_softmax", "concat"} <= set(used)
