"""A resumable queue of training runs: whatever `results/accuracy.jsonl` lacks is trained and added to it.

Each run is a process of its own, `xnorpp train ... --resume`, so that a run which fails takes no other with
it and a queue that was stopped goes on where it was. Several run at a time (`jobs`): one network at 64 pixels
does not fill a large GPU, and with NVIDIA's MPS running, processes share it truly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from xnorpp.paper.accuracy.runs import ON_GPU, Run
from xnorpp.paper.recorded import read_file
from xnorpp.runtime.errors import FAILED, XnorppError
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.recipe.library import load_recipe
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.records.record import append_rows, today

RESULTS = "accuracy.jsonl"
FINAL = "model.safetensors"
LOOK = 1.0  # seconds between looks at the running processes
TELL = 20.0  # seconds between lines about them
SAVES = 4  # checkpoints a run: a kill loses a quarter at most


class QueueError(XnorppError, RuntimeError):
    """Some runs failed; the message names them and where their output is."""

    exit_code = FAILED


@dataclass
class Going:
    """A run that is going on."""

    run: Run
    process: subprocess.Popen[bytes]
    log: TextIO
    started: float


def done_keys(results: Path, runs: Sequence[Run]) -> set[str]:
    """The keys of those runs whose results are there: with as many epochs as the recipe has now, and those of
    a quick look for a quick look only.
    """
    there = {(row.get("key"), row.get("epochs"), bool(row.get("quick"))) for row in read_results(results)}

    def wanted(run: Run) -> tuple[str, int, bool]:
        epochs = load_recipe(run.recipe, run.settings).schedule.epochs
        return run.key, epochs, bool(dict(run.facts).get("quick"))

    return {run.key for run in runs if wanted(run) in there}


def read_results(results: Path) -> list[dict[str, Any]]:
    path = results / RESULTS
    return read_file(path) if path.exists() else []


def recipe_of(run: Run, folder: Path, on_gpu: bool) -> Recipe:
    """The run's recipe: its settings, a test set that is read once, few checkpoints."""
    return load_recipe(run.recipe, overrides(run, folder, on_gpu))


def overrides(run: Run, folder: Path, on_gpu: bool) -> list[str]:
    settings = [*run.settings, f"run.seed={run.seed}", *(ON_GPU if on_gpu else ("run.tensorboard=false",))]
    if run.teacher is not None:
        settings.append(f"loss.teacher={folder / run.teacher / FINAL}")
    epochs = load_recipe(run.recipe, settings).schedule.epochs
    return [*settings, f"run.eval_epochs={epochs}", f"run.save_epochs={max(1, -(-epochs // SAVES))}"]


def run_queue(
    runs: Sequence[Run],
    *,
    results: Path,
    folder: Path,
    data: str | Path | None = None,
    jobs: int = 1,
    device: str = "auto",
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Do the runs whose results are missing, in order, `jobs` at a time; the rows that were added.

    `folder` holds one folder a run. After `minutes` the running ones are stopped (they can be resumed) and no
    other is begun.
    """
    if jobs < 1:
        raise ValueError(f"`jobs` (={jobs}) must be at least 1")
    have = done_keys(results, runs)
    waiting = [run for run in runs if run.key not in have]
    say(f"{len(runs) - len(waiting)} of {len(runs)} runs are in {results / RESULTS}; {len(waiting)} to do")
    on_gpu = _uses_gpu(device) if waiting else False
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    going: list[Going] = []
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    told = 0.0
    with _stopping(going):
        while waiting or going:
            for one in [g for g in going if g.process.poll() is not None]:
                going.remove(one)
                one.log.close()
                if one.process.returncode == 0:
                    rows.append(_record(one, results, folder, say))
                else:
                    failed.append(one.run.key)
                    say(f"failed: {one.run.key} {_last_line(folder / one.run.key / 'log.txt')}")
            if time.monotonic() > deadline:
                say(f"{minutes:g} minutes are over; {len(going)} runs stopped, {len(waiting)} not begun")
                break
            while len(going) < jobs:
                run = _next_ready(waiting, folder, failed)
                if run is None:
                    break
                waiting.remove(run)
                going.append(_start(run, folder, data, device, on_gpu))
                say(f"started: {run.key}")
            if not going:
                break  # what is left waits for a teacher that will not come
            if time.monotonic() - told > TELL:
                told = time.monotonic()
                for one in going:
                    say(f"  {one.run.key}: {_progress(folder / one.run.key)}")
            time.sleep(LOOK)
    left = [run.key for run in waiting if run.teacher in failed]
    orphans = [run for run in waiting if run.teacher is not None and run.teacher not in failed]
    if orphans and time.monotonic() <= deadline:
        raise QueueError(
            f"{orphans[0].key} learns from {orphans[0].teacher}, which is neither among these runs "
            f"nor finished in {folder}"
        )
    if failed:
        raise QueueError(
            f"{len(failed)} of {len(runs)} runs failed ({', '.join(failed)}"
            + (f"; {', '.join(left)} wait for them" if left else "")
            + f"); their output is in {folder}/RUN/log.txt"
        )
    return rows


def _next_ready(waiting: Sequence[Run], folder: Path, failed: Sequence[str]) -> Run | None:
    """The first whose teacher is finished."""
    for run in waiting:
        if run.teacher is None or ((folder / run.teacher / FINAL).exists() and run.teacher not in failed):
            return run
    return None


def _start(run: Run, folder: Path, data: str | Path | None, device: str, on_gpu: bool) -> Going:
    out = folder / run.key
    out.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "xnorpp",
        "train",
        run.recipe,
        "--out",
        str(out),
        "--resume",
        "--device",
        device,
    ]
    if data is not None and not dict(run.facts).get("quick"):
        command += ["--data", str(data)]
    for setting in overrides(run, folder, on_gpu):
        command += ["--set", setting]
    log = (out / "log.txt").open("a", encoding="utf-8")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    return Going(run, process, log, time.monotonic())


def _record(one: Going, results: Path, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The finished run as a row, appended at once."""
    run, out = one.run, folder / one.run.key
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    recipe, metrics = summary["recipe"], summary["metrics"]
    recipe["loss"]["teacher"] = run.teacher or ""  # a key, not a path of the machine it was trained on
    row = {
        "kind": "accuracy",
        "key": run.key,
        "experiment": run.experiment,
        "row": run.row,
        "network": run.network,
        "dataset": run.dataset,
        "recipe": run.recipe,
        "settings": recipe,
        "model": summary["model"],
        "seed": run.seed,
        "epochs": recipe["schedule"]["epochs"],
        "split": "held" if run.held else "test",
        "metrics": metrics,
        "seconds": summary["seconds"],
        "images_per_second": summary["step"] * recipe["data"]["batch_size"] / max(summary["seconds"], 1e-9),
        "commit": summary["commit"],
        "date": today(),
        "hardware": summary["hardware"],
        **dict(run.facts),
    }
    append_rows(results / RESULTS, [row])
    took = time.monotonic() - one.started
    rate = row["images_per_second"]
    say(f"finished: {run.key}: top-1 {metrics['top1']:.2f} %, {rate:,.0f} img/s, {took:.0f} s")
    return row


def _progress(out: Path) -> str:
    rows = read_metrics(out / "metrics.jsonl")
    if not rows:
        return "starting"
    last = rows[-1]
    return f"epoch {last['epoch'] + 1}, loss {last['loss']:.3f}, {last.get('images_per_s', 0):,.0f} img/s"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _uses_gpu(device: str) -> bool:
    if device != "auto":
        return device.startswith("cuda")
    import torch

    return torch.cuda.is_available()


@contextlib.contextmanager
def _stopping(going: list[Going]) -> Iterator[None]:
    """Ends the running processes when the queue ends early, whatever the reason."""
    previous = signal.getsignal(signal.SIGTERM)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for one in going:
            one.process.terminate()
        for one in going:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(timeout=10)
            if one.process.poll() is None:
                os.kill(one.process.pid, signal.SIGKILL)
                one.process.wait()
            one.log.close()
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, previous)
