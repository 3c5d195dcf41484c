"""The wheels in clean environments: the shipped models answer there as they do here.

    python packaging/check_wheels.py [dist] [--arch x86_64 aarch64]

x86_64: each Python that is found gets an empty environment, the wheel that pip chooses for it, and what the
wheel itself asks for. aarch64: Debian's Pythons for that processor (3.11 and 3.13; there is no 3.10), each
unpacked into a folder and run by qemu-aarch64. Each must give the bits of the source tree's own package (the
environment that runs this), for every instruction set that both have; one that it has not is compared by
class. Nothing is skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import build_wheels
import numpy as np
from build_wheels import ROOT, run
from foreign_python import SUITES, ForeignPython

ANSWERS = Path(__file__).resolve().parent / "answers.py"
NEEDS = ("numpy", "safetensors", "pillow")


def compare(name: str, path: Path, wanted: dict[str, np.ndarray]) -> str:
    """Answers of a wheel against those of this environment."""
    found = dict(np.load(path))
    exact = []
    for key, answer in found.items():
        model, isa = key.split("/")
        same = wanted.get(key, wanted[f"{model}/generic"])
        assert np.array_equal(answer.argmax(1), same.argmax(1)), f"{name}, {key}: another class"
        if np.array_equal(answer, same):
            exact.append(isa)
        else:
            error = np.abs(answer - same).max() / np.abs(same).max()
            assert key not in wanted, f"{name}, {key}: not the same bits, {error:.1e} away"
            assert error < 1e-2, f"{name}, {key}: {error:.1e} away"
    return f"same classes; same bits: {', '.join(sorted(set(exact)))}"


def on_this_machine(wheels: Path, work: Path, wanted: dict[str, np.ndarray]) -> None:
    """Every Python here, each in an environment of its own."""
    for minor in range(build_wheels.OLDEST, build_wheels.NEWEST + 1):
        for python in build_wheels.every_python(minor)[:1]:
            start = time.monotonic()
            folder = work / f"x86_64-3.{minor}"
            run([python, "-m", "venv", "--clear", str(folder)])
            own = str(folder / "bin" / "python")
            run([own, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *NEEDS])
            run([own, "-m", "pip", "install", "--quiet", "--no-index", f"--find-links={wheels}", "xnorpp"])
            run([own, "-m", "xnorpp", "models"])
            described = run([own, str(ANSWERS), str(folder / "answers.npz")]).strip()
            result = compare(f"x86_64, Python 3.{minor}", folder / "answers.npz", wanted)
            print(f"x86_64: {described}: {result}; {time.monotonic() - start:.0f} s", flush=True)


def emulated(wheels: Path, work: Path, wanted: dict[str, np.ndarray]) -> None:
    """Pythons for aarch64, under qemu."""
    for version in SUITES:
        start = time.monotonic()
        folder = work / f"aarch64-{version}"
        python, packages = ForeignPython(folder, version), folder / "packages"
        if packages.exists():
            run(["rm", "-r", str(packages)])
        tags = [f"--platform={build_wheels.PLATFORM}_aarch64", "--platform=manylinux2014_aarch64",
                f"--python-version={version}", "--implementation=cp", "--only-binary=:all:"]  # fmt: skip
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *tags]
        run([*pip, *NEEDS])
        run([*pip, "--no-deps", "--no-index", f"--find-links={wheels}", "xnorpp"])
        described = python.run([str(ANSWERS), str(folder / "answers.npz")], packages).strip()
        result = compare("aarch64", folder / "answers.npz", wanted)
        print(f"aarch64: {described}: {result}; {time.monotonic() - start:.0f} s", flush=True)


def main() -> int:
    """Install and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--arch", nargs="+", default=["x86_64", "aarch64"], choices=["x86_64", "aarch64"])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels")
    given = parser.parse_args()
    work, wheels = given.work.resolve() / "check", given.wheels.resolve()
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, str(ANSWERS), str(work / "here.npz")], check=True)
    wanted = dict(np.load(work / "here.npz"))
    if "x86_64" in given.arch:
        on_this_machine(wheels, work, wanted)
    if "aarch64" in given.arch:
        emulated(wheels, work, wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
