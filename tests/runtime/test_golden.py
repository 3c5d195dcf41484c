"""The golden file of every format version loads for ever and gives the output stored with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xnorpp.runtime.ops import OPS
from xnorpp.runtime.program import VERSION, encode, read
from xnorpp.runtime.reference import run

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("version", range(1, int(VERSION) + 1))
def test_golden_file(version: int) -> None:
    path = GOLDEN / f"v{version}.xnor"
    program = read(path)
    stored = np.load(GOLDEN / f"v{version}.npz")
    assert np.allclose(run(program, stored["pictures"]), stored["output"], atol=1e-5)
    assert program.labels == ("ant", "bée", "cat", "dog", "elk")
    assert program.meta == {"golden": str(version)}
    assert encode(program) == path.read_bytes()


def test_the_golden_file_of_version_1_has_every_operation_of_it() -> None:
    assert {op.op for op in read(GOLDEN / "v1.xnor").ops} == set(OPS)
