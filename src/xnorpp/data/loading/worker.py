"""What a decoding process does: takes tasks from a pipe, writes pixels into shared memory, answers with what
failed.

It imports numpy and Pillow only, so that it starts quickly, and it ends by itself when its parent is gone.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from xnorpp.data.dataset import UInt8Array
from xnorpp.runtime.decode import Blob, CorruptImageError, decode_blob


class Geometry(NamedTuple):
    """How every image of a task is made.

    Resized to `resize`, cropped to `crop`, `channels`; see `decode` for `fast`.
    """

    resize: int
    crop: int
    channels: int
    fast: bool = False

    @property
    def bytes_per_image(self) -> int:
        return self.crop * self.crop * self.channels


class Item(NamedTuple):
    """One image: where it is, and the crop's corner."""

    blob: Blob
    top: int
    left: int


class Task(NamedTuple):
    """Decode `items` one after the other into the shared memory from byte `offset` on."""

    ticket: int
    offset: int
    geometry: Geometry
    items: list[Item]

    def plain(self) -> Any:
        """For the pipe: pickling named tuples takes twenty times as long, and the parent does it for all."""
        items = [(*item.blob, item.top, item.left) for item in self.items]
        return self.ticket, self.offset, tuple(self.geometry), items

    @classmethod
    def from_plain(cls, plain: Any) -> Task:
        ticket, offset, geometry, items = plain
        return cls(
            ticket,
            offset,
            Geometry(*geometry),
            [Item(Blob(path, start, size), top, left) for path, start, size, top, left in items],
        )


class Answer(NamedTuple):
    """`failures`: (position in the task, reason)."""

    ticket: int
    failures: list[tuple[int, str]]


def perform(task: Task, memory: UInt8Array) -> Answer:
    """Decodes a task's images. Where one cannot be decoded, the memory is left as it is."""
    geometry = task.geometry
    count, side = len(task.items), geometry.crop
    stop = task.offset + count * geometry.bytes_per_image
    out = memory[task.offset : stop].reshape(count, side, side, geometry.channels)
    failures = []
    for position, item in enumerate(task.items):
        try:
            out[position] = decode_blob(
                item.blob, geometry.resize, side, item.top, item.left, geometry.channels, fast=geometry.fast
            )
        except CorruptImageError as error:
            failures.append((position, str(error)))
    return Answer(task.ticket, failures)


def main() -> None:
    """Arguments: the pipe and the shared memory, as inherited file descriptors, and the memory's size."""
    pipe, memory, size = (int(value) for value in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    with Connection(pipe) as connection, mmap.mmap(memory, size) as shared:
        os.close(memory)
        pixels = np.frombuffer(shared, np.uint8)
        try:
            while True:
                connection.send(tuple(perform(Task.from_plain(connection.recv()), pixels)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            del pixels
