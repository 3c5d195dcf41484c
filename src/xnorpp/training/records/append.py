"""A file that grows by whole records, also when the disk is full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from xnorpp.training.state.checkpoint import CheckpointWriteError


class AppendedFile:
    """Appends records to a file, unbuffered: each is in the file, or an error is raised and it is not.

    Args:
        path: The file, which is created if it does not exist, and its folder too.

    Raises:
        CheckpointWriteError: The file cannot be written; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise self._failed(error) from error

    def append(self, record: bytes) -> None:
        """Write one record at the end."""
        before = os.fstat(self._handle).st_size
        try:
            left = memoryview(record)
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self._handle, before)
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _failed(self, error: OSError) -> CheckpointWriteError:
        return CheckpointWriteError(
            f"{self.path} could not be written: {error.strerror or error}; "
            "`--resume` continues from the last checkpoint."
        )
