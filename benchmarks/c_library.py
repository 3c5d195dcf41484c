"""The C library: one process of `xnorpp-run`, and the same network against the Python binding.

    python benchmarks/c_library.py [--runs 40] [--threads 1] [--model FILE] [--record]

Needs a developer's installation (`pip install -e .`), which builds the C library beside the Python module.
Prints one JSON object: milliseconds from the start of `xnorpp-run cifar10-resnet20.xnor image.ppm` to its end
(by the clock and of processor time), its resident memory, and milliseconds per image of both ways into the
core on ResNet-18 at 224 x 224 (random weights, made here by torch, or FILE), measured in turns, with whether
their answers are the same bits. Timings need an otherwise idle machine; --record appends the row to
results/deploy.jsonl.
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
from typing import Any

import numpy as np
from PIL import Image

import xnorpp
from xnorpp.runtime.machine import processor
from xnorpp.shipped import shipped_path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "native"))
from capi import CModel, built, open_library  # noqa: E402


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


def make_resnet18(path: Path) -> None:
    """The network that `xnorpp bench` runs."""
    import torch

    from xnorpp.bench.networks import DEFAULT, binary_network

    xnorpp.pack(binary_network(DEFAULT), example=torch.zeros(1, 3, 224, 224)).save(path)


def record(row: dict[str, Any]) -> None:
    """One more row of results/deploy.jsonl, with the commit and the load of the machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    row = {**row, "commit": commit.stdout.strip(), "load": round(os.getloadavg()[0], 2)}
    with (ROOT / "results" / "deploy.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")


def against_python(library: Path, path: Path, threads: int, runs: int) -> dict[str, Any]:
    """A network both ways, in turns."""
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
    for turn in range(runs):
        ways = [("python", python), ("c", c.run)]
        for name, call in ways if turn % 2 else reversed(ways):
            start = time.perf_counter()
            for _ in range(5):
                call(images)
            times[name].append((time.perf_counter() - start) / 5)
    return {
        "network": f"ResNet-18, {height} x {width}",
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
    parser.add_argument("--model", type=Path, help="a packed ResNet-18, in place of one made by torch")
    parser.add_argument("--record", action="store_true", help="append the row to results/deploy.jsonl")
    given = parser.parse_args()
    tool, library = built("xnorpp-run"), built("libxnorpp.so")
    if tool is None or library is None:
        raise SystemExit("the C library is not built; run `pip install -e .` first")
    with tempfile.TemporaryDirectory() as folder:
        path = given.model or Path(folder) / "resnet18.xnor"
        if given.model is None:
            make_resnet18(path)
        found = {
            "kind": "C library",
            "cpu": processor().name,
            "threads": given.threads,
            **one_process(tool, given.runs),
            **against_python(library, path, given.threads, given.runs),
        }
    print(json.dumps(found, indent=2))
    if given.record:
        record(found)
    return 0 if found["same_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
