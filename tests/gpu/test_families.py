"""The families of operation set 2 on a real GPU: the same bits as the CPU engine."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_host.families import CASES, SUMS
from random_programs import random_program_2

from xnorpp.runtime.cuda.driver import Device
from xnorpp.runtime.cuda.model import CudaError, CudaModel
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.reference import run


def _missing() -> str:
    try:
        Device()
    except CudaError as error:
        return str(error)
    return ""


MISSING = _missing()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"NOT RUN: the CUDA engine needs a GPU. {MISSING}"),
]


def expected(program: Program, x: np.ndarray) -> np.ndarray:
    """The CPU engine's output, or the reference's where the native core is not built: the same bits here."""
    try:
        from xnorpp.runtime.cpu import CpuModel
    except ImportError:
        return run(program, x)
    return CpuModel(program)(x)


@pytest.mark.parametrize("name", CASES)
def test_an_operation_gives_the_same_bits(name: str) -> None:
    program, x = CASES[name]()
    np.testing.assert_array_equal(CudaModel(program)(x), expected(program, x))


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_products(name: str) -> None:
    program, x = SUMS[name]()
    np.testing.assert_allclose(CudaModel(program)(x), expected(program, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(100, 124))
def test_random_programs(seed: int) -> None:
    """Every operation after every other, on values of any rank."""
    program = random_program_2(seed, length=8 + seed % 12)
    x = np.random.default_rng(seed).standard_normal((3, *program.input_shape)).astype(np.float32)
    np.testing.assert_allclose(CudaModel(program)(x), expected(program, x), rtol=2e-3, atol=2e-3)
