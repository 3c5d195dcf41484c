"""Measured numbers: one line each in results/*.jsonl, with its recipe, seed, commit and hardware."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import xnorpp
from xnorpp.runtime.machine import available_cores, processor


@functools.cache
def source_commit() -> str:
    """The commit of the source tree this package runs from (with `+changes` if edited), else its version.

    `XNORPP_COMMIT` states it for a copy of the tree that travelled without its history.
    """
    if stated := os.environ.get("XNORPP_COMMIT"):
        return stated
    home = Path(__file__).resolve().parents[1]
    try:
        commit = _git(home, "rev-parse", "HEAD")
        changed = _git(home, "status", "--porcelain", "--untracked-files=no", "--", str(home.parent))
    except (OSError, subprocess.SubprocessError):
        return f"xnorpp-{xnorpp.__version__}"
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def describe_hardware(device: Any = None, threads: int | None = None) -> dict[str, Any]:
    """The processor, its cores, and the GPU if `device` is one."""
    import torch

    found: dict[str, Any] = {
        "cpu": processor().name,
        "cores": available_cores(),
        "threads": threads or torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device is not None and torch.device(device).type == "cuda":  # pragma: cuda only
        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpus"] = int(os.environ.get("WORLD_SIZE", "1"))
    return found


def record_result(path: str | Path, summary: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Append a training summary as one row and return the row. `more` adds fields, such as `note`.

    Example:
        >>> import tempfile
        >>> from xnorpp.training import load_recipe, record_result
        >>> summary = {
        ...     "recipe": load_recipe("digits-small-case4").to_dict(),
        ...     "model": "small", "metrics": {"top1": 98.9}, "seconds": 9.5, "commit": "0.2", "hardware": {},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     row = record_result(f"{folder}/mine.jsonl", summary, note="an example")
        >>> row["recipe"], row["metrics"]
        ('digits-small-case4', {'top1': 98.9})
    """
    recipe = summary["recipe"]
    row = {
        "kind": "train",
        "recipe": recipe["name"],
        "seed": recipe["run"]["seed"],
        "commit": summary["commit"],
        "code": summary.get("code"),
        "settings_hash": summary.get("settings_hash"),
        "hardware": summary["hardware"],
        "date": today(),
        "model": summary["model"],
        "dataset": recipe["data"]["dataset"],
        "epochs": recipe["schedule"]["epochs"],
        "metrics": summary["metrics"],
        "seconds": summary["seconds"],
        "settings": recipe,
        **more,
    }
    append_rows(path, [row])
    return row


def append_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a .jsonl file of results, which is made if it is missing."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, sort_keys=True) + "\n")


def today() -> str:
    """The date a row carries."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
