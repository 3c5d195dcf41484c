"""Killed with SIGKILL at any moment and resumed, a run ends with the same bits as one that was never stopped.

A small server process imports torch once and forks a child for each attempt, so that many real kills fit in
a few seconds. The children run the ordinary `train`; the kills come from outside at random moments, or from
inside in the middle of writing a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xnorpp.training import load_checkpoint
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.state.checkpoint import list_checkpoints

SETTINGS = (
    "model.options.width=4", "schedule.epochs=2", "data.batch_size=128", "run.log_steps=1", "run.threads=1",
    "run.save_steps=3", "run.tensorboard=false",
)  # fmt: skip

SERVER = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
import torch._dynamo  # which every optimizer imports: longer than one of these runs
import matplotlib.figure
from xnorpp.training import load_recipe, loop, train

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def arm(where, after):
    # Let the first `after` checkpoints be written; die inside the next one.
    count = [0]
    def once(original, act):
        def call(*arguments, **more):
            count[0] += 1
            return act(*arguments) if count[0] > after else original(*arguments, **more)
        return call
    if where == "half-written":
        write = os.write
        def half(descriptor, content):
            write(descriptor, bytes(content)[: len(content) // 2]); die()
        os.write = once(write, half)
    elif where == "before-rename":
        os.replace = once(os.replace, die)
    elif where == "after-rename":
        replace = os.replace
        os.replace = once(replace, lambda a, b: (replace(a, b), die()))

from xnorpp.training.records.record import describe_hardware, source_commit
source_commit(), describe_hardware()
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        try:
            if "where" in job:
                arm(job["where"], job["after"])
            train(load_recipe("digits-small-case4", job["set"]), out=job["out"], resume=True, quiet=True,
            device="cpu")
        except BaseException as error:
            print("failed", repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def _environment() -> dict[str, str]:
    """One thread, and no coverage: a killed process would leave a damaged data file."""
    return {**{key: os.environ[key] for key in os.environ if "COV" not in key}, "OMP_NUM_THREADS": "1"}


class Server:
    """Starts runs in children of one process that has everything imported."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=_environment(),
        )  # fmt: skip
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def run(self, out: Path, *, kill_at: int | None = None, delay: float = 0.0, **job: Any) -> int:
        """Train into `out` and give the exit status; negative is the signal that ended it.

        With `kill_at`, kill the run `delay` seconds after it has a checkpoint of that step or a later one.
        """
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps({"out": str(out), "set": SETTINGS, **job}), file=self.process.stdin, flush=True)
        pid = int(self.process.stdout.readline())
        if kill_at is not None:
            while _newest_step(out) < kill_at:
                time.sleep(0.002)
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("whole")
    assert server.run(out) == 0
    return out


def _newest_step(run: Path) -> int:
    return max((int(path.stem.partition("-")[2]) for path in list_checkpoints(run)), default=0)


def _check_equal(one: Path, other: Path, same: Callable[[Any, Any], bool]) -> None:
    a, b = load_checkpoint(one), load_checkpoint(other)
    assert same(a.weights, b.weights)
    assert a.meta["metrics"] == b.meta["metrics"]
    last = [load_checkpoint(max((path / "checkpoints").glob("step-*"))) for path in (one, other)]
    assert same(last[0].optimizer, last[1].optimizer)
    rows = [
        [(row["step"], row["kind"], row["loss"]) for row in read_metrics(path / "metrics.jsonl")]
        for path in (one, other)
    ]
    assert rows[0] == rows[1]
    assert not list(other.rglob("*.tmp"))


def test_kills_at_random_moments_change_nothing(
    tmp_path: Path, server: Server, whole: Path, same: Callable[[Any, Any], bool]
) -> None:
    moments = random.Random(1)
    statuses = [
        server.run(tmp_path, kill_at=step, delay=moments.uniform(0, 0.1)) for step in (0, 0, 3, 9, 15)
    ]
    assert statuses.count(-signal.SIGKILL) >= 3
    assert set(statuses) <= {0, -signal.SIGKILL}
    assert server.run(tmp_path) == 0
    _check_equal(whole, tmp_path, same)


@pytest.mark.parametrize("where", ["half-written", "before-rename", "after-rename"])
def test_kills_in_the_middle_of_writing_change_nothing(
    tmp_path: Path, server: Server, whole: Path, same: Callable[[Any, Any], bool], where: str
) -> None:
    for after in (0, 4):
        assert server.run(tmp_path, where=where, after=after) == -signal.SIGKILL
    assert server.run(tmp_path) == 0
    _check_equal(whole, tmp_path, same)


def test_the_command_itself_killed_and_resumed(
    tmp_path: Path, whole: Path, same: Callable[[Any, Any], bool]
) -> None:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "xnorpp",
        "train",
        "digits-small-case4",
        "--out",
        str(tmp_path),
        *settings,
    ]
    command += ["--device", "cpu", "--quiet"]
    environment = _environment()
    first = subprocess.Popen(command, env=environment)
    while _newest_step(tmp_path) < 6:
        assert first.poll() is None
        time.sleep(0.002)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    subprocess.run([*command, "--resume"], env=environment, check=True, timeout=120)
    _check_equal(whole, tmp_path, same)
