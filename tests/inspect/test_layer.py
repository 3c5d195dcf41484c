"""The paper's formulas and the counts of a layer."""

from __future__ import annotations

import pytest

from xnorpp.inspect import Geometry, speedup_ours, speedup_xnor
from xnorpp.inspect.stopwatch import Spread, interleave, quantile


def test_speedups_are_the_papers_example() -> None:
    """256 output channels, 3x3: "S_XNOR = 63.69 and S_OURS = 63.98" (the formula gives 63.697 and 63.972)."""
    layer = Geometry(256, 256, (14, 14), (14, 14), (3, 3), padding=(1, 1))
    assert speedup_xnor(layer) == pytest.approx(64 * 9 * 256 / (9 * 256 + 2 + 9))
    assert speedup_xnor(layer) == pytest.approx(63.69, abs=0.01)
    assert speedup_ours(layer) == pytest.approx(64 * 9 * 256 / (9 * 256 + 1))
    assert speedup_ours(layer) == pytest.approx(63.98, abs=0.01)


def test_groups_leave_an_input_fewer_filters() -> None:
    grouped = Geometry(64, 64, (8, 8), (8, 8), (3, 3), padding=(1, 1), groups=4)
    plain = Geometry(64, 16, (8, 8), (8, 8), (3, 3), padding=(1, 1))
    assert speedup_ours(grouped) == speedup_ours(plain)
    assert grouped.multiply_adds == 64 * 16 * 9 * 64


def test_odd_channels_waste_bits() -> None:
    layer = Geometry(13, 7, (5, 5), (5, 5), (3, 3), padding=(1, 1))
    assert layer.packed_bytes == 7 * 9 * 2
    assert layer.wasted_bits == 7 * 9 * 3
    assert layer.word_waste == pytest.approx(1 - 13 / 32)
    assert Geometry(64, 7, (5, 5), (5, 5)).wasted_bits == 0


def test_quartiles() -> None:
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.minimum, spread.lower, spread.median, spread.upper, spread.calls) == (1, 2, 3, 4, 5)
    assert quantile([1.0, 2.0], 0.25) == 1.25
    with pytest.raises(ValueError, match="must have a value"):
        quantile([], 0.5)


def test_engines_take_turns() -> None:
    heard: list[str] = []
    found = interleave(
        {"a": lambda: heard.append("a"), "b": lambda: heard.append("b")},
        rounds=2,
        repeat=1,
        settle=0,
        before={"b": lambda: heard.append("before b")},
    )
    turn = ["a", "a", "before b", "b", "b"]
    assert heard == turn + turn
    assert found["a"].calls == found["b"].calls == 2
    with pytest.raises(ValueError, match=r"`rounds` \(=0\)"):
        interleave({}, rounds=0)
