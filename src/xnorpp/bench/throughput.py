"""Images per second of a model that several callers keep busy, and how long each of them waits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from xnorpp.bench.engine import random_images
from xnorpp.inspect.stopwatch import quantile
from xnorpp.runtime import Program, load
from xnorpp.runtime.machine import available_cores

WARM = 2  # calls of each stream before the clock starts


@dataclass(frozen=True)
class Throughput:
    """One setting: images per second of all streams together, and the seconds of a call.

    Attributes:
        model: Its name in the report.
        isa: The kernels.
        batch: Images per call.
        threads: Threads per call.
        streams: Callers at the same time.
        seconds: How long was measured, from the first call to the end of the last.
        calls: Calls that were finished.
        p50: Seconds of the median call.
        p90: Seconds that nine of ten calls took at most.
        p99: Seconds that 99 of 100 calls took at most.
        slowest: Seconds of the slowest call.
    """

    model: str
    isa: str
    batch: int
    threads: int
    streams: int
    seconds: float
    calls: int
    p50: float
    p90: float
    p99: float
    slowest: float

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.calls * self.batch / self.seconds


def measure_throughput(
    program: Program,
    *,
    title: str = "model",
    batch: int = 1,
    threads: int = 1,
    streams: int | None = None,
    seconds: float = 5.0,
    isa: str | None = None,
) -> Throughput:
    """Call a model from several threads for some time.

    Args:
        program: The packed network.
        title: Its name in the report.
        batch: Images per call.
        threads: Threads per call.
        streams: Callers at the same time; by default as many as fill the cores.
        seconds: How long; every stream finishes the call that it has begun.
        isa: The CPU kernels; the fastest available by default.

    Raises:
        ValueError: An argument is wrong.
    """
    if min(batch, threads, 1 if streams is None else streams) < 1 or not seconds > 0:
        raise ValueError(
            f"`batch` (={batch}), `threads` (={threads}) and `streams` (={streams}) must be at least 1, and "
            f"`seconds` (={seconds}) above 0"
        )
    count = streams or max(1, available_cores() // threads)
    model = load(program, threads=threads, isa=isa)
    taken: list[list[float]] = [[] for _ in range(count)]
    ends = [0.0] * count
    failed: list[BaseException] = []
    ready, stop = threading.Barrier(count + 1), threading.Event()

    def call_repeatedly(stream: int) -> None:
        try:
            images = random_images(batch, program.input_shape, seed=stream)
            for _ in range(WARM):
                model(images)
            ready.wait()
            now = time.perf_counter()
            while not stop.is_set():
                model(images)
                begin, now = now, time.perf_counter()
                taken[stream].append(now - begin)
            ends[stream] = now
        except BaseException as error:
            failed.append(error)
            ready.abort()

    callers = [threading.Thread(target=call_repeatedly, args=(number,)) for number in range(count)]
    for caller in callers:
        caller.start()
    try:
        ready.wait()
        start = time.perf_counter()
        stop.wait(seconds)
    except threading.BrokenBarrierError:
        start = 0.0
    except BaseException:  # Ctrl-C: nobody may be left waiting for the start
        ready.abort()
        raise
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    if failed:
        raise next((one for one in failed if not isinstance(one, threading.BrokenBarrierError)), failed[0])
    calls = sorted(time for one in taken for time in one)
    return Throughput(
        title,
        model.isa,
        batch,
        threads,
        count,
        max(ends) - start,
        len(calls),
        quantile(calls, 0.5),
        quantile(calls, 0.9),
        quantile(calls, 0.99),
        calls[-1],
    )
