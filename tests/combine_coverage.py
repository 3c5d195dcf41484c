"""Joins the coverage data of many processes into one file, for `make coverage`.

    python tests/combine_coverage.py PARTS JOINED

Tests kill processes on purpose, and one killed while it writes leaves a damaged file. Such a file is named
and left out; its process's lines are then missing from the measure, which can only make it smaller.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from coverage import Coverage


def damage(path: Path) -> str | None:
    """What is wrong with a data file, or None."""
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as file:
            found = file.execute("pragma integrity_check").fetchone()[0]
            file.execute("select count(*) from line_bits").fetchone()
    except sqlite3.Error as error:
        return str(error)
    finally:
        file.close()
    return None if found == "ok" else str(found)


def main(folder: Path, joined: Path) -> int:
    parts = sorted(folder.glob("data.*"))
    sound = []
    for path in parts:
        why = damage(path)
        if why is None:
            sound.append(str(path))
        else:
            print(f"coverage: {path.name} is left out, its process was killed while writing ({why})")
    print(f"coverage: {len(sound)} of {len(parts)} processes' files are joined")
    whole = Coverage(data_file=str(joined))
    whole.combine(sound, strict=True, keep=True)
    whole.save()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
