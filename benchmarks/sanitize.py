"""The native core under AddressSanitizer and UndefinedBehaviorSanitizer.

    python benchmarks/sanitize.py [--count 20000] [--seed 0]

Builds the extension with the sanitizers into build/sanitize, runs the tests of the kernels without Python
(tests/native), and then `fuzz_files.py --engine native` and the tests of the engine with that extension.
Needs g++ or clang++, CMake and nanobind. The exit status is 1 if one of them fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitize"
ENGINE_TESTS = ("test_cpu_engine.py", "test_cpu_dots.py", "test_threads.py", "test_golden.py")


def step(name: str, command: list[str], environment: dict[str, str] | None = None) -> bool:
    print(f"== {name}", flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def build() -> Path:
    """A copy of the package whose extension has the sanitizers; its folder."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        raise SystemExit("cmake is needed: pip install cmake")
    options = ["-DXNORPP_SANITIZE=ON", "-DXNORPP_PYTHON=ON", "-DXNORPP_LIBRARY=OFF"]
    options += [f"-DPython_EXECUTABLE={sys.executable}"]
    site = BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    ready = (
        step("configure", [cmake, "-S", ".", "-B", str(BUILD), *options])
        and step("build", [cmake, "--build", str(BUILD), "--parallel", "2"])
        and step("install", [cmake, "--install", str(BUILD), "--prefix", str(site)])
    )
    if not ready:
        raise SystemExit("the core does not build with the sanitizers")
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "src" / "xnorpp", site / "xnorpp", dirs_exist_ok=True, ignore=skip)
    return site


def environment_for(site: Path) -> dict[str, str]:
    """The sanitizers' library comes first in the process, the copy of the package first among the modules."""
    compiler = shutil.which("g++") or shutil.which("c++") or "c++"
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name=lib{name}.so"], capture_output=True, text=True
        ).stdout.strip()
        for name in ("asan", "ubsan", "stdc++")
    ]
    paths = [str(site), *(path for path in sys.path[1:] if path and not path.startswith(str(ROOT / "src")))]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(library for library in libraries if os.path.isabs(library)),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python does not free all at its end
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    site = build()
    sanitized = environment_for(site)
    # -S: without the hook of an editable installation, which would find the extension without sanitizers
    python = [sys.executable, "-S"]
    where = "import xnorpp.runtime._core as core; print(core.__file__)"
    found = subprocess.run([*python, "-c", where], env=sanitized, cwd=ROOT, capture_output=True, text=True)
    if not found.stdout.startswith(str(site)):
        raise SystemExit(
            f"the sanitized extension is not the one that is loaded: {found.stdout}{found.stderr}"
        )
    fuzz = ["benchmarks/fuzz_files.py", "--engine", "native", "--count", str(given.count)]
    tests = [f"tests/runtime/{name}" for name in ENGINE_TESTS]
    results = {
        "kernels": step("kernels without Python", [sys.executable, "-m", "pytest", "-q", "tests/native"]),
        "fuzz": step("damaged files", [*python, *fuzz, "--seed", str(given.seed)], sanitized),
        "engine": step(
            "engine", [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], sanitized
        ),
    }
    for name, good in results.items():
        print(f"{name}: {'no error found' if good else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
