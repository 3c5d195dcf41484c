"""Requests from many clients, answered by a few threads in batches.

Each thread takes its share of what is waiting, decodes it, and calls the model once for all of it. The model
runs with one thread per call: whole calls side by side waste nothing on waiting for each other. Decoding and
the engine release the interpreter's lock, so the event loop keeps running.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from xnorpp.runtime import PackedModel
from xnorpp.runtime.choices import check_whole
from xnorpp.runtime.decode import load_image
from xnorpp.runtime.errors import XnorppError
from xnorpp.runtime.predict import Guess, as_input, guesses, needed_preprocess, probabilities
from xnorpp.serve.metrics import Metrics


class Busy(XnorppError):
    """More requests are waiting than the queue may hold; the client should try again later.

    Example:
        >>> from xnorpp.serve import Busy
        >>> try:
        ...     raise Busy("256 images are waiting")
        ... except Busy as error:
        ...     print(error)
        256 images are waiting
    """


class Stopping(XnorppError):
    """The server is being stopped and takes no further requests.

    Example:
        >>> import asyncio
        >>> import xnorpp
        >>> from xnorpp.serve import Batcher, Stopping
        >>> batcher = Batcher(xnorpp.load("cifar10-resnet20"), workers=1)
        >>> batcher.close()
        >>> try:
        ...     asyncio.run(batcher.submit(b"...", top=1))
        ... except Stopping:
        ...     print("stopped")
        stopped
    """


@dataclass
class Job:
    """One image that waits for its answer."""

    blob: bytes
    top: int
    future: asyncio.Future[tuple[Guess, ...]]
    loop: asyncio.AbstractEventLoop
    arrived: float = field(default_factory=time.monotonic)

    def answer(self, result: tuple[Guess, ...] | Exception) -> None:
        """Hand the result to the event loop; called from a worker thread."""

        def hand_over() -> None:
            if self.future.done():  # the client went away, or the time was up
                return
            if isinstance(result, Exception):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)

        self.loop.call_soon_threadsafe(hand_over)


class Batcher:
    """Worker threads that classify images in batches.

    Args:
        model: A packed model that classifies images.
        workers: Threads, each of which decodes and runs its own batches.
        batch: Images per call of the model, at most.
        waiting: Images that may wait; `submit` raises `Busy` beyond it.
        metrics: What is counted.

    Example:
        >>> import asyncio, io
        >>> from PIL import Image
        >>> import xnorpp
        >>> from xnorpp.serve import Batcher
        >>> Image.new("RGB", (32, 32), "blue").save(file := io.BytesIO(), "PNG")
        >>> batcher = Batcher(xnorpp.load("cifar10-resnet20"), workers=1)
        >>> guesses = asyncio.run(batcher.submit(file.getvalue(), top=3))
        >>> len(guesses)
        3
        >>> batcher.close()
    """

    def __init__(
        self,
        model: PackedModel,
        *,
        workers: int = 2,
        batch: int = 8,
        waiting: int = 256,
        metrics: Metrics | None = None,
    ) -> None:
        for name, value in (("workers", workers), ("batch", batch), ("waiting", waiting)):
            check_whole(name, value)
        self.model = model
        self.preprocess = needed_preprocess(model)
        self.metrics = metrics or Metrics()
        self._batch, self._limit = batch, waiting
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"xnorpp-serve-{index}", daemon=True)
            for index in range(workers)
        ]
        model.start()
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many images wait for a worker."""
        return len(self._jobs)

    async def submit(self, blob: bytes, top: int = 5) -> tuple[Guess, ...]:
        """The most likely classes of an encoded image.

        Raises:
            Busy: Too many images are waiting.
            Stopping: `close` was called.
            CorruptImageError: The bytes are not an image that can be decoded.
        """
        loop = asyncio.get_running_loop()
        job = Job(blob, top, loop.create_future(), loop)
        with self._changed:
            if self._stopping:
                raise Stopping("the server is being stopped")
            if len(self._jobs) >= self._limit:
                raise Busy(f"{self._limit} images are waiting already")
            self._jobs.append(job)
            self._changed.notify()
        return await job.future

    def close(self) -> None:
        """Answer what is waiting, then end the threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _take(self) -> list[Job]:
        """This worker's share of what is waiting; empty when there is nothing left and nothing will come."""
        with self._changed:
            while not self._jobs and not self._stopping:
                self._changed.wait()
            share = -(-len(self._jobs) // len(self._threads))
            return [self._jobs.popleft() for _ in range(min(share, self._batch))]

    def _work(self) -> None:
        while jobs := self._take():
            jobs = [job for job in jobs if not job.future.done()]
            try:
                self._answer(jobs)
            except Exception as error:  # whatever it is, every client must get an answer
                for job in jobs:
                    job.answer(error)

    def _answer(self, jobs: list[Job]) -> None:
        good: list[Job] = []
        pixels = []
        for job in jobs:
            try:
                pixels.append(self.preprocess.apply(load_image(job.blob)))
                good.append(job)
            except ValueError as error:
                job.answer(error)
        if not good:
            return
        start = time.monotonic()
        outputs = self.model(as_input(self.model.program, self.preprocess, np.stack(pixels)))
        self.metrics.batch(len(good), time.monotonic() - start)
        for job, scores in zip(good, probabilities(self.model.program, outputs)):
            job.answer(guesses(self.model.labels, scores, job.top))
