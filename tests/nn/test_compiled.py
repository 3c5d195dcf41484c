"""Compiled training does what eager training does; the script that checks a GPU runs here on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compiled_matches_eager.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compiled_matches_eager", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_compiled_training_matches_eager_training(script: ModuleType) -> None:
    outcome = script.check("cpu", "block")
    assert set(outcome.gradient_distances) == {0, 50, 200}
    assert outcome.problems() == []


def test_the_check_sees_gradients_and_losses_that_differ(script: ModuleType) -> None:
    outcome = script.Outcome({0: 0.5, 50: float("nan")}, [2.0] * 40, [2.0] * 20 + [2.3] * 20)
    problems = outcome.problems()
    assert len(problems) == 4
    assert "step 0 differ by 5.00e-01" in problems[0]
    assert "step 50" in problems[1]
    assert "steps from 20" in problems[2]
    assert "chance" in problems[3]
