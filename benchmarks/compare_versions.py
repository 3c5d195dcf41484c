"""This checkout against an earlier version, in one run: inference, training, and instruction counts.

    python benchmarks/compare_versions.py --base v0.1.0 [--rounds 20] [--skip training,instructions]
    python benchmarks/compare_versions.py --base FOLDER --gpu

Both versions are built into build/versions and run in processes of their own, in turns, so that a noisy
moment hits both. Every network is packed by the base version and run by both from the same file. `--base` is
a tag, a commit, or a folder of sources for a machine without the history; without pip, CMake builds the core
(nanobind importable, or on PYTHONPATH). Three kinds of rows are printed and appended to
results/versions.jsonl:

    inference      milliseconds per image (uint8 input, batch 1), shipped models and ResNet-18 at 224 pixels
    training       milliseconds per step of a binary ResNet-18 (64 pixels, batch 32, float32, CPU)
    instructions   executed instructions per call, one thread, AVX2 kernels, counted by valgrind

and with --gpu instead, in about a minute:

    gpu inference  milliseconds per batch of 256 images that lie on the GPU, ResNet-18 at 224 and CIFAR-10's
    gpu training   milliseconds per fused step, recorded as a CUDA graph, of ResNet-18 at 224 and 64 pixels

The status is 1 if a median got slower by more than --tolerance (5 %), an instruction count grew by more than
1 %, or the two versions' outputs differ in a single bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "versions"
WORKER = Path(__file__).with_name("compare_worker.py")
SHIPPED = ("cifar10-resnet20", "cifar10-resnet18", "tiny-imagenet-resnet18")
NETWORKS = {"resnet18-224-paper": {"shortcut": "block", "downsample": "binary"}, "resnet18-224-default": {}}


class Version:
    """One version: its installation and a process that runs it."""

    def __init__(self, name: str, site: Path) -> None:
        self.name, self.site = name, site
        self._process: subprocess.Popen[str] | None = None

    def command(self) -> list[str]:
        """`-S` keeps an editable installation of this checkout away."""
        paths = [
            sysconfig.get_paths()["purelib"],
            *(path for path in sys.path if path.endswith(("site-packages", "dist-packages"))),
        ]
        given = {"site": str(self.site), "paths": paths, "options": NETWORKS}
        return [sys.executable, "-S", str(WORKER), json.dumps(given)]

    def __call__(self, function: str, *arguments: Any) -> Any:
        """Run a function of the worker there."""
        if self._process is None:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("=> "):
                return json.loads(line[3:])
        raise SystemExit(f"{self.name}: `{function}` failed; see its output above")

    def instructions(self, file: Path, calls: int = 10) -> int:
        """Instructions of one call: the difference of two runs under valgrind, which has no AVX-512."""
        environment = {**os.environ, "PYTHONHASHSEED": "0", "XNORPP_ISA": "avx2", "OMP_NUM_THREADS": "1"}
        counts = []
        for number in (2, 2 + calls):
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
            done = subprocess.run(
                [*command, *self.command(), str(file), str(number)],
                env=environment, capture_output=True, text=True,
            )  # fmt: skip
            found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
            if done.returncode or found is None:
                raise SystemExit(f"{self.name}: valgrind failed: {done.stderr.strip().splitlines()[-1:]}")
            counts.append(int(found.group(1)))
        return round((counts[1] - counts[0]) / calls)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def _copy_working_files(to: Path) -> None:
    """The files of this checkout; those that build the package where it is a copy without history."""
    shutil.rmtree(to, ignore_errors=True)
    try:
        files = _git("ls-files", "-co", "--exclude-standard").decode().splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = [path for part in ("src", "csrc") for path in (ROOT / part).rglob("*") if path.is_file()]
        files = [str(path.relative_to(ROOT)) for path in (*found, *ROOT.glob("*.*"))]
        files = [file for file in files if "__pycache__" not in file and "_core." not in file]
    for file in files:
        if (ROOT / file).is_file():
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, to / file)


def _build(source: Path, site: Path) -> None:
    """Install a source tree into `site`: by pip, or by CMake alone where that does not work."""
    if importlib.util.find_spec("pip") and importlib.util.find_spec("scikit_build_core"):
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "--target",
        ]
        if subprocess.run([*command, str(site), str(source)]).returncode == 0:
            return
        print("pip could not build it; CMake alone is tried", flush=True)
        shutil.rmtree(site, ignore_errors=True)
    made = site.parent / "cmake"
    find = [f"-DPython_EXECUTABLE={sys.executable}", "-DXNORPP_PYTHON=ON", "-DXNORPP_LIBRARY=OFF"]
    subprocess.run(
        ["cmake", "-S", str(source), "-B", str(made), *find], check=True, stdout=subprocess.DEVNULL
    )
    cores = str(os.cpu_count() or 2)
    subprocess.run(
        ["cmake", "--build", str(made), "-j", cores, "--target", "_core"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    half = site.with_name("site.part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source / "src", half)
    for library in made.glob("_core*.so"):
        shutil.copy2(library, half / "xnorpp" / "runtime" / library.name)
    kernels = source / "csrc" / "cuda"
    if kernels.is_dir():  # where 0.1.0 had them; its installation puts them beside the module
        shutil.copytree(kernels, half / "xnorpp" / "runtime" / "kernels")
    half.rename(site)


def install(name: str, revision: str | None) -> Version:
    """Build `revision` (a folder of sources, a tag or commit, None: this checkout) into build/versions."""
    if revision is None:
        source = BUILD / "working" / "source"
        shutil.rmtree(BUILD / "working", ignore_errors=True)
        _copy_working_files(source)
    elif Path(revision).is_dir():
        source = BUILD / f"folder-{Path(revision).resolve().name}" / "source"
        if not source.exists():
            shutil.copytree(revision, source)
    else:
        commit = _git("rev-parse", f"{revision}^{{commit}}").decode().strip()
        source = BUILD / commit[:12] / "source"
        if not source.exists():
            with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as tar:
                tar.extractall(source)
    site = source.parent / "site"
    if not site.exists():
        _build(source, site)
    return Version(name, site)


def in_turns(base: Version, new: Version, rounds: int, function: str, *arguments: Any) -> tuple[float, float]:
    """Medians in milliseconds over all rounds, base first."""
    taken: dict[str, list[float]] = {base.name: [], new.name: []}
    for number in range(rounds):
        for version in (base, new) if number % 2 else (new, base):
            taken[version.name] += version(function, *arguments)
    return 1e3 * statistics.median(taken[base.name]), 1e3 * statistics.median(taken[new.name])


Report = Callable[[str, str, tuple[float, float], str, float], None]


def compare_gpu(
    base: Version, new: Version, files: dict[str, Path], rounds: int, report: Report, tolerance: float
) -> int:
    """Inference and training on the GPU; how many networks gave other outputs. Without a GPU a miniature
    runs, which shows that the comparison works and times nothing that matters."""
    gpu = subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0 if _has("nvidia-smi") else False
    batch, calls, differ = (256, 10, 0) if gpu else (1, 1, 0)
    for name in ("resnet18-224-paper", "cifar10-resnet18"):
        found = [version("gpu_load", name, str(files[name]), batch) for version in (base, new)]
        if found[0][1] != found[1][1]:
            differ += 1
            print(f"{name}: the outputs of the two versions differ on the GPU")
        times = in_turns(base, new, rounds, "gpu_call", name, calls)
        report("gpu inference", f"{name}, batch {batch}", times, "ms per batch", tolerance)
    for size in (224, 64):
        for version in (base, new):
            version("gpu_prepare", size if gpu else 32, batch)
        times = in_turns(base, new, rounds, "gpu_train", size if gpu else 32, calls)
        report("gpu training", f"resnet18, {size} px, batch {batch}", times, "ms per step", tolerance)
    return differ


def _has(program: str) -> bool:
    return shutil.which(program) is not None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="tag, commit or source folder of the earlier version")
    parser.add_argument("--gpu", action="store_true", help="inference and training on the GPU instead")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each version (20)")
    parser.add_argument("--threads", default="1,2", help="thread counts of inference (1,2)")
    parser.add_argument("--skip", default="", help="inference, training or instructions, separated by commas")
    parser.add_argument("--tolerance", type=float, default=0.05, help="how much slower is a failure (0.05)")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "versions.jsonl")
    given = parser.parse_args()
    skip = set(given.skip.split(",")) - {""}
    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(install, f"base {given.base}", given.base), pool.submit(install, "new", None)
        base, new = (one.result() for one in started)
    files = {name: base.site / "xnorpp" / "shipped" / f"{name}.xnor" for name in SHIPPED}
    for name in list(NETWORKS)[: 1 if given.gpu else None]:
        files[name] = BUILD / f"{name}.xnor"
        base("pack", name, str(files[name]))
    rows: list[dict[str, Any]] = []
    failed = 0

    def report(kind: str, what: str, times: tuple[float, float], unit: str, allowed: float) -> None:
        nonlocal failed
        before, after = times
        ratio = after / before
        failed += ratio > 1 + allowed
        rows.append({"kind": kind, "what": what, "unit": unit, "base": before, "new": after, "ratio": ratio})
        worse = "  WORSE" if ratio > 1 + allowed else ""
        print(f"{kind:13} {what:34} {before:14,.3f} {after:14,.3f} {unit:14} {ratio:6.3f}{worse}", flush=True)

    print(f"{'':13} {'':34} {Path(given.base).name:>14} {'this checkout':>14}")
    if given.gpu:
        skip = {"inference", "training", "instructions"}
        failed += compare_gpu(base, new, files, given.rounds, report, given.tolerance)
    for name, file in files.items():
        for threads in map(int, given.threads.split(",")) if "inference" not in skip else ():
            starts = [version("load", name, str(file), threads) for version in (base, new)]
            if threads == 1 and base("digest", name, 1) != new("digest", name, 1):
                failed += 1
                print(f"{name}: the outputs of the two versions differ")
            times = in_turns(base, new, given.rounds, "call", name, threads, 8)
            report("inference", f"{name}, {threads} threads", times, "ms per image", given.tolerance)
            rows[-1]["first_answer_s"] = starts
    if "training" not in skip:
        times = in_turns(base, new, max(3, given.rounds // 4), "train", 1)
        report("training", "resnet18, 64 px, batch 32", times, "ms per step", given.tolerance)
    for name in SHIPPED[:2] if "instructions" not in skip else ():
        before, after = (float(version.instructions(files[name])) for version in (base, new))
        report("instructions", name, (before, after), "per call", 0.01)

    sys.path.insert(0, str(ROOT / "src"))
    from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today

    facts = {
        "base_version": Path(given.base).name,
        "commit": source_commit(),
        "date": today(),
        "hardware": describe_hardware("cuda" if given.gpu and _has("nvidia-smi") else None),
    }
    append_rows(given.results, [{**row, "kind": f"versions {row['kind']}", **facts} for row in rows])
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
