"""A user's own script, killed for real and resumed, and as two processes over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm

from xnorpp.training import load_checkpoint
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.state.checkpoint import list_checkpoints

SCRIPT = Path(__file__).with_name("own_digits.py")


def _environment() -> dict[str, str]:
    """No coverage: a killed process would leave a damaged data file."""
    return {
        **{key: os.environ[key] for key in os.environ if "COV" not in key},
        "OMP_NUM_THREADS": "1",
        "XNORPP_COLLECTIVE_TIMEOUT": "60",
    }


def _start(out: Path, *arguments: str, processes: int = 1) -> warm.Process | subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), str(SCRIPT), str(out), *arguments]
    return warm.start(command, env=_environment())


def _finish(out: Path, *arguments: str, processes: int = 1) -> str:
    process = _start(out, *arguments, processes=processes)
    errors = process.communicate(timeout=180)[1]
    return errors if process.returncode else ""


def _losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]


def test_killed_inside_an_epoch_and_resumed_it_ends_with_the_same_bits(
    tmp_path: Path, same: Callable[[Any, Any], bool]
) -> None:
    assert _finish(tmp_path / "whole", "1", "data") == ""
    process = _start(tmp_path / "killed", "1", "data")
    while not list_checkpoints(tmp_path / "killed"):
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    assert _finish(tmp_path / "killed", "1", "data") == ""
    whole, killed = (load_checkpoint(tmp_path / name) for name in ("whole", "killed"))
    assert same(whole.weights, killed.weights)
    assert whole.meta["metrics"] == killed.meta["metrics"]
    assert _losses(tmp_path / "whole") == _losses(tmp_path / "killed")


def test_two_processes_share_own_data_as_one_that_takes_the_same_halves(tmp_path: Path) -> None:
    """The script fails too where gloo's threads outlive the training, which can abort the process."""
    assert _finish(tmp_path / "two", "1", "data", processes=2) == ""
    assert _finish(tmp_path / "one", "2", "data") == ""
    two, one = _losses(tmp_path / "two"), _losses(tmp_path / "one")
    assert len(two) == 24
    assert two == pytest.approx(one, rel=1e-4)


def test_a_loader_of_two_processes_needs_a_sampler_that_shares(tmp_path: Path) -> None:
    errors = _finish(tmp_path / "refused", "1", "loader", processes=2)
    assert (
        "is a DataLoader that gives all 2 processes the same samples; give it a DistributedSampler" in errors
    )
    assert _finish(tmp_path / "shared", "1", "sampler", processes=2) == ""
    summary = load_checkpoint(tmp_path / "shared").meta
    assert (summary["steps_per_epoch"], summary["recipe"]["data"]["batch_size"]) == (8, 64)
