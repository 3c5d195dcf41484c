"""What a run is known by: the settings that decide its accuracy and the code that trains it, not its name."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import xnorpp
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.state.resume import FREE_TO_CHANGE, flat

# The packages whose code decides what a run's network is and computes.
DECIDING_PACKAGES = ("nn", "models", "data", "training")
# What the hash of the settings leaves out besides what may change in a resumed run: precision and memory
# layout of the step, which a GPU's run sets beside its recipe, and paths. Whether there is a teacher counts.
NOT_HASHED = {*FREE_TO_CHANGE, "run.amp", "run.channels_last", "run.compile", "data.prepare", "loss.teacher",
              "loss.answers"}  # fmt: skip


@functools.cache
def code_hash() -> str:
    """Twelve hex digits that change with the code that decides a run: names and contents of the Python files
    of `DECIDING_PACKAGES`.
    """
    home = Path(xnorpp.__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(path for package in DECIDING_PACKAGES for path in (home / package).rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(home).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def settings_hash(recipe: Recipe) -> str:
    """Twelve hex digits that change with the settings that decide a run's accuracy, the seed included.

    Only what differs from the defaults is hashed, so that a new key leaves older hashes as they are; a
    default that changes shows in `code_hash`.
    """
    usual = flat(Recipe().to_dict())
    chosen = {
        key: value
        for key, value in flat(recipe.to_dict()).items()
        if value != usual.get(key) and key not in NOT_HASHED and not key.startswith("paper.")
    }
    chosen["teacher"] = bool(recipe.loss.teacher)
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]
