"""One run per output folder: a lock that ends with the process that holds it, however it ends.

The lock is the operating system's (a POSIX record lock on `.lock` in the folder), not the existence of a
file: nothing is left to clean up after a kill. It belongs to the process alone, so forked workers that
outlive a killed run do not hold it. On Windows the file is locked by the C runtime, with the same effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from xnorpp.runtime.errors import XnorppError
from xnorpp.training.state.checkpoint import CheckpointWriteError

NAME = ".lock"
WAIT = 0.2  # seconds between looks at a lock that another process holds
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
# A record lock does not exclude its own process. (pid, folder): a forked child inherits the entries only.
_held: set[tuple[int, str]] = set()


class RunLocked(XnorppError, RuntimeError):
    """Another run writes to the folder; the message names its process."""


@contextlib.contextmanager
def one_run(out: Path, *, active: bool = True) -> Iterator[None]:
    """Hold the folder `out` for one run.

    Args:
        out: The folder, which is created if it does not exist, and then removed again if it stays empty.
        active: False in the processes of a distributed run that write nothing.

    Raises:
        RunLocked: Another process, or this one, trains into the folder.
        CheckpointWriteError: The folder cannot be created or written to.

    Example:
        >>> with one_run(Path("runs/digits")):     # doctest: +SKIP
        ...     ...
    """
    if not active:
        yield
        return
    existed = out.exists()
    if (os.getpid(), os.path.realpath(out)) in _held:
        raise _taken(out, str(os.getpid()))
    try:
        with _holding(out, _acquire(out)):
            yield
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                out.rmdir()  # only if it is empty


@contextlib.contextmanager
def in_turn(folder: Path, key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold `folder` after whichever process holds it now.

    Args:
        folder: The folder, which is created if it does not exist.
        key: The recipe's key that names the folder, for the error.
        waiting: Called once if another process holds the folder.

    Raises:
        CheckpointWriteError: The folder cannot be created or written to.
    """
    handle = None
    while handle is None:
        try:
            handle = _acquire(folder, key)
        except RunLocked:
            waiting()
            waiting = _nothing
            time.sleep(WAIT)
    with _holding(folder, handle):
        yield


def _nothing() -> None:
    """What is said about a second wait."""


@contextlib.contextmanager
def _holding(out: Path, handle: int) -> Iterator[None]:
    mine = (os.getpid(), os.path.realpath(out))
    _held.add(mine)
    try:
        yield
    finally:
        _held.discard(mine)
        with contextlib.suppress(OSError):
            (out / NAME).unlink()  # before it is released: nobody else can hold the file of that name
        os.close(handle)


def _acquire(out: Path, key: str = "out") -> int:
    path = out / NAME
    while True:
        made = False
        try:
            out.mkdir(parents=True, exist_ok=True)
            made = True
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            if made and isinstance(error, FileNotFoundError) and not os.path.lexists(out):
                continue  # a run that ended removed the folder between the two lines
            raise CheckpointWriteError(
                f"`{key}` (={str(out)!r}) cannot be written to: {error.strerror or error}."
            ) from error
        try:
            if not _lock(handle, path):
                raise _taken(out, os.read(handle, 20).decode("ascii", "replace").strip())
            if _same_file(handle, path):
                with contextlib.suppress(OSError):  # on a full disk the message names no process
                    os.truncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the run before ended, and removed the file, between opening and locking


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int, path: Path) -> bool:
    """Whether the lock was free. A file system without locks is treated as free, with a warning."""
    try:
        if sys.platform == "win32":  # pragma: no cover
            import msvcrt

            os.lseek(handle, 1 << 20, os.SEEK_SET)  # after the text, which others must be able to read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        if error.errno not in _UNSUPPORTED:
            raise
        warnings.warn(
            f"{path} cannot be locked ({error.strerror}): nothing prevents a second run in the same folder.",
            stacklevel=4,
        )
    return True


def _taken(out: Path, holder: str) -> RunLocked:
    who = f"process {holder}" if holder.isdigit() else "another process"
    return RunLocked(
        f"`out` (={str(out)!r}) is being written by {who}; wait for it, stop it, or choose another folder."
    )
