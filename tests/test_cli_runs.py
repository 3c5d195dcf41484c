"""`xnorpp paper table1` and its like: the list, the quick look, and the sentences for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from xnorpp.cli import main
from xnorpp.cli_paper import PAPER
from xnorpp.cli_runs import TRAINING


def test_every_training_experiment_is_a_command() -> None:
    assert set(TRAINING) <= set(PAPER)


@pytest.mark.parametrize("name", [name for name in TRAINING if name != "ship"])
def test_the_list_names_every_run_and_what_is_done(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", name, "--list", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("- ") for line in lines), "nothing is done in an empty folder"
    key = lines[0].split()[1]
    (tmp_path / "accuracy.jsonl").write_text(f'{{"key": "{key}"}}\n')
    assert main(["paper", name, "--list", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"done  {key}")


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


def test_an_unknown_data_set_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "table1", "--dataset", "mnist", "--list"]) == 2
    assert "mnist" in capsys.readouterr().err
