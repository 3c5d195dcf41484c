"""Python processes that start in a few milliseconds, for tests that start many.

`python -c "import torch"` takes a second of a processor, and a first optimizer imports half as much again.
`run` and `start` are `subprocess.run` and `subprocess.Popen` for command lines that begin with
`sys.executable`; the process is forked from one that has imported torch (`server.py`), and is in everything
else a new one: its arguments, environment, folder, standard streams, modules of xnorpp, end and exit status.
It has one thread of OpenMP. A few tests start an interpreter as a user does: the command that is killed and
resumed, and what torchrun starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("server.py")
# A measurement of coverage begins where the interpreter starts.
FORKS = hasattr(os, "fork") and hasattr(socket, "send_fds") and "COVERAGE_PROCESS_START" not in os.environ


class _Server:
    def __init__(self) -> None:
        self.link, other = socket.socketpair()
        # The number of threads is read where torch is imported. Whether there is a GPU is not asked of the
        # driver, after which no child of a fork could use it.
        more = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        environment = {**os.environ, **more}
        command = [sys.executable, str(SERVER), str(other.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[other.fileno()], env=environment)
        other.close()
        self.answers = self.link.makefile()
        self.owner = os.getpid()

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        content = json.dumps(request).encode()
        socket.send_fds(self.link, [len(content).to_bytes(8, "big")], list(descriptors))
        self.link.sendall(content)
        return json.loads(self.answers.readline())

    def close(self) -> None:
        if os.getpid() == self.owner:
            self.answers.close()
            self.link.close()
            self.process.wait(timeout=30)


@functools.cache
def _server() -> _Server:
    made = _Server()
    atexit.register(made.close)
    return made


class Process:
    """What tests use of `subprocess.Popen`; output and errors go into files, of which `communicate` is for
    those that nobody gave."""

    def __init__(
        self,
        command: Sequence[object],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | None = None,
    ) -> None:
        executable, *rest = map(str, command)
        assert executable == sys.executable
        self.returncode: int | None = None
        self.out = tempfile.TemporaryFile()  # noqa: SIM115  # until `communicate`
        self.err = tempfile.TemporaryFile()  # noqa: SIM115
        job = {
            "command": rest, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env),
        }  # fmt: skip
        outputs = [self.out, self.err] if stdout is None else [stdout, stdout]
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), *(file.fileno() for file in outputs)]
            self.pid: int = _server().ask(job, streams)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _server().ask({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return _text(self.out), _text(self.err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    with file:
        return file.read().decode()


def start(
    command: Sequence[object], *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None
) -> Process | subprocess.Popen[str]:
    """A process whose output and errors `communicate` gives as text."""
    if FORKS:
        return Process(command, cwd=cwd, env=env)
    return subprocess.Popen(
        [str(part) for part in command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def popen(command: Sequence[object], *, stdout: IO[Any], stdin: int, stderr: int) -> Any:
    """`subprocess.Popen` of a process without input whose errors go where its output does."""
    assert (stdin, stderr) == (subprocess.DEVNULL, subprocess.STDOUT)
    if FORKS:
        return Process(command, stdout=stdout)
    return subprocess.Popen([str(part) for part in command], stdout=stdout, stdin=stdin, stderr=stderr)


def run(
    command: Sequence[object],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with its output and errors as text."""
    process = start(command, cwd=cwd, env=env)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    done = subprocess.CompletedProcess(list(command), process.wait(), out, err)
    if check:
        done.check_returncode()
    return done
