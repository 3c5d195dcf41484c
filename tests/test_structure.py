"""The shape of the source tree: files that one person reads in one sitting, folders without drawers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".cpp", ".h", ".inl", ".cu", ".cuh", ".c")
LONGEST, FILES = 450, 16
DRAWERS = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}


def sources() -> list[Path]:
    found = [path for folder in ("src", "csrc") for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_too_long() -> None:
    lines = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in sources()
        if path.suffix in SUFFIXES
    }
    assert len(lines) > 100
    too_long = {name: count for name, count in lines.items() if count > LONGEST}
    assert too_long == {}, f"split these; at most {LONGEST} lines"


def test_no_folder_has_too_many_files() -> None:
    counts = Counter(name_of(path.parent) for path in sources())
    assert {name: count for name, count in counts.items() if count > FILES} == {}


def test_nothing_is_called_a_drawer() -> None:
    names = {part for path in sources() for part in Path(name_of(path)).with_suffix("").parts}
    assert names & DRAWERS == set()


def test_ci_runs_the_checks_and_the_tests() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\nmake check\n" in text
    assert "\nmake test\n" in text
