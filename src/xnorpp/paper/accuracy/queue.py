"""A resumable queue of training runs: whatever `results/accuracy.jsonl` lacks is trained and added to it.

Each run is a process of its own, `xnorpp train ... --resume`, so that a run which fails takes no other with
it and a queue that was stopped continues where it was. Several run at a time (`jobs`): one network at 64
pixels does not fill a large GPU, and with NVIDIA's MPS running, processes share it truly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from xnorpp.data import Augment, dataset_info
from xnorpp.paper.accuracy.run import Run
from xnorpp.paper.accuracy.runs import ON_GPU, WITHOUT_HASH
from xnorpp.paper.recorded import read_file
from xnorpp.runtime.errors import FAILED, XnorppError
from xnorpp.training.identity import code_hash, settings_hash
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.recipe.library import load_recipe
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today

RESULTS = "accuracy.jsonl"
FINAL = "model.safetensors"
ANSWERS = "teachers-answers"  # the folder of what teachers answer to crops and flips, beside those of runs
LOOK = 1.0  # seconds between looks at the running processes
TELL = 20.0  # seconds between lines about them
SAVES = 4  # checkpoints per run: a kill loses a quarter at most
# Hashes of earlier code that trains exactly as today's does, such as from before files were moved.
# E1 to E3 are trained by the code of the tag `claim-runs`, whose hash is the first one below; baselines and
# levers by that of `lever-runs`, the second; students by that of `student-runs-2`, the third, and those whose
# teachers held images out, like these teachers, by that of `student-runs-3`, the fourth, and levers of
# ResNet-18, with what trained beside them, by that of `student-runs-4`, the fifth. Then that of commit
# 857fabb, whose students share their teacher's stored answers, and that of 814a048, whose teacher of
# Tiny-ImageNet was measured again with other statistics of batch norm.
ACCEPTED_CODE: tuple[str, ...] = (
    "1b0b68696e55", "d1eedddc1433", "9b0a0057af76", "278549fba7ab", "bed6509b7edd", "5aed43045490",
    "8f457e5d6545", "fc24d46cc448",
)  # fmt: skip


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


def done_keys(results: Path, runs: Sequence[Run], accept: Collection[str] = ()) -> set[str]:
    """The keys of those runs whose results are there: finished, with the settings that the run has now, by
    the code of today or by code whose hash is in `accept` or `ACCEPTED_CODE`; those of a quick look for a
    quick look only. Rows with a `flaw`, the reason why a result is wrong, do not count.

    Rows of the first experiments (`WITHOUT_HASH`) carry no hashes; they count if they have as many epochs as
    the run.
    """
    code = {code_hash(), *ACCEPTED_CODE, *accept}
    known: set[tuple[Any, ...]] = set()
    for row in read_results(results):
        if not row.get("finished", True) or row.get("flaw"):
            continue
        name = row.get("key"), bool(row.get("quick"))
        if row.get("code") is None:
            known.add((*name, row.get("epochs")))
        elif row["code"] in code:
            known.add((*name, row.get("settings_hash")))

    def done(run: Run) -> bool:
        recipe = recipe_of(run, Path(), on_gpu=False)
        name = run.key, bool(dict(run.facts).get("quick"))
        older = run.experiment in WITHOUT_HASH and (*name, recipe.schedule.epochs) in known
        return older or (*name, settings_hash(recipe)) in known

    return {run.key for run in runs if done(run)}


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
    recipe = load_recipe(run.recipe, settings)
    augment = Augment.parse(recipe.data.augment or None, dataset_info(recipe.data.dataset).default_augment)
    if run.teacher is not None and 0 < augment.views <= recipe.schedule.epochs:  # each is seen once or more
        settings.append(f"loss.answers={folder / ANSWERS}")
    epochs = recipe.schedule.epochs
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
    accept: Collection[str] = (),
    retrain: bool = True,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Do the runs whose results are missing, in order, `jobs` at a time; the rows that were added.

    `folder` holds one folder per run. After `minutes`, or at SIGTERM, the running ones are stopped and no
    other is begun; how far each had come is recorded in a row of its own with `finished` false. They can be
    resumed. `accept`: hashes of code whose results count (`done_keys`). A teacher whose result is recorded
    and whose weights are not in `folder` is trained again, or without `retrain` an error. Runs of a source
    tree with uncommitted changes are refused, unless they are a quick look.
    """
    if jobs < 1:
        raise ValueError(f"`jobs` (={jobs}) must be at least 1")
    have = done_keys(results, runs, accept)
    recorded = [run for run in runs if run.key in have]
    again = _lost_teachers(runs, have, folder)
    if again and not retrain:
        teacher, student = next(iter(again.items()))
        raise QueueError(
            f"{student} learns from {teacher}, whose result is recorded and whose weights, "
            f"{folder / teacher / FINAL}, are missing; copy them there, or leave out --no-retrain"
        )
    waiting = [run for run in runs if run.key not in have or run.key in again]
    say(f"{len(recorded)} of {len(runs)} runs are in {results / RESULTS}; {len(waiting)} to do")
    for teacher, student in again.items():
        say(f"{teacher} is trained again: {student} learns from it, and its weights are not in {folder}")
    _refuse_changes(waiting)
    on_gpu = _uses_gpu(device) if waiting else False
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    going: list[Going] = []
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    told = 0.0

    def cut_off(one: Going, code: int | None) -> None:
        if code == 0:  # it finished before it could be stopped
            rows.append(_record(one, results, folder, say))
        else:
            _record_unfinished(one, results, folder, on_gpu, say)

    with _stopping(going, cut_off):
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


def _lost_teachers(runs: Sequence[Run], have: Collection[str], folder: Path) -> dict[str, str]:
    """Teacher -> student, where the student is to be trained and of the teacher only the result is there."""
    named = {run.key: run for run in runs}
    lost: dict[str, str] = {}
    students = [run for run in runs if run.key not in have]
    while students:
        student = students.pop(0)
        teacher = named.get(student.teacher or "")
        if teacher is None or teacher.key not in have or teacher.key in lost:
            continue
        if not (folder / teacher.key / FINAL).exists():
            lost[teacher.key] = student.key
            students.append(teacher)
    return lost


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
    row = {
        "kind": "accuracy",
        "finished": True,
        **_described(run, recipe),
        "model": summary["model"],
        "metrics": metrics,
        "seconds": summary["seconds"],
        "images_per_second": summary["step"] * recipe["data"]["batch_size"] / max(summary["seconds"], 1e-9),
        "commit": summary["commit"],
        "code": summary["code"],
        "settings_hash": summary["settings_hash"],
        "hardware": summary["hardware"],
    }
    append_rows(results / RESULTS, [row])
    took = time.monotonic() - one.started
    rate = row["images_per_second"]
    say(f"finished: {run.key}: top-1 {metrics['top1']:.2f} %, {rate:,.0f} img/s, {took:.0f} s")
    return row


def _record_unfinished(
    one: Going, results: Path, folder: Path, on_gpu: bool, say: Callable[[str], None]
) -> None:
    """How far a run had come that was stopped. A kind of its own, so that no table takes it for a result."""
    import torch

    run = one.run
    recipe = recipe_of(run, folder, on_gpu)
    steps = [row for row in read_metrics(folder / run.key / "metrics.jsonl") if row["kind"] == "train"]
    last = steps[-1] if steps else {}
    row = {
        "kind": "unfinished",
        "finished": False,
        **_described(run, recipe.to_dict()),
        "epoch": last["epoch"] if last else 0,
        "step": last.get("step", 0),
        "metrics": {"batch_loss": last["loss"]} if last else {},
        "seconds": time.monotonic() - one.started,
        "commit": source_commit(),
        "code": code_hash(),
        "settings_hash": settings_hash(recipe),
        "hardware": describe_hardware(torch.device("cuda") if on_gpu else None),
    }
    append_rows(results / RESULTS, [row])
    say(f"stopped: {run.key} in epoch {row['epoch']} of {row['epochs']}")


def _described(run: Run, recipe: dict[str, Any]) -> dict[str, Any]:
    """What a row has of the run, whether it finished or not."""
    recipe["loss"]["teacher"] = run.teacher or ""  # a key, not a path of the machine it was trained on
    if recipe["loss"].get("answers"):
        recipe["loss"]["answers"] = ANSWERS
    return {
        "key": run.key,
        "experiment": run.experiment,
        "row": run.row,
        "network": run.network,
        "dataset": run.dataset,
        "recipe": run.recipe,
        "settings": recipe,
        "seed": run.seed,
        "epochs": recipe["schedule"]["epochs"],
        "split": "held" if run.held else "test",
        "date": today(),
        **dict(run.facts),
    }


def _refuse_changes(runs: Sequence[Run]) -> None:
    """Results must come from code that can be found again."""
    if source_commit().endswith("+changes") and not all(dict(run.facts).get("quick") for run in runs):
        raise QueueError(
            "the source tree or its recipes have uncommitted changes; commit them before training, or take "
            "--quick for a look"
        )


def _progress(out: Path) -> str:
    rows = read_metrics(out / "metrics.jsonl")
    if not rows:
        return "starting"
    last = rows[-1]
    return f"epoch {last['epoch']}, loss {last['loss']:.3f}, {last.get('images_per_s', 0):,.0f} img/s"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _uses_gpu(device: str) -> bool:
    if device != "auto":
        return device.startswith("cuda")
    import torch

    return torch.cuda.is_available()


@contextlib.contextmanager
def _stopping(going: list[Going], cut_off: Callable[[Going, int | None], None]) -> Iterator[None]:
    """Ends the running processes when the queue ends early, whatever the reason, and then calls `cut_off`
    with each and its exit status, None if it had to be stopped.
    """
    previous = signal.getsignal(signal.SIGTERM)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        ended = {one.run.key: one.process.poll() for one in going}
        for one in going:
            one.process.terminate()
        for one in going:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(timeout=10)
            if one.process.poll() is None:
                os.kill(one.process.pid, signal.SIGKILL)
                one.process.wait()
            one.log.close()
            cut_off(one, ended[one.run.key])
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, previous)
