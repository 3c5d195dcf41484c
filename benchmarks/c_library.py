"""The C library: one process of `xnorpp-run`, and the same network against the Python binding.

    python benchmarks/c_library.py [--runs 40] [--threads 1]

Needs a developer's installation (`pip install -e .`), which builds the C library beside the Python module.
Prints one JSON object: milliseconds from the start of `xnorpp-run cifar10-resnet20.xnor image.ppm` to its end
(by the clock and of processor time), its resident memory, and milliseconds per image of both ways into the
core, measured in turns, with whether their answers are the same bits. Timings need an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

import xnorpp
from xnorpp.runtime.machine import processor
from xnorpp.shipped import shipped_path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "native"))
from capi import CModel, built, open_library


def one_process(tool: Path, runs: int) -> dict[str, float]:
    """`xnorpp-run` on a PPM of the network's size."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.ppm"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(image)
        command = [str(tool), str(shipped_path("cifar10-resnet20")), str(image)]
        wall, busy = [], []
        for _ in range(runs):
            start = time.perf_counter()
            pid = os.posix_spawn(
                command[0], command, {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
            )
            _, status, usage = os.wait4(pid, 0)
            wall.append(time.perf_counter() - start)
            assert status == 0
            busy.append(usage.ru_utime + usage.ru_stime)
        memory = resident(command)
    return {
        "process_ms": round(1e3 * median(wall), 2),
        "process_ms_best": round(1e3 * min(wall), 2),
        "process_cpu_ms": round(1e3 * median(busy), 2),
        "resident_mb": round(memory, 2),
    }


def resident(command: list[str]) -> float:
    """Megabytes of a process that has answered and waits for a second image."""
    with subprocess.Popen(
        [*command, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        time.sleep(0.3)
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        process.communicate()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def against_python(library: Path, threads: int, runs: int) -> dict[str, object]:
    """ResNet-18 on 64 x 64 images, both ways in turns."""
    path = shipped_path("tiny-imagenet-resnet18")
    python, c = xnorpp.load(path, threads=threads), CModel(open_library(library), path, threads=threads)
    channels, height, width = python.input_shape
    images = np.random.default_rng(0).integers(0, 256, (1, height, width, channels), np.uint8)
    same = all(
        np.array_equal(c.run(x)[0], python(x))
        for x in (
            images,
            np.random.default_rng(1).standard_normal((4, channels, height, width)).astype(np.float32),
        )
    )
    times: dict[str, list[float]] = {"python": [], "c": []}
    for _ in range(runs):
        for name, call in (("python", python), ("c", c.run)):
            start = time.perf_counter()
            for _ in range(5):
                call(images)
            times[name].append((time.perf_counter() - start) / 5)
    return {
        "network": "tiny-imagenet-resnet18",
        "same_bits": same,
        "python_ms": round(1e3 * median(times["python"]), 3),
        "c_ms": round(1e3 * median(times["c"]), 3),
        "c_over_python": round(median(a / b for a, b in zip(times["c"], times["python"], strict=True)), 3),
    }


def main() -> int:
    """Run both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    tool, library = built("xnorpp-run"), built("libxnorpp.so")
    if tool is None or library is None:
        raise SystemExit("the C library is not built; run `pip install -e .` first")
    found = {
        "cpu": processor().name,
        **one_process(tool, given.runs),
        **against_python(library, given.threads, given.runs),
    }
    print(json.dumps(found, indent=2))
    return 0 if found["same_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
