"""Threads that the system does not start, and threads that outlive the interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("xnorpp.runtime.cpu", reason="THE NATIVE CORE IS NOT BUILT: not tested")

PREPARE = """
import os, re, resource, sys
import numpy as np
from xnorpp.runtime import load
from random_programs import random_program

def threads():
    return len(os.listdir("/proc/self/task"))

program = random_program(1)
x = np.zeros((9, *program.input_shape), np.float32)
MESSAGE = (
    r"`threads` [(]=([0-9]+)[)]: only ([0-9]+) can run at once here [(].+[)]; "
    r"ask for at most `threads=([0-9]+)`"
)
"""

# pthread_create that fails from the call on that the environment variable names.
FEW_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
typedef int (*Create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *argument) {
    static int made = 0;
    const char *most = getenv("MOST_THREADS");
    if (most && __sync_fetch_and_add(&made, 1) >= atoi(most)) return EAGAIN;
    return ((Create)dlsym(RTLD_NEXT, "pthread_create"))(thread, how, start, argument);
}
"""


def run(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),  # random_programs
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def few_threads(tmp_path: Path) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "few_threads.c").write_text(FEW_THREADS)
    library = tmp_path / "few_threads.so"
    command = [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "few_threads.c", "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_thread_that_cannot_be_started_is_an_error(few_threads: str, most: int) -> None:
    """One sentence with the number that works, and no thread is left running; 0.1.0 waited for ever."""
    run(
        f"""
        before = threads()
        try:
            load(program, threads=9)
        except RuntimeError as error:
            found = re.fullmatch(MESSAGE, str(error))
        assert found and found.groups() == ("9", "{most + 1}", "{most + 1}")
        assert threads() == before
        load(program, threads=1)(x)
        """,
        LD_PRELOAD=few_threads,
        MOST_THREADS=str(most),
    )


def test_a_limit_of_memory_that_leaves_no_room_for_stacks_is_an_error() -> None:
    """As the system does it: a limit of the address space counts for root too, one of processes does not."""
    run(
        """
        expected = load(program, threads=1)(x)
        pages = int(open("/proc/self/statm").read().split()[0])
        most = pages * resource.getpagesize() + (100 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        try:
            load(program, threads=200)
        except RuntimeError as error:
            found = re.fullmatch(MESSAGE, str(error))
        assert found and found[1] == "200" and found[2] == found[3] and 1 <= int(found[2]) < 200
        assert np.array_equal(load(program, threads=2)(x), expected)
        """
    )


def test_a_forked_child_that_gets_no_threads_works_alone(few_threads: str) -> None:
    run(
        """
        model = load(program, threads=4)
        expected = model(x)
        child = os.fork()
        if child == 0:
            good = all(np.array_equal(model(x), expected) for _ in range(3)) and threads() == 1
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """,
        LD_PRELOAD=few_threads,
        MOST_THREADS="3",
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_ends_while_a_daemon_thread_is_in_a_call(threads: int) -> None:
    """Python ends such a thread when it wants the interpreter lock back; 0.1.0 aborted with status 134."""
    run(
        f"""
        import threading, time

        model = load(program, threads={threads})
        many = np.zeros((2000, *program.input_shape), np.float32)

        def call():
            while True:
                model(many)

        for _ in range(3):
            threading.Thread(target=call, daemon=True).start()
        time.sleep(0.2)
        """
    )


needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="NEEDS LINUX AND TWO CORES: where workers run is not tested",
)
WORKERS = """
before = set(os.listdir("/proc/self/task"))
allowed = os.sched_getaffinity(0)
model = load(program, threads=3)
workers = [int(task) for task in set(os.listdir("/proc/self/task")) - before]
assert len(workers) == 2

def call_from(core):
    os.sched_setaffinity(0, {core})
    model(x)
    return [os.sched_getaffinity(worker) for worker in workers]
"""


@needs_two_cores
def test_workers_leave_the_core_of_the_caller_alone() -> None:
    """Woken on that core, a worker took turns with its caller while another core was idle: two threads then
    needed as long as one."""
    run(
        WORKERS
        + """
for core in (*sorted(allowed), *sorted(allowed, reverse=True)):
    assert call_from(core) == [allowed - {core}] * 2
"""
    )


@needs_two_cores
def test_workers_run_only_where_the_user_allows_it() -> None:
    run(
        WORKERS
        + """
one, other = sorted(allowed)[:2]
for worker in workers:
    os.sched_setaffinity(worker, {other})
assert call_from(other) == [{other}] * 2  # nothing else is allowed
assert call_from(one) == [{other}] * 2
os.sched_setaffinity(workers[0], allowed)
assert call_from(other) == [allowed - {other}, {other}]
"""
    )


def test_a_process_with_one_core_may_have_many_threads() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("NEEDS LINUX: one core is not tested")
    run(
        """
        expected = load(program, threads=1)(x)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        assert np.array_equal(load(program, threads=4)(x), expected)
        """
    )
