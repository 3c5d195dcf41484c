"""Models in forked processes. A child has none of its parent's threads, and a lock that one of them held at
the fork stays locked in it for ever: nothing that a child does with a model may wait for either.

Each case runs in a process of its own with a time limit, because what fails here hangs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("xnorpp.runtime.cpu", reason="THE NATIVE CORE IS NOT BUILT: not tested")

PREPARE = """
import gc, os, signal, sys, threading, time
import numpy as np
from xnorpp.runtime import load
from xnorpp.runtime.format.program import INPUT
from random_programs import Builder

rng = np.random.default_rng(0)
b = Builder((3, 24, 24))
attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
y = b.emit("conv2d", INPUT, attrs=attrs, tensors={"weight": rng.standard_normal((32, 3, 3, 3)).astype("f4")})
weight = {"weight": rng.integers(0, 256, (32, 3, 3, 4), dtype=np.uint8)}
y = b.emit("binary_conv2d", b.emit("sign", y), attrs=attrs | {"pad_value": 0}, tensors=weight)
model = load(b.program(b.emit("flatten", b.emit("global_avg_pool", b.emit("affine", y)))), threads=4)
x = rng.integers(0, 256, (6, 24, 24, 3), dtype=np.uint8)
expected = model(x)

def right():
    return bool(np.array_equal(model(x), expected) and np.array_equal(model(x[:1]), expected[:1]))

def threads():
    return len(os.listdir("/proc/self/task"))

def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(code: str, seconds: float = 60) -> None:
    """Run `code` behind PREPARE in a session of its own, so that a child that hangs ends with it."""
    here = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    text = here + PREPARE + textwrap.dedent(code)
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail(f"hung for {seconds} seconds")
    assert process.returncode == 0, errors


LEAVE = {
    "leaves by sys.exit": "sys.exit(0)",
    "deletes the model": "del model; gc.collect(); os._exit(0)",
    "calls the model and leaves": "sys.exit(0 if right() else 1)",
    "calls the model and deletes it": "good = right(); del model; gc.collect(); os._exit(0 if good else 1)",
}


@pytest.mark.parametrize("awake", [True, False], ids=["awake", "asleep"])
@pytest.mark.parametrize("leave", LEAVE)
def test_a_forked_child_ends(leave: str, awake: bool) -> None:
    """Right after a call the parent's threads are awake; a moment later they wait for the next one."""
    run(
        f"""
        for _ in range(20):
            right()
            time.sleep({0.0 if awake else 0.02})
            child = os.fork()
            if child == 0:
                {LEAVE[leave]}
            assert status_of(child) == 0
        assert right()
        """
    )


def test_a_forked_child_has_threads_of_its_own() -> None:
    """They are started by the first call that needs them, and end with the model."""
    run(
        """
        child = os.fork()
        if child == 0:
            before = threads()
            good = right() and before == 1 and threads() == 4
            del model
            gc.collect()
            os._exit(0 if good and threads() == 1 else 1)
        assert status_of(child) == 0
        """
    )


def test_a_child_of_a_forked_child_answers() -> None:
    run(
        """
        child = os.fork()
        if child == 0:
            good = right()
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if right() else 1)
            os._exit(0 if good and status_of(grandchild) == 0 and right() else 1)
        assert status_of(child) == 0
        """
    )


def test_several_threads_of_a_forked_child_call_at_once() -> None:
    run(
        """
        from concurrent.futures import ThreadPoolExecutor

        for _ in range(10):
            child = os.fork()
            if child == 0:
                with ThreadPoolExecutor(4) as pool:
                    os._exit(0 if all(pool.map(lambda _: right(), range(40))) else 1)
            assert status_of(child) == 0
        """
    )


@pytest.mark.slow
def test_children_forked_while_other_threads_call() -> None:
    """A lock of the model may be held at the fork; the child must not meet it."""
    run(
        """
        stop = threading.Event()

        def call():
            while not stop.is_set():
                model(x)

        callers = [threading.Thread(target=call) for _ in range(6)]
        for caller in callers:
            caller.start()
        for number in range(150):
            child = os.fork()
            if child == 0:
                if number % 3 == 0:
                    del model
                    gc.collect()
                    os._exit(0)
                os._exit(0 if right() else 1)
            assert status_of(child) == 0
        stop.set()
        for caller in callers:
            caller.join()
        """,
        seconds=120,
    )


def test_a_multiprocessing_pool_that_forks() -> None:
    run(
        """
        import multiprocessing

        def answer(index):
            return model(x[index : index + 1])

        with multiprocessing.get_context("fork").Pool(3) as pool:
            answers = pool.map(answer, list(range(6)) * 4)
            pool.close()
            pool.join()
        for index, row in enumerate(answers):
            assert np.array_equal(row, expected[index % 6 : index % 6 + 1])
        """
    )


def test_workers_of_a_torch_data_loader() -> None:
    pytest.importorskip("torch")
    run(
        """
        from torch.utils.data import DataLoader, Dataset

        class Scores(Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                return model(x[index : index + 1])[0]

        loader = DataLoader(Scores(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            assert np.array_equal(np.concatenate([batch.numpy() for batch in loader]), expected)
        """
    )
