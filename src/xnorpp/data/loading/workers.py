"""Decoding processes of one loader: started by name, fed through pipes, writing into memory shared with the
parent.

They are processes of their own rather than copies of the caller's, so a script needs no `__main__` guard, no
torch or CUDA state is inherited, and the shared memory has no name that could outlive them: it is gone with
the last process.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType

import numpy as np

from xnorpp.data.dataset import UInt8Array
from xnorpp.data.loading.worker import Answer, Task, perform
from xnorpp.runtime.errors import FAILED, XnorppError

_WORKER = "from xnorpp.data.loading.worker import main; main()"


class WorkerDiedError(XnorppError, RuntimeError):
    """A decoding process ended; the message gives the cause."""

    exit_code = FAILED


class WorkerPool:
    """`count` processes; with 0, tasks are performed in the calling process when they are sent."""

    def __init__(self, count: int, size: int) -> None:
        if count < 0:
            raise ValueError(f"`workers` (={count}) must be at least 0")
        self.count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._load: list[int] = [0] * count
        self._done: list[Answer] = []
        self._shared: mmap.mmap | None = None
        self.memory: UInt8Array
        if count:
            self._start(size)
        else:
            self.memory = np.empty(size, np.uint8)

    def _start(self, size: int) -> None:
        descriptor = _anonymous_file()
        os.ftruncate(descriptor, size)
        self._shared = mmap.mmap(descriptor, size)
        self.memory = np.frombuffer(self._shared, np.uint8)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            for _ in range(self.count):
                mine, theirs = Pipe()
                arguments = [str(theirs.fileno()), str(descriptor), str(size)]
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _WORKER, *arguments],
                        pass_fds=(theirs.fileno(), descriptor),
                        stdin=subprocess.DEVNULL,
                        env=environment,
                    )
                )
                self._pipes.append(mine)
                theirs.close()
        except BaseException:
            self.close()
            raise
        finally:
            os.close(descriptor)

    def send(self, task: Task) -> None:
        """Gives the task to the process with the fewest tasks."""
        if not self.count:
            self._done.append(perform(task, self.memory))
            return
        worker = self._load.index(min(self._load))
        self._load[worker] += 1
        try:
            self._pipes[worker].send(task.plain())
        except (BrokenPipeError, ConnectionResetError):
            self._fail(worker)

    def receive(self) -> list[Answer]:
        """Waits for at least one answer; a process that died raises instead of hanging."""
        if not self.count:
            done, self._done = self._done, []
            return done
        answers = []
        for pipe in wait(self._pipes):
            worker = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                answers.append(Answer(*self._pipes[worker].recv()))
            except (EOFError, ConnectionResetError):
                self._fail(worker)
            self._load[worker] -= 1
        return answers

    @property
    def closed(self) -> bool:
        return bool(self.count) and not self._pipes

    @property
    def busy(self) -> bool:
        return bool(self._done) or any(self._load)

    def drain(self) -> None:
        """Waits until every task sent has been answered, and forgets the answers."""
        while self.busy:
            self.receive()

    def _fail(self, worker: int) -> None:
        try:
            code = self._processes[worker].wait(timeout=5)
        except subprocess.TimeoutExpired:
            how = "closed its pipe"
        else:
            how = (
                f"was ended by signal {-code} (9 is often lack of memory)"
                if code < 0
                else f"ended with status {code}"
            )
        self.close()
        raise WorkerDiedError(f"decoding process {worker} of {self.count} {how}; its error, if any, is above")

    def close(self) -> None:
        """Ends the processes.

        They see their pipe closed; one that does not leave in five seconds is killed.
        """
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + 5
        for process in self._processes:
            try:
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._pipes, self._processes = [], []
        self._load = [0] * self.count
        self._done = []
        self._shared = None  # unmapped when the last array over it is gone

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _anonymous_file() -> int:
    """A file in memory without a name, where the system has such; otherwise an unlinked temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("xnorpp-batches")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
