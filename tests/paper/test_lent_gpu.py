"""The tool for machines that are lent for minutes: parts join to what they were, results come back whole."""

from __future__ import annotations

import importlib
import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from xnorpp.data import load_dataset
from xnorpp.models import create_model
from xnorpp.paper.accuracy.queue import recipe_of
from xnorpp.training import load_checkpoint, load_model, save_checkpoint

TOOL = Path(__file__).parents[2] / "benchmarks" / "lent_gpu"
NAMES = ("planes", "parts", "collect", "queue_of", "machine")
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.syspath_prepend(str(TOOL))
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """Files of every kind: CIFAR's records, one longer than a block, small ones, an empty one."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(records(20, 1, number))
    (folder / "test_batch.bin").write_bytes(records(10, 1, 9))
    (folder / "odd.bin").write_bytes(bytes(rng.integers(0, 256, 1000, np.uint8)))
    (folder / "deep" / "long.dat").write_bytes(bytes(rng.integers(0, 256, 150_000, np.uint8)))
    (folder / "deep" / "er" / "small.txt").write_text("a line\n")
    (folder / "empty.txt").write_bytes(b"")
    return folder


def records(count: int, head: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(rng.integers(-3, 4, (count, 3072)), 1) + 128
    labels = rng.integers(0, 10, (count, head))
    return bytes(np.concatenate([labels, smooth & 255], 1).astype(np.uint8))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_pixels_are_restored_from_their_differences(load: Load) -> None:
    planes = load("planes")
    rng = np.random.default_rng(1)
    for head in (1, 2):
        for values in (rng.integers(0, 256, 7 * (head + 3072)), rng.choice([0, 255], 5 * (head + 3072))):
            raw = values.astype(np.uint8).tobytes()
            coded = planes.encode(raw, head)
            assert len(coded) == len(raw)
            assert planes.decode(coded, head) == raw


def test_parts_join_to_the_data_set(
    load: Load, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = load("parts")
    monkeypatch.setattr(parts, "BLOCK_BYTES", 40_000)
    before = tree(data_set)
    (data_set / ".xnorpp").mkdir()
    (data_set / ".xnorpp" / "cache").write_bytes(b"decoded")
    (data_set / "n01_boxes.txt").write_text("no loader reads it")
    limit = 120_000
    folders = parts.write_parts(data_set, tmp_path / "out", limit)
    assert len(folders) > 2
    assert all(sum(map(len, tree(folder).values())) <= limit for folder in folders)

    store = tmp_path / "store"
    for folder in folders[1:]:
        assert parts.take_part(folder, store) == data_set.name
    with pytest.raises(parts.PartError, match=r"and part-1 did not come"):
        parts.join_parts(store / data_set.name, tmp_path / "data")
    parts.take_part(folders[0], store)
    place = parts.join_parts(store / data_set.name, tmp_path / "data")
    assert tree(place) == before
    images = load_dataset("cifar10", tmp_path / "data", "train")
    assert len(images) == 100

    (store / data_set.name / "block-0000.xz").write_bytes(b"damaged since")
    with pytest.raises(parts.PartError, match=r"block-0000.xz is damaged"):
        parts.join_parts(store / data_set.name, tmp_path / "again")
    with pytest.raises(parts.PartError, match="holds parts already"):
        parts.write_parts(data_set, tmp_path / "out", limit)


def test_damaged_or_foreign_parts_are_refused(load: Load, tmp_path: Path) -> None:
    parts = load("parts")
    store = tmp_path / "store"
    for number in (1, 2):
        folder = tmp_path / f"from-{number}" / "mine"
        folder.mkdir(parents=True)
        (folder / "text").write_text("x" * number)
        (part,) = parts.write_parts(folder, tmp_path / f"out-{number}")
        if number == 1:
            parts.take_part(part, store)
    with pytest.raises(parts.PartError, match="parts of two different splits"):
        parts.take_part(part, store)
    block = part / "block-0000.xz"
    block.write_bytes(block.read_bytes()[:-1] + b"?")
    with pytest.raises(parts.PartError, match="is damaged"):
        parts.take_part(part, tmp_path / "other")
    with pytest.raises(parts.PartError, match=r"--bytes \(=200\) must be at least \d+"):
        parts.write_parts(folder, tmp_path / "small", 200)


def write_run(runs: Path, key: str, size: int, *, finished: bool) -> None:
    folder = runs / key
    (folder / "checkpoints").mkdir(parents=True)
    content = np.random.default_rng(len(key)).bytes(size)
    (folder / "log.txt").write_text(f"log of {key}\n")
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    (folder / "checkpoints" / "step-000000001.safetensors").write_bytes(content[::-1])
    (folder / "checkpoints" / "step-000000002.safetensors").write_bytes(content)
    if finished:
        (folder / "model.safetensors").write_bytes(content)


def test_what_is_collected_comes_back(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = load("collect")
    monkeypatch.setattr(collect, "MIB", 1000)
    monkeypatch.setattr(collect, "FILE_BYTES", 40_000)
    monkeypatch.setattr(collect, "ALL_BYTES", 180_000)
    home, results = tmp_path / "home", tmp_path / "accuracy.jsonl"
    for key in ("first", "second-one", "third"):
        write_run(home / "runs", key, 90_000, finished=True)
    write_run(home / "runs", "cut-off", 10_000, finished=False)
    (home / "results").mkdir()
    (home / "results" / "accuracy.jsonl").write_text('{"key": "first"}\n{"key": "second-one"}\n')
    results.write_text('{"key": "older"}\n{"key": "first"}\n')

    def never(*_: object) -> None:
        raise AssertionError("these files are small enough")

    sent = []
    for number, ended in enumerate((False, False, False, True)):
        out = tmp_path / f"out-{number}"
        index = collect.collect(home, out, "float32", never, ended)
        assert len(list(out.iterdir())) <= collect.FILES
        assert all(path.stat().st_size <= 40_000 for path in out.iterdir())
        assert sum(path.stat().st_size for path in out.iterdir()) <= 180_000
        sent += index["weights"]
        rows = collect.receive(out, tmp_path / "back", results)["rows"]
        assert rows == (1 if number == 0 else 0)
    last = "runs/cut-off/checkpoints/step-000000002.safetensors"
    assert len(sent) == len(set(sent)) == 4
    assert sent[-1] == last
    for name in (*sent, "runs/third/log.txt", "runs/cut-off/metrics.jsonl"):
        assert (tmp_path / "back" / name).read_bytes() == (home / name).read_bytes()
    assert results.read_text().count("\n") == 3

    again = collect.collect(home, tmp_path / "anew", "float32", never, True, anew=True)
    assert again["weights"] == [sent[0], last]
    assert len(again["left"]) == 2
    piece = tmp_path / "anew" / "weights.tar.002"
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"weights.tar.002 is damaged"):
        collect.receive(tmp_path / "anew", tmp_path / "nowhere")
    assert collect.collect(home, tmp_path / "none", "none", never, True)["weights"] == []


def test_large_weights_come_back_without_optimizer_in_float16(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, machine = load("collect"), load("machine")
    home = tmp_path / "home"
    model = create_model("small", input_size=8, in_channels=1)
    path = home / "runs" / "one" / "checkpoints" / "step-000000003.safetensors"
    state = {f"{name}/moment": torch.zeros_like(value) for name, value in model.named_parameters()}
    save_checkpoint(path, model.state_dict(), {"model": model.config, "step": 3}, state)
    monkeypatch.setattr(collect, "FILE_BYTES", path.stat().st_size - 1)

    def small(source: Path, target: Path, half: bool) -> None:
        machine.shrink(home, source, target, half)

    index = collect.collect(home, tmp_path / "out", "float16", small, True)
    assert index["weights"] == ["runs/one/checkpoints/step-000000003.safetensors"]
    collect.receive(tmp_path / "out", tmp_path / "back")
    came = tmp_path / "back" / index["weights"][0]
    assert came.stat().st_size < path.stat().st_size / 2
    assert load_checkpoint(came).optimizer == {}
    restored, _ = load_model(came)
    for name, value in restored.state_dict().items():
        assert value.dtype == model.state_dict()[name].dtype
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("path", sorted((TOOL / "plans").glob("*.toml")), ids=lambda path: path.stem)
def test_plans_name_runs_that_exist(load: Load, path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("plans are read by Python 3.11 or later")
    machine, queue_of = load("machine"), load("queue_of")
    plan = machine.read_plan(path)
    runs = queue_of.chosen(plan)
    assert [run.key for run in runs] == plan["runs"]
    for at, run in enumerate(runs):
        assert run.teacher is None or run.teacher in plan["runs"][:at]
        epochs = recipe_of(run, Path(), on_gpu=False).schedule.epochs
        if plan["settings"]:
            assert (f"schedule.epochs={epochs}" in run.settings) == (run.experiment == "student")
    with pytest.raises(ValueError, match="has no run no-such-run"):
        queue_of.chosen({**plan, "runs": ["no-such-run"]})


def test_a_queue_that_fails_is_reported(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of this source has no queue (or is hidden by the installed package, which is refused too)."""
    machine = load("machine")
    home, source = tmp_path / "home", tmp_path / "source.tar"
    with tarfile.open(source, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "a" * 40}) as tar:
        tar.addfile(tarfile.TarInfo("src/xnorpp/__init__.py"), io.BytesIO())
    plan = {"runs": ["one", "two"], "jobs": 2, "saves": 4, "settings": {}, "weights": "none"}
    monkeypatch.setattr(machine, "start_mps", lambda: False)
    with pytest.raises(ValueError, match="no queue was started"):
        machine.wait(home, 1)
    machine.start(home, 200, [])
    with pytest.raises(ValueError, match="has no data set"):
        machine.run(home, plan, source)
    (home / "data" / "mine").mkdir(parents=True)
    write_run(tmp_path / "runs", "earlier", 100, finished=True)
    machine.add(home, load("parts").write_parts(tmp_path / "runs", tmp_path / "carried"))
    with pytest.raises(ValueError, match=r"--first \(=three\) must be a run of the plan"):
        machine.run(home, plan, source, first="three")
    with pytest.raises(ValueError, match="nothing can run"):
        machine.run(home, plan, source, margin=300)
    machine.run(home, plan, source, first="two", device="cpu")
    assert json.loads((home / "plan.json").read_text())["runs"] == ["two"]
    assert machine.wait(home, 60).startswith("failed: ")
    assert tree(home / "runs") == tree(tmp_path / "runs")
    assert json.loads((home / "sent.json").read_text()) == ["runs/earlier/model.safetensors"]
    with pytest.raises(ValueError, match="two is not running"):
        machine.stop(home, ["two"])
    train = [sys.executable, "-c", "import time; time.sleep(60)", "--out", "runs/two"]
    with subprocess.Popen(train, cwd=home) as process:
        while b"runs/two" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)  # until the copy of this process has become the other program
        machine.stop(home, ["two"])
        assert process.wait(20) == -signal.SIGTERM
    assert "two: not begun" in capsys.readouterr().out
    with pytest.raises(ValueError, match="neither a part of a data set nor a folder of runs"):
        machine.add(home, [home / "data"])


def test_progress_reads_metrics_that_are_being_written(load: Load, tmp_path: Path) -> None:
    machine = load("machine")
    assert machine.progress(tmp_path / "none") == "not begun"
    assert machine.progress(tmp_path) == "starting"
    rows = [
        {"kind": "train", "step": 5, "epoch": 3, "loss": 1.25, "images_per_s": 12345.6},
        {"kind": "eval", "step": 5, "epoch": 3, "top1": 50.5},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "tr'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert machine.progress(tmp_path) == "epoch 3, loss 1.250, 12,346 images/s, top-1 50.50 % after epoch 3"
