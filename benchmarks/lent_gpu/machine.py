"""On the lent machine: its deadline, MPS, the queue as a process that outlives the call, and its progress."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import collect
import parts
import queue_of

CUDA_WORKS = "import torch; torch.zeros(8, device='cuda').sum().item()"
TELL = 30.0  # seconds between reports of `wait`


def start(home: Path, seconds: float, folders: Sequence[Path]) -> None:
    """Note when the machine goes back, report what it is, start MPS, take the first parts."""
    home.mkdir(parents=True, exist_ok=True)
    _write(home / "visit.json", {"deadline": time.time() + seconds, "started": time.time()})
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, {seconds:.0f} s until the deadline")
    start_mps()
    add(home, folders)


def left(home: Path) -> float:
    """Seconds until the deadline that `start` noted."""
    path = home / "visit.json"
    if not path.exists():
        raise ValueError(f"{home} has no deadline; run `lent_gpu start --seconds N` first")
    return float(_read(path)["deadline"]) - time.time()


def start_mps() -> bool:
    """Start NVIDIA's MPS, with which processes share a GPU truly; end it again if CUDA then fails."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("no MPS on this machine: runs take turns on the device")
        return False
    if subprocess.run([control, "-d"], start_new_session=True, check=False).returncode:
        print("MPS could not be started: it runs already, or runs take turns on the device")
        return False
    if subprocess.run([sys.executable, "-c", CUDA_WORKS], check=False).returncode == 0:
        print("MPS is running")
        return True
    subprocess.run([control], input="quit\n", text=True, check=False)
    print("MPS was ended, because CUDA does not work with it: runs take turns on the device")
    return False


def add(home: Path, folders: Sequence[Path]) -> None:
    """Take carried folders: parts of a data set, or folders of earlier runs (teachers, runs to resume)."""
    for folder in folders:
        if (folder / parts.LIST).exists():
            name = parts.take_part(folder, home / "parts")
            print(f"{folder}: a part of {name}")
        elif any(folder.glob("*/checkpoints")) or any(folder.glob("*/*.safetensors")):
            shutil.copytree(folder, home / "runs", dirs_exist_ok=True)
            _came_along(home, folder)
            print(f"{folder}: runs {', '.join(sorted(path.name for path in folder.iterdir()))}")
        else:
            raise ValueError(f"{folder} is neither a part of a data set nor a folder of runs")


def _came_along(home: Path, runs: Path) -> None:
    """Weights that were carried here need not be sent back."""
    collect.note_sent(home, [f"runs/{path.parent.name}/{path.name}" for path in runs.glob("*/*.safetensors")])


def read_plan(path: Path) -> dict[str, Any]:
    import tomllib

    plan = {
        "jobs": 1,
        "saves": 4,
        "settings": {},
        "weights": "float32",
        **tomllib.loads(path.read_text("utf-8")),
    }
    unknown = sorted(set(plan) - {"about", "runs", "jobs", "saves", "settings", "weights"})
    if unknown or not plan.get("runs"):
        raise ValueError(f"{path} must have `runs` and may not have {', '.join(unknown) or 'none'}")
    if plan["weights"] not in ("float32", "float16", "none"):
        raise ValueError(f"`weights` (={plan['weights']!r}) in {path} must be float32, float16 or none")
    return plan


def run(home: Path, plan: dict[str, Any], source: Path, *, first: str = "", device: str = "auto",
        margin: float = 60.0, settings: Sequence[str] = ()) -> None:  # fmt: skip
    """Unpack source and data, then start the queue, which ends `margin` seconds before the deadline."""
    if alive(home):
        raise ValueError(f"a queue is running in {home} already; `lent_gpu wait` shows its progress")
    keys = plan["runs"]
    if first:
        if first not in keys:
            raise ValueError(f"--first (={first}) must be a run of the plan: {', '.join(keys)}")
        plan = {**plan, "runs": keys[keys.index(first) :]}
    commit = unpack_source(source, home / "source")
    for store in sorted((home / "parts").glob("*/")):
        begun = time.time()
        earlier = store.name == "runs"  # folders of runs that were too large to be carried whole
        place = parts.join_parts(store, home if earlier else home / "data")
        if earlier:
            _came_along(home, place)
        print(f"{place}: {time.time() - begun:.1f} s")
    if not any((home / "data").glob("*/")):
        raise ValueError(f"{home} has no data set; `lent_gpu add` takes its parts")
    _write(home / "plan.json", plan)
    (home / "outcome").unlink(missing_ok=True)
    seconds = left(home) - margin
    if seconds <= 0:
        raise ValueError(f"nothing can run: {left(home):.0f} s until the deadline, margin {margin:g} s")
    command = [
        sys.executable,
        str(Path(queue_of.__file__).resolve()),
        str(home.resolve()),
        "--device",
        device,
    ]
    command += ["--minutes", str(seconds / 60), *(one for text in settings for one in ("--set", text))]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(home.resolve() / "source" / "src"),
                   "XNORPP_COMMIT": commit, "PYTHONUNBUFFERED": "1"}  # fmt: skip
    with (home / "queue.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    (home / "queue.pid").write_text(str(process.pid), encoding="utf-8")
    print(
        f"started: {len(plan['runs'])} runs, {plan['jobs']} at a time, of {commit[:7]}; {seconds:.0f} s left"
    )


def unpack_source(source: Path, place: Path) -> str:
    """Unpack what `lent_gpu source` wrote; the commit, which git notes in the archive."""
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(source) as tar:
        commit = tar.pax_headers.get("comment", "")
        tar.extractall(place, filter="data")
    if len(commit) != 40:
        raise ValueError(f"{source} is not an archive that `git archive` made of a commit")
    return commit


def alive(home: Path) -> bool:
    """Whether the queue's process runs."""
    try:
        state = Path("/proc", (home / "queue.pid").read_text("utf-8"), "stat").read_text("utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def stop(home: Path, keys: Sequence[str]) -> None:
    """End these runs, so that the others have the device; the queue records them as failed and goes on."""
    for key in keys:
        ended = 0
        for place in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (place / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                if f"runs/{key}" in arguments and (place / "cwd").resolve() == home.resolve():
                    os.kill(int(place.name), signal.SIGTERM)
                    ended += 1
            except OSError:  # it ended meanwhile, or belongs to someone else
                continue
        if not ended:
            raise ValueError(f"{key} is not running in {home}")
        print(f"stopped: {key}")


def wait(home: Path, seconds: float, margin: float = 30.0) -> str:
    """Report progress until the queue ends, `seconds` are over or the deadline is near; why it returned."""
    if not (home / "plan.json").exists():
        raise ValueError(f"no queue was started in {home}; `lent_gpu run PLAN` starts one")
    until = time.time() + min(seconds, left(home) - margin)
    told = 0.0
    while alive(home):
        if time.time() >= until:
            report(home)
            return "running"
        if time.time() - told > TELL:
            told = time.time()
            report(home)
        time.sleep(0.2)
    report(home)
    path = home / "outcome"
    return (
        path.read_text("utf-8").strip() if path.exists() else "failed: the queue was killed or never started"
    )


def report(home: Path) -> None:
    log = home / "queue.log"
    lines = log.read_text("utf-8", errors="replace").splitlines() if log.exists() else []
    print(f"{left(home):.0f} s until the deadline; {next((x for x in reversed(lines) if x[:1] != ' '), '')}")
    for line in lines[:-1]:
        if line.startswith("failed: "):
            print(f"  {line}")
    for key in _read(home / "plan.json")["runs"]:
        print(f"  {key}: {progress(home / 'runs' / key)}")


def progress(folder: Path) -> str:
    """Epoch, loss, images per second and the last evaluation of a run, from its metrics."""
    if not folder.exists():
        return "not begun"
    rows = []
    path = folder / "metrics.jsonl"
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # a line that is being written
            break
    train = next((row for row in reversed(rows) if row["kind"] == "train"), None)
    measured = next((row for row in reversed(rows) if row["kind"] == "eval"), None)
    if train is None:
        return "starting"
    text = f"epoch {train['epoch']}, loss {train['loss']:.3f}, {train.get('images_per_s', 0):,.0f} images/s"
    if measured is not None:
        text += f", top-1 {measured['top1']:.2f} % after epoch {measured['epoch']}"
    return text + (", finished" if (folder / "summary.json").exists() else "")


def shrink(home: Path, path: Path, target: Path, half: bool) -> None:
    """A checkpoint without the optimiser's state; `half`: matrices and filters in float16."""
    sys.path.insert(0, str(home / "source" / "src"))
    try:
        import torch

        checkpoint = queue_of.module("checkpoint")
        whole = checkpoint.load_checkpoint(path)
        weights = getattr(whole, "average", None) or whole.weights
        if half:
            weights = {
                name: value.half() if value.dim() > 1 and value.dtype == torch.float32 else value
                for name, value in weights.items()
            }
        checkpoint.save_checkpoint(target, weights, whole.meta)
    finally:
        sys.path.remove(str(home / "source" / "src"))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
