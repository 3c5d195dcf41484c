"""Opening whatever `MODEL` names on the command line: a packed file, a checkpoint file, or a run's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from xnorpp.inspect.layer import Inspection
from xnorpp.inspect.packed import inspect_program
from xnorpp.runtime.format.program import MAX_HEADER, read


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a packed model rather than a checkpoint: its own header says so, not its name.

    A file that is neither is taken for a packed one, whose reader says what is wrong with it.
    """
    place = Path(path)
    if place.is_dir():
        return False
    with place.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER:
            return True
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            return True
    meta = header.get("__metadata__") if isinstance(header, dict) else None
    return not (isinstance(meta, dict) and meta.get("format") == "xnorpp-checkpoint")


def inspect_file(path: str | os.PathLike[str]) -> Inspection:
    """Inspect a packed file (no torch needed), a checkpoint file or a run's folder."""
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"there is no file or folder {place}")
    if is_packed(place):
        return inspect_program(read(place), title=place.name, file_bytes=place.stat().st_size)
    from xnorpp.inspect.network import inspect_network
    from xnorpp.training import load_model

    model, meta = load_model(place)
    name = (meta.get("recipe") or {}).get("name")
    return inspect_network(model, title=str(name or place.name))
