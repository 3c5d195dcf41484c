"""The queue: what results lack is trained, once; failures are told and take nothing with them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm

from xnorpp.paper.accuracy import queue
from xnorpp.paper.accuracy.queue import (
    QueueError,
    _lost_teachers,
    _progress,
    done_keys,
    read_results,
    run_queue,
)
from xnorpp.paper.accuracy.run import Run
from xnorpp.paper.accuracy.runs import plan, quick
from xnorpp.paper.recorded import accuracy, read_rows
from xnorpp.training.identity import code_hash

FEW_STEPS = ("schedule.max_steps=3",)


def _two() -> list[Run]:
    """A real-valued baseline and the binary network that learns from it, three steps each on the digits."""
    runs = [quick(run) for run in plan(("shipped",), ("cifar10",))[:2]]
    return [replace(run, settings=run.settings + FEW_STEPS) for run in runs]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are forks of a process that has torch; one test starts them as the queue does."""
    monkeypatch.setattr(queue, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": warm.popen}))


def test_the_queue_trains_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    runs, said = _two(), []
    rows = run_queue(
        runs, results=tmp_path / "results", folder=tmp_path / "runs", device="cpu", jobs=2, say=said.append
    )
    assert [row["key"] for row in rows] == [run.key for run in runs], "the student waits for its teacher"
    assert done_keys(tmp_path / "results", runs) == {run.key for run in runs}
    assert done_keys(tmp_path / "results", plan(("shipped",), ("cifar10",))) == set(), "a look is no result"
    longer = [replace(run, settings=(*run.settings, "schedule.epochs=3")) for run in runs]
    assert done_keys(tmp_path / "results", longer) == set(), "of another recipe"
    student = rows[1]
    assert student["experiment"] == "shipped"
    assert student["row"] == "best"
    assert student["name"] == "cifar10-resnet18"
    assert student["split"] == "test"
    assert 0 <= student["metrics"]["top1"] <= 100
    assert student["model"]["shortcut"] == "conv", "the whole network, not what differs from the defaults"
    assert student["settings"]["loss"]["teacher"] == runs[0].key, "a key, not a path"
    assert student["hardware"]["cores"] >= 1
    assert str(tmp_path) not in (tmp_path / "results" / "accuracy.jsonl").read_text()

    again = run_queue(
        runs, results=tmp_path / "results", folder=tmp_path / "runs", device="cpu", say=said.append
    )
    assert again == []
    assert "2 of 2 runs are in" in said[-1]
    assert len(read_results(tmp_path / "results")) == 2


@pytest.mark.usefixtures("quickly")
def test_a_failed_run_is_named_and_its_student_waits(tmp_path: Path) -> None:
    twin, student = _two()
    broken = replace(twin, settings=(*twin.settings, "data.batch_size=100000"))
    with pytest.raises(QueueError, match=f"1 of 2 runs failed .{twin.key}; {student.key} wait"):
        run_queue([broken, student], results=tmp_path, folder=tmp_path, device="cpu", say=lambda text: None)
    assert "`data.batch_size` (=100000)" in (tmp_path / twin.key / "log.txt").read_text()
    assert read_results(tmp_path) == []


@pytest.mark.usefixtures("quickly")
def test_time_over_stops_the_running_and_begins_no_other(tmp_path: Path) -> None:
    runs = [replace(run, settings=run.settings[:-1]) for run in _two()]
    said: list[str] = []
    rows = run_queue(runs, results=tmp_path, folder=tmp_path, device="cpu", minutes=1e-6, say=said.append)
    assert rows == []
    assert any("minutes are over" in line for line in said)
    assert not any(row["finished"] for row in read_results(tmp_path))


@pytest.mark.usefixtures("quickly")
def test_a_run_that_is_cut_off_leaves_how_far_it_came(tmp_path: Path) -> None:
    run = quick(plan(("claim",))[0])
    run = replace(run, settings=(*run.settings, "schedule.epochs=100000", "run.log_steps=1"))
    for minutes in (0.1, 0.25, 1, 4):  # a busy machine may need more to end an epoch
        place = tmp_path / str(minutes)
        rows = run_queue(
            [run], results=place, folder=place, device="cpu", minutes=minutes, say=lambda text: None
        )
        assert rows == []
        found = read_results(place)
        if any(row["epoch"] for row in found):
            break
    (row,) = found
    assert row["finished"] is False
    assert (row["key"], row["epochs"], row["seed"]) == (run.key, 100000, 10)
    assert row["epoch"] >= 1
    assert row["step"] >= 1
    assert row["metrics"]["batch_loss"] > 0
    assert row["code"] == code_hash()
    assert done_keys(place, [run]) == set()
    assert accuracy(read_rows(place), split=None) == [], "no table takes it for a result"


@pytest.mark.usefixtures("quickly")
def test_a_run_is_known_by_its_settings_and_its_code(tmp_path: Path) -> None:
    run = quick(plan(("claim",))[0])
    run = replace(run, settings=(*run.settings, *FEW_STEPS))
    (row,) = run_queue([run], results=tmp_path, folder=tmp_path, device="cpu", say=lambda text: None)
    assert row["finished"] is True
    assert row["code"] == code_hash()
    assert {"top1", "top5", "loss", "train_top1", "train_top5", "train_loss"} <= set(row["metrics"])
    assert row["seed"] == 10
    assert done_keys(tmp_path, [run]) == {run.key}
    saved_elsewhere = replace(run, settings=(*run.settings, "run.log_steps=7", "run.amp=bf16"))
    assert done_keys(tmp_path, [saved_elsewhere]) == {run.key}
    slower = replace(run, settings=(*run.settings, "optimizer.lr=0.0005"))
    assert done_keys(tmp_path, [slower]) == set()
    (tmp_path / "accuracy.jsonl").write_text(json.dumps({**row, "code": "0123456789ab"}) + "\n")
    assert done_keys(tmp_path, [run]) == set()
    assert done_keys(tmp_path, [run], ["0123456789ab"]) == {run.key}
    (tmp_path / "accuracy.jsonl").write_text(json.dumps({**row, "flaw": "of other images"}) + "\n")
    assert done_keys(tmp_path, [run]) == set()
    (tmp_path / "accuracy.jsonl").write_text(json.dumps({**row, "code": None}) + "\n")
    assert done_keys(tmp_path, [run]) == set(), "a row without a hash counts for older experiments only"


@pytest.mark.usefixtures("quickly")
def test_uncommitted_changes_are_refused_but_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xnorpp.paper.accuracy.queue.source_commit", lambda: "abc+changes")
    with pytest.raises(QueueError, match="uncommitted changes"):
        run_queue(plan(("claim",)), results=tmp_path, folder=tmp_path, say=lambda text: None)
    assert list(tmp_path.iterdir()) == []
    look = [replace(_two()[0], settings=(*_two()[0].settings, *FEW_STEPS))]
    assert run_queue(look, results=tmp_path, folder=tmp_path, device="cpu", say=lambda text: None)


def test_a_student_without_its_teacher_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="neither among these runs nor finished"):
        run_queue(_two()[1:], results=tmp_path, folder=tmp_path, device="cpu", say=lambda text: None)


@pytest.mark.usefixtures("quickly")
def test_a_recorded_teacher_without_weights_is_trained_again(tmp_path: Path) -> None:
    teacher, student = _two()
    row = {"key": teacher.key, "quick": True, "epochs": 2, "finished": True}
    (tmp_path / "accuracy.jsonl").write_text(json.dumps(row) + "\n")
    assert done_keys(tmp_path, [teacher, student]) == {teacher.key}
    said: list[str] = []

    def trained(retrain: bool) -> list[str]:
        rows = run_queue(
            [teacher, student],
            results=tmp_path,
            folder=tmp_path,
            device="cpu",
            retrain=retrain,
            say=said.append,
        )
        return [row["key"] for row in rows]

    weights = tmp_path / teacher.key / "model.safetensors"
    with pytest.raises(QueueError, match=f"{student.key} learns from {teacher.key}.*{weights}, are missing"):
        trained(retrain=False)
    assert not (tmp_path / teacher.key).exists()
    assert trained(retrain=True) == [teacher.key, student.key]
    assert any(text.startswith(f"{teacher.key} is trained again: {student.key} learns") for text in said)
    assert weights.exists()


def test_a_recorded_teacher_is_not_needed_by_recorded_students(tmp_path: Path) -> None:
    """Nor by one whose teacher's weights are there; the teachers of a lost teacher are looked for too."""
    teacher, student = _two()
    taught = replace(student, seed=1, teacher=student.key)
    lost = partial(_lost_teachers, [teacher, student, taught])
    assert lost({teacher.key, student.key, taught.key}, tmp_path) == {}
    assert lost({teacher.key, student.key}, tmp_path) == {student.key: taught.key, teacher.key: student.key}
    (tmp_path / student.key).mkdir()
    (tmp_path / student.key / "model.safetensors").touch()
    assert lost({teacher.key, student.key}, tmp_path) == {}
    assert lost(set(), tmp_path) == {}


def test_a_bad_number_of_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`jobs`"):
        run_queue([], results=tmp_path, folder=tmp_path, jobs=0)


def test_results_are_one_json_object_a_line(tmp_path: Path) -> None:
    (tmp_path / "accuracy.jsonl").write_text(
        json.dumps({"key": "a"}) + "\n\n" + json.dumps({"key": "b"}) + "\n"
    )
    assert [row["key"] for row in read_results(tmp_path)] == ["a", "b"]
    with (tmp_path / "accuracy.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(ValueError, match=r"line 4 of .*accuracy.jsonl is not JSON"):
        read_results(tmp_path)


def test_progress_names_the_epoch_as_the_run_does(tmp_path: Path) -> None:
    assert _progress(tmp_path) == "starting"
    row = {"kind": "train", "step": 5, "epoch": 1, "loss": 2.0, "images_per_s": 300.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert _progress(tmp_path) == "epoch 1, loss 2.000, 300 img/s"
