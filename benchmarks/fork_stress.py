"""Forks a process with a loaded model thousands of times, in every state, and looks for children that hang.

    python benchmarks/fork_stress.py [--forks 10000] [--threads 4] [--callers 6] [--timeout 20] [--no-record]

Half of the forks happen while other threads call the model. Children leave by `sys.exit`, delete the model,
call it and compare the answer, fork a child of their own, or call it from threads of their own. Prints the
counts and the time, and appends a row to results/soak.jsonl; the exit status is 1 if a child hung (it is
killed after the timeout), crashed, or gave another answer.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.runtime import load
from xnorpp.runtime.format.program import INPUT, Program

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from random_programs import Builder

ROOT = Path(__file__).resolve().parents[1]


def small_network() -> Program:
    """A real and a binary convolution: large enough that threads share it."""
    rng = np.random.default_rng(0)
    b = Builder((3, 24, 24))
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    real = rng.standard_normal((32, 3, 3, 3)).astype(np.float32)
    y = b.emit("conv2d", INPUT, attrs=attrs, tensors={"weight": real})
    bits = rng.integers(0, 256, (32, 3, 3, 4), dtype=np.uint8)
    y = b.emit("binary_conv2d", b.emit("sign", y), attrs={**attrs, "pad_value": 0}, tensors={"weight": bits})
    return b.program(b.emit("flatten", b.emit("global_avg_pool", b.emit("affine", y))))


class Stress:
    def __init__(self, threads: int, timeout: float) -> None:
        self.model: Any = load(small_network(), threads=threads)
        self.x = np.random.default_rng(1).integers(0, 256, (6, 24, 24, 3), dtype=np.uint8)
        self.expected = self.model(self.x)
        self.timeout = timeout
        self.outcomes: Counter[str] = Counter()
        self.states: Counter[str] = Counter()

    def right(self) -> bool:
        whole, single = self.model(self.x), self.model(self.x[:1])
        return np.array_equal(whole, self.expected) and np.array_equal(single, self.expected[:1])

    def leave(self) -> None:
        sys.exit(0)

    def delete(self) -> None:
        self.model = None
        gc.collect()
        os._exit(0)

    def call(self) -> None:
        os._exit(0 if self.right() else 1)

    def call_and_leave(self) -> None:
        sys.exit(0 if self.right() else 1)

    def call_and_delete(self) -> None:
        good = self.right()
        self.model = None
        gc.collect()
        os._exit(0 if good else 1)

    def fork_again(self) -> None:
        good = self.right()
        child = os.fork()
        if child == 0:
            self.call()
        os._exit(0 if good and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else 1)

    def call_from_threads(self) -> None:
        with ThreadPoolExecutor(3) as pool:
            good = all(pool.map(lambda _: self.right(), range(6)))
        os._exit(0 if good else 1)

    def one(self, number: int, state: str) -> None:
        ways = (
            self.leave, self.delete, self.call, self.call_and_leave, self.call_and_delete, self.fork_again,
            self.call_from_threads,
        )  # fmt: skip
        way = ways[number % len(ways)]
        self.states[f"{way.__name__}, parent {state}"] += 1
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)  # a child of the child ends with it
            try:
                way()
            except SystemExit:
                raise
            except BaseException:
                os._exit(2)
        deadline = time.monotonic() + self.timeout
        pause = 0.0002
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        if done[0] == 0:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self.outcomes["hung"] += 1
            print(f"fork {number} hung: {way.__name__}, parent {state}", flush=True)
        elif (status := os.waitstatus_to_exitcode(done[1])) != 0:
            self.outcomes["failed"] += 1
            print(f"fork {number} ended with status {status}: {way.__name__}, parent {state}", flush=True)
        else:
            self.outcomes["ended well"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--forks", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4, help="of the model")
    parser.add_argument("--callers", type=int, default=6, help="threads that call the model at the fork")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds until a child counts as hung")
    parser.add_argument("--no-record", action="store_true", help="do not append to results/soak.jsonl")
    given = parser.parse_args()
    stress = Stress(given.threads, given.timeout)
    start = time.monotonic()
    quiet = given.forks // 2
    for number in range(quiet):
        if number % 3 == 0:
            assert stress.right()  # the model's threads are awake
            stress.one(number, "just after a call")
        else:
            time.sleep(0.001 * (number % 3 - 1))
            stress.one(number, "idle")
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            stress.model(stress.x[: 1 + threading.get_ident() % 6])

    callers = [threading.Thread(target=call) for _ in range(given.callers)]
    for caller in callers:
        caller.start()
    try:
        for number in range(quiet, given.forks):
            stress.one(number, f"with {given.callers} threads in calls")
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert stress.right()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(stress.outcomes.items()))
    seconds = time.monotonic() - start
    print(f"{given.forks} forks in {seconds:.0f} s: {counts}")
    if not given.no_record:
        from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today

        row = {
            "kind": "fork stress", "date": today(), "commit": source_commit(),
            "hardware": describe_hardware(), "forks": given.forks, "threads": given.threads,
            "callers": given.callers, "seconds": round(seconds),
            "outcomes": dict(stress.outcomes), "states": dict(stress.states),
        }  # fmt: skip
        append_rows(ROOT / "results" / "soak.jsonl", [row])
    return 0 if set(stress.outcomes) <= {"ended well"} else 1


if __name__ == "__main__":
    sys.exit(main())
