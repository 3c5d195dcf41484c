"""One program on every engine: what the tests of a family of operations compare."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from cuda_host import machine

from xnorpp.runtime import load
from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.cuda.build import Builder, Gpu
from xnorpp.runtime.format.program import Program, encode, read
from xnorpp.runtime.reference import run


@cache
def _host() -> machine.HostMachine:
    """The GPU's kernels on this processor; compiled once for all tests of a run."""
    folder = tempfile.TemporaryDirectory(prefix="xnorpp-kernels")
    found = machine.HostMachine(Path(folder.name))
    found.holder = folder  # type: ignore[attr-defined]
    return found


def engines_agree(
    program: Program, x: np.ndarray, *, rtol: float = 0.0, atol: float = 0.0, isas: Sequence[str] = ()
) -> np.ndarray:
    """Every engine's output for `x` against the reference's, which is returned; equal bits where no tolerance
    is given. The program goes through its file first."""
    program = read(encode(program))
    want = run(program, x)
    for isa in isas or available_isas():
        for threads in (1, 3):
            _compare(CpuModel(program, isa=isa, threads=threads)(x), want, rtol, atol, f"cpu {isa} {threads}")
    if shutil.which("g++"):
        builder = Builder(program, Gpu())
        got = _host().run(builder, builder.schedule(len(x), x.dtype == np.uint8), x)
        _compare(got, want, rtol, atol, "cuda")
    return want


def _compare(got: np.ndarray, want: np.ndarray, rtol: float, atol: float, name: str) -> None:
    assert got.shape == want.shape, name
    if rtol or atol:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)
    else:
        np.testing.assert_array_equal(got, want, err_msg=name)


def threads_agree(program: Program, x: np.ndarray, isa: str, calls: int) -> np.ndarray:
    """The answer of one thread, which several give in every call."""
    expected = load(program, threads=1, isa=isa)(x)
    for threads in (2, 3, 4, 5):
        model = load(program, threads=threads, isa=isa)
        for _ in range(calls):
            np.testing.assert_array_equal(model(x), expected)
    return expected
