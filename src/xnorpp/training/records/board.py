"""TensorBoard's event files, written in this thread: TensorBoard's own writer works in another one, which
ends with a traceback when the disk is full.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xnorpp.training.records.append import AppendedFile


class Board:
    """One event file. `open_board` makes it."""

    def __init__(self, folder: Path, from_step: int, protos: Any, checked: Any) -> None:
        self._protos, self._checked = protos, checked
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendedFile(folder / name)
        self._write(file_version="brain.Event:2")
        if from_step:  # what an earlier process wrote after its last checkpoint is left out
            start = protos.SessionLog(status=protos.SessionLog.START)
            self._write(step=from_step + 1, session_log=start)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers under their names."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
        self._write(step=step, summary=Summary(value=numbers))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: Any) -> None:
        event = self._protos.Event(wall_time=time.time(), **fields).SerializeToString()
        length = len(event).to_bytes(8, "little")  # the framing of TFRecord files
        self._file.append(length + self._checked(length) + event + self._checked(event))


def open_board(folder: Path, from_step: int) -> Board | None:
    """The event file of a run that begins or continues after `from_step`; None if TensorBoard is not
    installed.

    Raises:
        CheckpointWriteError: The file cannot be written.
    """
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    except ImportError:
        return None
    return Board(folder, from_step, event_pb2, lambda data: int(masked_crc32c(data)).to_bytes(4, "little"))
