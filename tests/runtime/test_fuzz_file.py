"""A short run of benchmarks/fuzz_files.py: damaged files are refused in one sentence or load and run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_files.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_files", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_damaged_files(fuzz: ModuleType) -> None:
    found = Counter((name, fuzz.check(blob, "reference")) for _, name, blob in fuzz.cases(3000, seed=1))
    outcomes = {outcome for _, outcome in found}
    assert outcomes == {"refused", "loaded"}
    assert found["cut", "loaded"] == 0
    assert found["append", "loaded"] == 0
    assert found["flip_bytes", "loaded"] == 0
    assert {name for name, _ in found} == {mutation.__name__ for mutation in (*fuzz.MUTATIONS, *fuzz.RARE)}


@pytest.mark.skipif(
    not os.environ.get("XNORPP_DEPLOY"),
    reason="NOT RUN: compiles the whole core with sanitizers; `make sanitize` and `make test-deploy` do",
)
def test_damaged_files_under_sanitizers(fuzz: ModuleType) -> None:
    if shutil.which("g++") is None:
        pytest.skip("THE READER WAS NOT TESTED UNDER SANITIZERS: g++ is needed")
    said = fuzz.run_driver(2000, seed=2)
    refused, loaded, run = (int(part.split()[0]) for part in said.split(", ")[:3])
    assert refused + loaded == 2000
    assert loaded > 50
    assert run > 50


def test_every_truncation_of_one_file(fuzz: ModuleType) -> None:
    from random_programs import random_program

    from xnorpp.runtime.format.program import encode

    blob = encode(random_program(5, length=4, largest=6))
    step = max(1, len(blob) // 400)
    assert {fuzz.check(blob[:end], "none") for end in range(0, len(blob), step)} == {"refused"}
    assert fuzz.check(blob, "reference") == "loaded"
