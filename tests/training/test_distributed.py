"""Two real processes over gloo: the same losses as one that takes the same halves, and no hang when one
dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import warm

from xnorpp.training import load_checkpoint, load_recipe, train
from xnorpp.training.distributed import World, choose_device, sum_over_world, wrap
from xnorpp.training.records.journal import read_metrics

SETTINGS = (
    "model.options.width=4", "schedule.max_steps=8", "schedule.epochs=1", "run.log_steps=1", "run.threads=1",
    "run.tensorboard=false", "data.batch_size=64", "run.save_steps=5", "model.calibrate=true",
)  # fmt: skip
DYING = """
import os, signal, sys
from xnorpp.training import loop
from xnorpp.cli.main import main
step = loop._Run._step
def dying(self, parts, at, guard):
    if self.world.rank == 1 and at == 2:
        if {kill}:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the roof of process 1 leaks")
    return step(self, parts, at, guard)
loop._Run._step = dying
sys.exit(main(sys.argv[1:]))
"""


def _torchrun(target: list[str], out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *target,
    ]
    command += ["train", "digits-small-case4", "--out", str(out), "--device", "cpu", *settings, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XNORPP_COLLECTIVE_TIMEOUT": "60"}
    return warm.run(command, timeout=150, env=environment)


def test_two_processes_train_as_one_that_takes_the_same_halves(tmp_path: Path) -> None:
    done = _torchrun(["-m", "xnorpp"], tmp_path / "two", "--record", str(tmp_path / "results.jsonl"))
    assert done.returncode == 0, done.stderr
    train(
        load_recipe("digits-small-case4", [*SETTINGS, "run.accumulate=2"]),
        out=tmp_path / "one",
        device="cpu",
        quiet=True,
    )
    two, one = (
        [row["loss"] for row in read_metrics(tmp_path / name / "metrics.jsonl") if row["kind"] == "train"]
        for name in ("two", "one")
    )
    assert len(two) == len(one) == 8
    assert two == pytest.approx(one, rel=1e-5)
    assert done.stdout.count("top-1") == 2
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 1
    weights = [load_checkpoint(tmp_path / name).weights for name in ("two", "one")]
    assert weights[0].keys() == weights[1].keys()


@pytest.mark.parametrize("kill", [False, True], ids=["raises", "killed"])
def test_a_worker_that_dies_ends_the_run_with_its_error(tmp_path: Path, kill: bool) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING.format(kill=kill))
    start = time.monotonic()
    done = _torchrun([str(script)], tmp_path / "out")
    assert done.returncode != 0
    assert time.monotonic() - start < 120
    if kill:
        assert "SIGKILL" in done.stderr
    else:
        assert "xnorpp train: the roof of process 1 leaks." in done.stderr


def test_a_world_of_one_needs_no_process_group() -> None:
    world = World()
    assert world.leader
    value = torch.ones(2)
    assert sum_over_world(value, world) is value
    module = torch.nn.Identity()
    assert wrap(module, world) is module
    assert choose_device("cpu") == torch.device("cpu")
