"""`xnorpp paper table1` and its like: the list, the quick look, and the sentences for what is wrong."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from xnorpp.cli.main import main
from xnorpp.cli.paper.experiments import PAPER
from xnorpp.cli.paper.runs import TRAINING
from xnorpp.paper.accuracy.queue import QueueError, recipe_of
from xnorpp.paper.accuracy.runs import EXPERIMENTS, WITHOUT_HASH, plan
from xnorpp.training.identity import settings_hash
from xnorpp.training.recipe.library import load_recipe


def test_every_training_experiment_is_a_command() -> None:
    assert set(TRAINING) <= set(PAPER)


@pytest.mark.parametrize("name", [name for name in TRAINING if name not in ("ship", "temperature")])
def test_the_list_names_every_run_and_what_is_done(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", name, "--list", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("- ") for line in lines), "nothing is done in an empty folder"
    _, key, recipe = lines[0].split()
    first = next(run for run in plan(EXPERIMENTS) if run.key == key)
    row = {"key": key, "epochs": load_recipe(recipe, first.settings).schedule.epochs}
    (tmp_path / "accuracy.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["paper", name, "--list", "--out", str(tmp_path)]) == 0
    older = first.experiment in WITHOUT_HASH
    assert capsys.readouterr().out.startswith(f"{'done' if older else '-':<5} {key}")
    hashed = {**row, "code": "of-old", "settings_hash": settings_hash(recipe_of(first, tmp_path, True))}
    (tmp_path / "accuracy.jsonl").write_text(json.dumps(hashed) + "\n")
    assert main(["paper", name, "--list", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("- "), "by other code"
    assert main(["paper", name, "--list", "--out", str(tmp_path), "--accept-code", "of-old"]) == 0
    assert capsys.readouterr().out.startswith(f"done  {key}")


@pytest.mark.skipif(
    not os.environ.get("XNORPP_DEPLOY"), reason="NOT RUN: trains 18 networks; `make test-deploy` does"
)
def test_a_quick_table3_trains_every_row_on_the_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = ["--out", str(tmp_path), "--runs", str(tmp_path)]
    assert main(["paper", "table3", "--quick", "--device", "cpu", "--jobs", "2", *folder]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("table3-")]
    assert len(rows) == 5
    assert "test set" in rows[0]
    table = out.split("A look: every row is the small network on digits")[1]
    assert table.count("(1 seed)") == 2 * 9
    assert "not measured yet" not in table
    assert (tmp_path / "table3.svg").stat().st_size > 1000


def test_missing_data_is_told_once_and_no_run_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    assert main(["paper", "table1", "--data", str(tmp_path), *folder]) == 2
    said = capsys.readouterr().err
    assert f"cifar10 and tiny_imagenet must be in `--data` (={str(tmp_path)!r})" in said
    assert len(said.strip().splitlines()) == 1
    assert main(["paper", "table1", "--dataset", "cifar10", "--data", str(tmp_path), *folder]) == 2
    assert "paper: cifar10 must be in `--data`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_runs_that_failed_are_one_sentence_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise QueueError("1 of 2 runs failed")

    monkeypatch.setattr("xnorpp.paper.accuracy.queue.run_queue", fail)
    assert main(["paper", "table3", "--quick", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "xnorpp paper: 1 of 2 runs failed.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("table2 --repetitions 0", "--repetitions: '0' is not a whole number of at least 1"),
        ("figure1 --rounds 0", "--rounds: '0' is not a whole number of at least 1"),
        ("table1 --jobs 0", "--jobs: '0' is not a whole number of at least 1"),
        ("table1 --minutes 0", "`--minutes` (=0) must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["paper", *arguments.split()])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert words in capsys.readouterr().err


def test_the_help_of_table1_counts_seeds_as_the_plan_does(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = Counter((run.dataset, run.row) for run in plan(("table1",)))
    counts = {row: count for (dataset, row), count in seeds.items() if dataset == "tiny_imagenet"}
    assert {row for row, count in counts.items() if count == 5} == {"xnor", "case4"}
    assert {count for row, count in counts.items() if row not in ("xnor", "case4")} == {3}
    assert {count for (dataset, _), count in seeds.items() if dataset == "cifar10"} == {1}
    with pytest.raises(SystemExit):
        main(["paper", "table1", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Three seeds on Tiny-ImageNet, five of the two rows that the claim compares (XNOR-Net with K and"
        in text
    )
    assert "one seed on CIFAR-10" in text


def test_a_data_set_without_runs_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "ablation", "--dataset", "cifar10", "--list"]) == 2
    assert "`--dataset` (=cifar10) has no run of `xnorpp paper ablation`" in capsys.readouterr().err


def test_an_unknown_data_set_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "table1", "--dataset", "mnist", "--list"]) == 2
    assert "mnist" in capsys.readouterr().err
