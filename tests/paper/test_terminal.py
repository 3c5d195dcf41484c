"""The drawing of a terminal: every line that was printed is in it, escaped."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from xnorpp.paper.plots import PLOTS, digest, drawn_from
from xnorpp.paper.terminal import demo_data, terminal_svg

ROWS = [
    {"kind": "captured", "name": "demo", "output": "old"},
    {"kind": "captured", "name": "demo", "output": "Training <small> & co\n  packed    0.014 ms"},
    {"kind": "captured", "name": "test", "output": "3 passed"},
]


def test_the_latest_demo_counts() -> None:
    assert demo_data(ROWS) == ["make demo", "Training <small> & co\n  packed    0.014 ms"]
    assert demo_data([]) == []


def test_lines_are_drawn_as_they_were_printed() -> None:
    root = ElementTree.fromstring(terminal_svg(*demo_data(ROWS), "about it"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [one.text for one in root.iter(f"{space}text")]
    assert texts == ["$ make demo", "Training <small> & co", "  packed    0.014 ms"]
    places = [float(one.get("y", "0")) for one in root.iter(f"{space}text")]
    assert places == sorted(places)
    assert places[-1] < float(root.get("viewBox", "").split()[3])


def test_the_file_records_what_it_was_drawn_from(tmp_path: Path) -> None:
    data, draw = PLOTS["demo"]
    draw(ROWS, tmp_path / "demo.svg")
    assert drawn_from(tmp_path / "demo.svg") == digest(data(ROWS))
