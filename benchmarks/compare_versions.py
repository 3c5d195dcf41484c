"""This checkout against an earlier version, in one run: inference, training, and instruction counts.

    python benchmarks/compare_versions.py --base v0.1.0 [--rounds 20] [--skip training,instructions]

Both versions are built into build/versions and run in processes of their own, in turns, so that a noisy
moment hits both. Every network is packed by the base version and run by both from the same file. Three kinds
of rows are printed and appended to results/versions.jsonl:

    inference      milliseconds per image (uint8 input, batch 1), shipped models and ResNet-18 at 224 pixels
    training       milliseconds per step of a binary ResNet-18 (64 pixels, batch 32, float32, CPU)
    instructions   executed instructions per call, one thread, AVX2 kernels, counted by valgrind

The status is 1 if a median got slower by more than --tolerance (5 %), an instruction count grew by more than
1 %, or the two versions' outputs differ in a single bit.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "versions"
SHIPPED = ("cifar10-resnet20", "cifar10-resnet18", "tiny-imagenet-resnet18")
NETWORKS = {"resnet18-224-paper": {"shortcut": "block", "downsample": "binary"}, "resnet18-224-default": {}}

# Runs inside each version. Only names that every version has are used; `pack` has moved once.
WORKER = r"""
import hashlib, json, sys, time
sys.path[:0] = [SITE, *PATHS]
import numpy as np
models = {}
def image(model):
    channels, height, width = model.program.input_shape
    return np.random.default_rng(0).integers(0, 256, (1, height, width, channels), np.uint8)
def pack(name, path):
    import torch
    from xnorpp.models import create_model
    try:
        from xnorpp.packing import pack_to_file
    except ImportError:
        from xnorpp.pack import pack_to_file
    torch.manual_seed(0)
    shape = dict(input_size=224, num_classes=1000, scale="channel_height_width")
    net = create_model("resnet18", **shape, **OPTIONS[name])
    pack_to_file(net.eval(), 224, path)
def load(name, path, threads):
    from xnorpp.runtime import load as open_model
    start = time.perf_counter()
    model = open_model(path, threads=threads)
    models[name, threads] = model, image(model)
    model(models[name, threads][1])
    return time.perf_counter() - start
def digest(name, threads):
    model, x = models[name, threads]
    channels, height, width = model.program.input_shape
    real = np.random.default_rng(1).standard_normal((2, channels, height, width)).astype(np.float32)
    return hashlib.sha256(model(x).tobytes() + model(real).tobytes()).hexdigest()
def call(name, threads, count):
    model, x = models[name, threads]
    taken = []
    for _ in range(count):
        start = time.perf_counter(); model(x); taken.append(time.perf_counter() - start)
    return taken
step = []
def train(count):
    import torch
    if not step:
        from xnorpp.models import create_model
        torch.set_num_threads(2); torch.manual_seed(0)
        net = create_model("resnet18", input_size=64, num_classes=200, scale="channel_height_width")
        net = net.to(memory_format=torch.channels_last)
        adam = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
        x = torch.randn(32, 3, 64, 64).to(memory_format=torch.channels_last); y = torch.randint(0, 200, (32,))
        def one():
            adam.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(net(x), y).backward(); adam.step()
        step.append(one); one()
    taken = []
    for _ in range(count):
        start = time.perf_counter(); step[0](); taken.append(time.perf_counter() - start)
    return taken
if len(sys.argv) > 2:  # under valgrind: load, warm up, call so many times
    load("one", sys.argv[1], 1); call("one", 1, int(sys.argv[2]))
else:
    for line in sys.stdin:
        function, arguments = json.loads(line)
        print("=> " + json.dumps(globals()[function](*arguments)), flush=True)
"""


class Version:
    """One version: its installation and a process that runs it."""

    def __init__(self, name: str, site: Path) -> None:
        self.name, self.site = name, site
        self._process: subprocess.Popen[str] | None = None

    def script(self) -> str:
        paths = [
            sysconfig.get_paths()["purelib"],
            *(path for path in sys.path if path.endswith("site-packages")),
        ]
        return f"SITE = {str(self.site)!r}\nPATHS = {paths!r}\nOPTIONS = {NETWORKS!r}\n" + WORKER

    def __call__(self, function: str, *arguments: Any) -> Any:
        """Run a function of WORKER there. `-S` keeps an editable installation of this checkout away."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", self.script()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
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
            command = [
                "valgrind",
                "--tool=callgrind",
                f"--callgrind-out-file={os.devnull}",
                sys.executable,
                "-S",
            ]
            done = subprocess.run(
                [*command, "-c", self.script(), str(file), str(number)],
                env=environment, capture_output=True, text=True,
            )  # fmt: skip
            found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
            if done.returncode or found is None:
                raise SystemExit(f"{self.name}: valgrind failed: {done.stderr.strip().splitlines()[-1:]}")
            counts.append(int(found.group(1)))
        return round((counts[1] - counts[0]) / calls)


def install(name: str, revision: str | None) -> Version:
    """Build `revision` (None: the working files) into build/versions."""
    if revision is None:
        files = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        source = BUILD / "working" / "source"
        shutil.rmtree(BUILD / "working", ignore_errors=True)
        for file in files:
            if (ROOT / file).is_file():
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, source / file)
    else:
        commit = subprocess.run(
            ["git", "rev-parse", f"{revision}^{{commit}}"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        source = BUILD / commit[:12] / "source"
        if not source.exists():
            archive = subprocess.run(
                ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(source)
    site = source.parent / "site"
    if not site.exists():
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
        subprocess.run([*command, str(site), str(source)], check=True)
    return Version(name, site)


def in_turns(base: Version, new: Version, rounds: int, function: str, *arguments: Any) -> tuple[float, float]:
    """Medians in milliseconds over all rounds, base first."""
    taken: dict[str, list[float]] = {base.name: [], new.name: []}
    for number in range(rounds):
        for version in (base, new) if number % 2 else (new, base):
            taken[version.name] += version(function, *arguments)
    return 1e3 * statistics.median(taken[base.name]), 1e3 * statistics.median(taken[new.name])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="tag or commit of the earlier version")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each version (20)")
    parser.add_argument("--threads", default="1,2", help="thread counts of inference (1,2)")
    parser.add_argument("--skip", default="", help="inference, training or instructions, separated by commas")
    parser.add_argument("--tolerance", type=float, default=0.05, help="how much slower is a failure (0.05)")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "versions.jsonl")
    given = parser.parse_args()
    skip = set(given.skip.split(",")) - {""}
    base, new = install(f"base {given.base}", given.base), install("working files", None)
    files = {name: base.site / "xnorpp" / "shipped" / f"{name}.xnor" for name in SHIPPED}
    for name in NETWORKS:
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

    print(f"{'':13} {'':34} {given.base:>14} {'this checkout':>14}")
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
        "base_version": given.base,
        "commit": source_commit(),
        "date": today(),
        "hardware": describe_hardware(),
    }
    append_rows(given.results, [{**row, "kind": f"versions {row['kind']}", **facts} for row in rows])
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
