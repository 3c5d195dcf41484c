"""One run per output folder, and nothing left behind by a killed one."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

from xnorpp.training import load_recipe, train
from xnorpp.training.state import lock
from xnorpp.training.state.checkpoint import CheckpointWriteError
from xnorpp.training.state.lock import RunLocked, one_run

SETTINGS = ["schedule.epochs=1", "model.options.width=4", "data.batch_size=256", "run.tensorboard=false"]
HOLDER = """
import os, sys, time
from pathlib import Path
from xnorpp.training.state.lock import one_run
with one_run(Path(sys.argv[1])):
    if os.fork() == 0:  # a worker that outlives the run
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holder(out: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_second_run_is_refused_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "xnorpp",
        "train",
        "digits-small-case4",
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    command += [part for setting in SETTINGS for part in ("--set", setting)]
    with holder(out) as first:
        done = warm.run(command)
        assert done.returncode == 2
        assert f"is being written by process {first.pid}; wait for it, stop it, or choose" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not list(out.glob("*.json*"))
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert (out / lock.NAME).exists()
        done = warm.run([*command, "--resume"])
        assert done.returncode == 0, done.stderr
    assert not (out / lock.NAME).exists()
    assert (out / "model.safetensors").exists()


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with one_run(tmp_path / "a"):
        with pytest.raises(RunLocked, match=f"is being written by process {os.getpid()}"):
            train(load_recipe("digits-small-case4", SETTINGS), out=tmp_path / "a", quiet=True, device="cpu")
        with one_run(tmp_path / "b"), one_run(tmp_path / "a", active=False):
            assert (tmp_path / "b").is_dir()
    assert list(tmp_path.iterdir()) == []  # folders that stayed empty are gone
    with one_run(tmp_path / "a"):
        pass


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with one_run(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(CheckpointWriteError, match=r"`out` .* cannot be written to: Not a directory")
    with refused, one_run(tmp_path / "file" / "run"):
        pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    warned = pytest.warns(UserWarning, match="cannot be locked .* nothing prevents a second run")
    with warned, one_run(tmp_path / "run"):
        pass
