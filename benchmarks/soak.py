"""Half an hour of everything at once: does anything hang, crash, answer wrongly or grow?

    python benchmarks/soak.py [--minutes 30] [--seed 0] [--no-record]

Threads of one process call models, load them, pickle them, classify images and feed damaged files to the
readers, while the process forks children that do the same, and trainings are started, killed, damaged and
resumed in processes of their own. Every answer is compared with the right one. Prints the operations, the
failures and the memory, and appends a row to results/soak.jsonl. The exit status is 1 after a failure, or if
the memory at the end is more than 15 % and 32 MB above that after the first quarter.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fork_stress import small_network
from fuzz_files import MUTATIONS, SMALL_WORK
from xnorpp.runtime import PackedModel, ProgramError, load
from xnorpp.runtime.decode import CorruptImageError
from xnorpp.runtime.format.program import Program, encode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from random_programs import random_program

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (
    "model.options.width=4", "schedule.epochs=3", "data.batch_size=128", "run.log_steps=1", "run.threads=1",
    "run.save_steps=3", "run.tensorboard=false",
)  # fmt: skip
HANG = 120.0  # seconds; the machine is busy


class Case:
    """A model with inputs and the answers to them."""

    def __init__(self, program: Program, seed: int) -> None:
        self.blob = encode(program)
        self.model = load(program)
        channels, height, width = program.input_shape
        self.x = np.random.default_rng(seed).integers(0, 256, (5, height, width, channels), dtype=np.uint8)
        self.expected = load(program, threads=1)(self.x)  # one thread, one call: the same bits are required

    def check(self, model: PackedModel, rng: random.Random) -> None:
        first = rng.randrange(len(self.x))
        last = rng.randint(first + 1, len(self.x))
        if not np.array_equal(model(self.x[first:last]), self.expected[first:last], equal_nan=True):
            raise AssertionError(f"a wrong answer for the images {first} to {last} ({model.isa})")


class Soak:
    def __init__(self, minutes: float, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        programs = [small_network(), *(random_program(i, length=8, largest=20) for i in range(40, 46))]
        self.cases = [Case(program, number) for number, program in enumerate(programs)]
        self.operations: Counter[str] = Counter()
        self.failures: list[str] = []
        self.memory: dict[str, float] = {}
        self.lock = threading.Lock()
        self.seconds = 60 * minutes
        self.end = time.monotonic() + self.seconds
        file = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(file, "JPEG")
        self.image = file.getvalue()

    def repeat(self, name: str, seed: int, work: Callable[[random.Random], None]) -> None:
        """Do `work` until the time is up; an exception is a failure, and the next one is tried."""
        rng = random.Random(f"{self.seed} {name} {seed}")
        while time.monotonic() < self.end and len(self.failures) < 50:
            try:
                work(rng)
            except Exception as error:
                with self.lock:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    self.failures.append(
                        f"{name}: {type(error).__name__}: {error} ({where.name}:{where.lineno})"
                    )
            else:
                with self.lock:
                    self.operations[name] += 1

    def call(self, rng: random.Random) -> None:
        case = rng.choice(self.cases)
        case.check(case.model, rng)

    def reload(self, rng: random.Random) -> None:
        case = rng.choice(self.cases)
        path = self.folder / f"model-{threading.get_ident()}.xnor"
        path.write_bytes(case.blob)
        source: Any = rng.choice([path, case.blob])
        case.check(load(source, threads=rng.choice([None, 1, 2, 5])), rng)

    def pickle(self, rng: random.Random) -> None:
        case = rng.choice(self.cases)
        copied = copy.deepcopy(case.model) if rng.random() < 0.3 else pickle.loads(pickle.dumps(case.model))
        case.check(copied, rng)

    def damage(self, rng: random.Random) -> None:
        """A damaged file is refused in one sentence, or is a model that runs."""
        mutate = rng.choice(MUTATIONS)
        blob = mutate(rng.choice(self.cases).blob, np.random.default_rng(rng.getrandbits(32)))
        try:
            model = load(blob, threads=1)
        except ProgramError as error:
            if "\n" in str(error) or not 0 < len(str(error)) < 600:
                raise AssertionError(f"not one sentence: {error!s:.200}") from None
            return
        if model.program.work < SMALL_WORK:
            with np.errstate(all="ignore"):
                model(np.zeros((1, *model.program.input_shape), np.float32))

    def damaged_image(self, rng: random.Random) -> None:
        from xnorpp.runtime.decode import load_image

        content = bytearray(self.image)
        for _ in range(rng.randint(1, 20)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        with suppress(CorruptImageError):
            load_image(bytes(content[: rng.randint(1, len(content))]))

    def fork(self, rng: random.Random) -> None:
        case, way = rng.choice(self.cases), rng.choice(["call", "delete", "load", "exit"])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if way in ("call", "exit"):
                    case.check(case.model, rng)
                elif way == "load":
                    case.check(load(case.blob, threads=2), rng)
                else:
                    del case.model
                    gc.collect()
                status = 0
            finally:
                os._exit(status)
        if (status := wait_for(child)) != 0:
            raise AssertionError(f"a forked child ({way}) ended with {status}")

    def train(self, rng: random.Random) -> None:
        """Start, kill, sometimes damage, resume, until the run is finished; then compare the weights."""
        out = self.folder / f"run-{rng.getrandbits(40)}"
        killed = 0
        while True:
            process = start_training(out)
            if killed < 4 and time.monotonic() < self.end:
                time.sleep(rng.uniform(1.0, 12.0))
                if rng.random() < 0.2 and process.poll() is None and (out / ".lock").exists():
                    self.second_run(out, process)
                if process.poll() is None:
                    process.kill()
                    killed += 1
            try:
                text = process.communicate(timeout=4 * HANG)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError("a training hung") from None
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                raise AssertionError(f"a training ended with {process.returncode}: {text[-300:]}")
            with self.lock:
                self.operations["kill a training"] += 1
            stored = sorted((out / "checkpoints").glob("step-*"))
            if rng.random() < 0.5 and len(stored) > 1:
                stored[-1].write_bytes(stored[-1].read_bytes()[: rng.randrange(2000)])
                with self.lock:
                    self.operations["damage a checkpoint"] += 1
        if final_weights(out) != self.trained:
            raise AssertionError(f"a training that was killed {killed} times has other weights")
        shutil.rmtree(out)

    def second_run(self, out: Path, first: subprocess.Popen[str]) -> None:
        second = start_training(out)
        text = second.communicate(timeout=HANG)[0]
        if first.poll() is None and (second.returncode != 2 or str(first.pid) not in text):
            raise AssertionError(f"a second run in one folder ended with {second.returncode}: {text[-300:]}")
        with self.lock:
            self.operations["refuse a second run"] += 1

    def watch(self) -> None:
        """Measure the memory at the start, after each quarter and at the end."""
        begin = self.end - self.seconds
        for name, part in (("start", 0.02), ("quarter", 0.25), ("half", 0.5), ("three quarters", 0.75)):
            time.sleep(max(0.0, begin + part * self.seconds - time.monotonic()))
            self.memory[name] = resident()

    def run(self) -> None:
        whole = self.folder / "whole"
        process = start_training(whole)
        text = process.communicate()[0]
        if process.returncode:
            raise SystemExit(f"training does not work: {text[-500:]}")
        self.trained = final_weights(whole)
        self.end = time.monotonic() + self.seconds  # the time starts now
        work = [self.call] * 3 + [self.reload, self.pickle, self.damage, self.damaged_image, self.train]
        threads = [
            threading.Thread(target=self.repeat, args=(one.__name__.replace("_", " "), number, one))
            for number, one in enumerate(work)
        ]
        threads.append(threading.Thread(target=self.watch))
        for thread in threads:
            thread.start()
        self.repeat("fork", 0, self.fork)  # in the main thread, as programs do
        for thread in threads:
            thread.join()
        gc.collect()
        self.memory["end"] = resident()
        self.failures += self.grown()

    def grown(self) -> list[str]:
        before, after = self.memory["quarter"], self.memory["end"]
        if after > 1.15 * before and after > before + 32:
            return [f"memory: {before:.0f} MB after a quarter, {after:.0f} MB at the end"]
        return []


def wait_for(child: int) -> int | str:
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"no end within {HANG:.0f} s"


def start_training(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "xnorpp", "train", "digits-small-case4", "--out", str(out), "--resume"]
    command += ["--device", "cpu", *(part for setting in SETTINGS for part in ("--set", setting))]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def final_weights(run: Path) -> dict[str, bytes]:
    from safetensors.numpy import load_file

    return {name: value.tobytes() for name, value in load_file(run / "model.safetensors").items()}


def resident() -> float:
    """Megabytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def current_commit() -> str:
    """The state of the sources now; a recorded number belongs to one state."""
    code = "from xnorpp.training.records.record import source_commit; print(source_commit())"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="do not append to results/soak.jsonl")
    given = parser.parse_args()
    commit = current_commit()
    warnings.simplefilter("ignore")  # Pillow warns of images that claim to be large
    with tempfile.TemporaryDirectory(prefix="xnorpp-soak-") as folder:
        soak = Soak(given.minutes, given.seed, Path(folder))
        soak.run()
    print(f"{given.minutes:g} minutes, seed {given.seed}")
    for name, count in sorted(soak.operations.items()):
        print(f"  {name:22}{count:>10,}")
    print("memory: " + ", ".join(f"{value:.0f} MB ({name})" for name, value in soak.memory.items()))
    print(f"failures: {len(soak.failures)}")
    for failure in soak.failures:
        print(f"  {failure}")
    if current_commit() != commit:  # trainings are new processes: they may have run another state of the code
        print(f"the sources changed during the run ({commit} to {current_commit()}): nothing is recorded")
        return 1
    if not given.no_record:
        from xnorpp.training.records.record import append_rows, describe_hardware, today

        row = {
            "kind": "soak", "date": today(), "commit": commit, "hardware": describe_hardware(),
            "minutes": given.minutes, "seed": given.seed, "operations": dict(soak.operations),
            "failures": soak.failures, "memory_mb": {k: round(v, 1) for k, v in soak.memory.items()},
        }  # fmt: skip
        append_rows(ROOT / "results" / "soak.jsonl", [row])
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
