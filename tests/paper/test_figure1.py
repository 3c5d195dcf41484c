"""Figure 1: the paper's formulas at its own example, the layer that is timed, storage, and the quick mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from xnorpp.cli import main as cli
from xnorpp.paper.layers import figure1
from xnorpp.paper.recorded import read_rows


def test_the_formulas_at_the_papers_example() -> None:
    xnor, ours = figure1.theory(256, 3)
    assert (round(xnor, 2), round(ours, 2)) == (63.70, 63.97)
    assert xnor == 64 * 2304 / (2304 + 2 + 9)
    assert ours == 64 * 2304 / (2304 + 1)


def test_theory_grows_with_channels_and_ours_is_ahead() -> None:
    for kernel in figure1.KERNELS:
        found = [figure1.theory(channels, kernel) for channels in figure1.CHANNELS]
        assert found == sorted(found)
        assert all(xnor < ours < 64 for xnor, ours in found)


def test_shapes_cross_at_the_papers_example() -> None:
    shapes = figure1.shapes()
    assert len(set(shapes)) == len(shapes) == len(figure1.CHANNELS) + len(figure1.KERNELS) - 1
    assert (256, 3) in shapes


@pytest.mark.parametrize("against", figure1.AGAINST)
def test_one_shape_is_timed_in_turns(against: str) -> None:
    row = figure1.measure_speed(8, 3, against=against, size=4, rounds=1, repeat=2)
    assert row["packed"]["calls"] == row["real"]["calls"] == 2
    assert row["speedup"] == row["real"]["median"] / row["packed"]["median"]
    assert row["speedup_fastest"] == row["real"]["minimum"] / row["packed"]["minimum"]
    assert ("torch" in row["how"]) == (against == "torch")


def test_storage_stays_below_one_bit_for_32() -> None:
    rows = list(figure1.measure_storage(quick=True))
    assert len(rows) == 3
    for row in rows:
        assert row["ratio"] == row["float_bytes"] / row["packed_bytes"]
        assert 8 < row["ratio"] < 32
    assert rows[2]["packed_bytes"] < rows[1]["packed_bytes"]


def test_the_quick_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["paper", "figure1", "--quick", "--out", str(tmp_path), "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "| 256 | 3x3 | 63.70 | 63.97 | not measured yet |" in out
    assert "the paper prints 63.69 and 63.98" in out
    rows = read_rows(tmp_path)
    assert {row["what"] for row in rows} == {"speed", "storage"}
    assert all(row["quick"] for row in rows)
    assert (tmp_path / "figure1.svg").is_file()
