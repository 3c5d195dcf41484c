"""Streaming a set too large for memory: worker processes decode ahead into shared memory, the device
normalises.

An unreadable image is named once in `skipped`. In training its place is taken by the next readable sample
in the data set's order (with that sample's label and the same crop), so that the batch stays full and does
not depend on timing or on the number of workers; in testing it is left out. More than `max_skipped` of them
end the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from xnorpp.data.dataset import (
    Augment,
    DatasetError,
    Int64Array,
    Skipped,
    StreamDataset,
    UInt8Array,
    skip_limit,
)
from xnorpp.data.loading.augmented import BatchAugment
from xnorpp.data.loading.loader import Batch, Normaliser, to_device
from xnorpp.data.loading.order import BoolArray, Share
from xnorpp.data.loading.worker import Answer, Geometry, Item, Task
from xnorpp.data.loading.workers import WorkerPool

_ITEMS_A_TASK = 16


@dataclass
class _Pending:
    """A batch being decoded.

    `missing` counts tasks not yet answered; `dropped` are positions left out (testing only).
    """

    epoch: int
    step: int
    slot: int
    indices: Int64Array
    tops: Int64Array
    lefts: Int64Array
    flips: BoolArray
    missing: int = 0
    dropped: list[int] = field(default_factory=list)


class StreamLoader:
    """See the module's docstring and `make_loader`."""

    def __init__(
        self,
        dataset: StreamDataset,
        share: Share,
        augment: Augment,
        device: torch.device,
        seed: int,
        size: int | None,
        channels_last: bool,
        *,
        workers: int,
        fast_decode: bool,
        max_skipped: int | None,
        prefetch: int,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"`prefetch` (={prefetch}) must be at least 1")
        self.dataset, self.share, self.augment, self.device, self.seed = dataset, share, augment, device, seed
        self.batch_size, self.samples = share.batch_size, len(dataset)
        self.skipped: list[Skipped] = []
        self._bad: set[int] = set()
        self._limit = skip_limit(len(dataset), max_skipped)
        preprocess = dataset.info.preprocess(size)
        self._geometry = Geometry(
            dataset.info.resize_for(preprocess.side), preprocess.side, preprocess.channels, fast_decode
        )
        self._normalise = Normaliser(preprocess, device, channels_last)
        self._looks = BatchAugment(augment, share, seed, len(dataset.classes), device)
        self._slots = min(prefetch, max(1, share.steps)) + 1 if workers else 1
        self._workers = workers
        self._pool: WorkerPool | None = None
        self._events: list[torch.cuda.Event | None] = [None] * self._slots
        self._stream: torch.cuda.Stream | None = None
        self._previous: torch.cuda.Event | None = None
        self._tasks: dict[int, tuple[_Pending, list[int]]] = {}
        self._ticket = 0
        self._running: object = None

    @property
    def steps_per_epoch(self) -> int:
        return self.share.steps

    @property
    def _slot_bytes(self) -> int:
        return self.batch_size * self._geometry.bytes_per_image

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Starting an epoch ends one that was left in the middle: both would use the same shared memory."""
        steps = self.share.order(self.seed, epoch, self.dataset.groups)
        pool = self._open()
        self._settle_all(pool)
        token = self._running = object()
        pending: deque[_Pending] = deque()
        following = start_step
        try:
            for step in range(start_step, len(steps)):
                while following < len(steps) and len(pending) < max(1, self._slots - 1):
                    pending.append(self._dispatch(pool, epoch, following, steps[following]))
                    following += 1
                batch = pending.popleft()
                assert batch.step == step
                while batch.missing:
                    for answer in pool.receive():
                        self._settle(pool, answer)
                yield self._collect(pool, batch)
                if self._running is not token:
                    raise RuntimeError(
                        "this epoch cannot continue: another one of the same loader was started"
                    )
        finally:
            if self._running is token:
                self._running = None
                self._settle_all(pool)

    def _settle_all(self, pool: WorkerPool) -> None:
        """Discards the tasks of an earlier epoch."""
        self._tasks.clear()
        if pool.closed:  # a process died: the next epoch starts new ones
            self._pool = None
        else:
            pool.drain()

    def _open(self) -> WorkerPool:
        if self._pool is None:
            self._pool = WorkerPool(self._workers, self._slots * self._slot_bytes)
            if self.device.type == "cuda" and self._workers:  # pragma: cuda only
                _pin(self._pool.memory)
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
                self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return self._pool

    def _dispatch(self, pool: WorkerPool, epoch: int, step: int, indices: Int64Array) -> _Pending:
        margin = self._geometry.resize - self._geometry.crop
        count = len(indices)
        tops = lefts = np.full(count, margin // 2, np.int64)
        flips = np.zeros(count, bool)
        if self.augment.crop or self.augment.flip:
            drawn_tops, drawn_lefts, drawn_flips = self.share.draw(self.seed, epoch, step, margin)
            if self.augment.crop:
                tops, lefts = drawn_tops, drawn_lefts
            flips = drawn_flips & self.augment.flip
        slot = step % self._slots
        event = self._events[slot]
        if event is not None:
            event.synchronize()  # the device has taken the slot's former batch
        batch = _Pending(epoch, step, slot, indices.copy(), tops, lefts, flips)
        if self._bad:
            for position, index in enumerate(batch.indices):
                if int(index) in self._bad:
                    self._replace(batch, position)
        dropped = set(batch.dropped)
        todo = [position for position in range(count) if position not in dropped]
        for start in range(0, len(todo), _ITEMS_A_TASK):
            self._send(pool, batch, todo[start : start + _ITEMS_A_TASK])
        return batch

    def _send(self, pool: WorkerPool, batch: _Pending, positions: list[int]) -> None:
        """Sends runs of adjacent positions as one task each.

        A task's pixels lie one after the other in its slot.
        """
        runs: list[list[int]] = []
        for position in positions:
            if runs and runs[-1][-1] + 1 == position:
                runs[-1].append(position)
            else:
                runs.append([position])
        for run in runs:
            items = [
                Item(self.dataset.blob(int(batch.indices[p])), int(batch.tops[p]), int(batch.lefts[p]))
                for p in run
            ]
            offset = batch.slot * self._slot_bytes + run[0] * self._geometry.bytes_per_image
            self._ticket += 1
            self._tasks[self._ticket] = (batch, run)
            batch.missing += 1
            pool.send(Task(self._ticket, offset, self._geometry, items))

    def _settle(self, pool: WorkerPool, answer: Answer) -> None:
        batch, positions = self._tasks.pop(answer.ticket)
        batch.missing -= 1
        again = []
        for place, reason in answer.failures:
            position = positions[place]
            self._skip(int(batch.indices[position]), reason)
            if self._replace(batch, position):
                again.append(position)
        self._send(pool, batch, again)

    def _skip(self, index: int, reason: str) -> None:
        if index in self._bad:
            return
        self._bad.add(index)
        self.skipped.append(Skipped(self.dataset.sample_name(index), reason))
        if len(self.skipped) > self._limit:
            named = "; ".join(f"{name} ({why})" for name, why in self.skipped[-3:])
            raise DatasetError(
                f"{len(self.skipped)} images of {self.dataset.name} could not be read, more than "
                f"`max_skipped` (={self._limit}); the last are {named}"
            )

    def _replace(self, batch: _Pending, position: int) -> bool:
        """Training: the next index not known to be bad takes the place. Testing: the place is dropped."""
        if not self.share.train:
            batch.dropped.append(position)
            return False
        index = int(batch.indices[position])
        for distance in range(1, self.samples):
            following = (index + distance) % self.samples
            if following not in self._bad:
                batch.indices[position] = following
                return True
        raise DatasetError(f"no image of {self.dataset.name} can be read")

    def _collect(self, pool: WorkerPool, batch: _Pending) -> Batch:
        """The batch on the device. A GPU copies and normalises it on a stream of its own, beside the step
        before it; it waits for the end of the step before that, so no more than two batches are there.
        """
        if self._stream is None:
            return self._take(pool, batch)
        current = torch.cuda.current_stream(self.device)  # pragma: cuda only
        if self._previous is not None:  # pragma: cuda only
            self._stream.wait_event(self._previous)
        self._previous = current.record_event()  # pragma: cuda only
        with torch.cuda.stream(self._stream):  # pragma: cuda only
            images, labels = self._take(pool, batch)
        current.wait_stream(self._stream)  # pragma: cuda only
        images.record_stream(current)  # pragma: cuda only
        labels.record_stream(current)  # pragma: cuda only
        return images, labels  # pragma: cuda only

    def _take(self, pool: WorkerPool, batch: _Pending) -> Batch:
        side, channels = self._geometry.crop, self._geometry.channels
        count = len(batch.indices)
        start = batch.slot * self._slot_bytes
        pixels = pool.memory[start : start + count * self._geometry.bytes_per_image]
        shared = torch.from_numpy(pixels).reshape(count, side, side, channels)
        labels = to_device(self.dataset.labels[batch.indices], self.device)
        if self.device.type == "cuda":  # pragma: cuda only
            images = shared.to(self.device, non_blocking=True)
            self._events[batch.slot] = torch.cuda.current_stream(self.device).record_event()
        else:
            images = shared.to(self.device)
        if self.augment.flip:
            flips = to_device(batch.flips, self.device)
            images = torch.where(flips[:, None, None, None], images.flip(2), images)
        if batch.dropped:
            kept = to_device(np.setdiff1d(np.arange(count), batch.dropped), self.device)
            images, labels = images[kept], labels[kept]
        images = self._normalise(self._looks.pixels(images, batch.epoch, batch.step))
        return self._looks.finish(images, labels, batch.epoch, batch.step)

    def close(self) -> None:
        """Ends the decoding processes; a later `epoch` starts new ones."""
        if self._pool is not None:
            if self.device.type == "cuda" and self._workers:  # pragma: cuda only
                _unpin(self._pool.memory)
            self._pool.close()
            self._pool = None

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None:
            self.close()


def _pin(memory: UInt8Array) -> None:  # pragma: cuda only
    """Page-locks the shared memory: batches go to the device straight from where they were decoded."""
    size = -(-memory.nbytes // 4096) * 4096  # the mapping ends on a page
    torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, size, 0)  # type: ignore[no-untyped-call]


def _unpin(memory: UInt8Array) -> None:  # pragma: cuda only
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)  # type: ignore[no-untyped-call]
