"""The examples about packing run, and do what they are there to show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import warm

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    done = warm.run([sys.executable, EXAMPLES / name], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_check_before_training(tmp_path: Path) -> None:
    printed = run("check_before_training.py", tmp_path)
    assert printed.startswith("not packable: 2 obstacles\n- nn.BatchNorm2d has no running statistics")
    assert "stem.1: nn.BatchNorm2d -> set track_running_stats=True" in printed
    assert "after the remedies, packable: the whole model, 3 layers" in printed


def test_packed_subnetwork(tmp_path: Path) -> None:
    printed = run("packed_subnetwork.py", tmp_path)
    assert "packed  0 to 6 (3 layers)" in printed
    assert "left    7: nn.BatchNorm2d has no running statistics" in printed
    difference = re.search(r"largest difference of an output: (\S+)", printed)
    assert difference
    assert float(difference[1]) < 1e-4
    assert not any(tmp_path.iterdir()), "an example leaves no file where it is run"
