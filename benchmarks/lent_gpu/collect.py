"""What comes back from a lent machine: rows, logs and weights in a few files of limited size.

    accuracy.jsonl      every row that the queue has recorded
    records.tar.gz      logs, metrics and summaries of all runs, the plan, the queue's output
    weights.tar.001 ..  weights of runs that have not been sent before; one tar archive, cut into pieces
    index.json          the pieces' checksums, what was sent and what is left for the next call

`receive` puts them together again.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
FILES, FILE_BYTES, ALL_BYTES = 8, 16 * MIB, 64 * MIB
FINAL = "model.safetensors"
ROWS, RECORDS, WEIGHTS, INDEX = "accuracy.jsonl", "records.tar.gz", "weights.tar", "index.json"
SENT = "sent.json"

Shrink = Callable[[Path, Path, bool], None]  # source, target, whether to float16


def collect(
    home: Path, out: Path, kind: str, shrink: Shrink, ended: bool, anew: bool = False
) -> dict[str, Any]:
    """Write what `home` holds into the empty folder `out`, and return the index.

    `kind` of weights: float32, float16 or none. Final weights are sent once, as many as fit (`anew`: from
    the first again). When the queue has `ended`, so are the last checkpoints of runs that did not finish:
    whole, so that they can be resumed, where they are small, else their weights.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = home / "results" / ROWS
    if rows.exists():
        (out / ROWS).write_bytes(rows.read_bytes())
    _pack_records(home, out / RECORDS)
    sent = [] if anew else _sent(home)
    used = sum(path.stat().st_size for path in out.iterdir())
    room = min(ALL_BYTES - used - MIB, (FILES - 3) * FILE_BYTES)
    packed, now, left = io.BytesIO(), [], []
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in _weights(home / "runs", ended) if kind != "none" else ():
            name = path.relative_to(home).as_posix()
            if name in sent:
                continue
            path = _made_small(path, kind, room, home / "to-send" / name, shrink)
            if packed.tell() + path.stat().st_size + 20_480 > room:  # a tar archive is padded to 10,240 bytes
                left.append(name)
                continue
            tar.add(path, name)
            now.append(name)
    pieces = {}
    if now:
        content = packed.getbuffer()
        for number, start in enumerate(range(0, len(content), FILE_BYTES), 1):
            piece = bytes(content[start : start + FILE_BYTES])
            (out / f"{WEIGHTS}.{number:03d}").write_bytes(piece)
            pieces[f"{WEIGHTS}.{number:03d}"] = hashlib.sha256(piece).hexdigest()
    index = {"pieces": pieces, "weights": now, "left": left}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    note_sent(home, now)
    return index


def note_sent(home: Path, names: list[str]) -> None:
    """Weights that need not be sent: they were, or they came from where they would be sent to."""
    (home / SENT).write_text(json.dumps(sorted({*_sent(home), *names})), encoding="utf-8")


def _sent(home: Path) -> list[str]:
    path = home / SENT
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def receive(came: Path, into: Path, results: Path | None = None) -> dict[str, Any]:
    """Unpack what `collect` wrote into `into`, verified; append new rows to the file `results`."""
    index: dict[str, Any] = json.loads((came / INDEX).read_text(encoding="utf-8"))
    content = b""
    for name, digest in index["pieces"].items():
        piece = (came / name).read_bytes()
        if hashlib.sha256(piece).hexdigest() != digest:
            raise ValueError(f"{came / name} is damaged: its checksum is not the one in {INDEX}")
        content += piece
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(came / RECORDS) as tar:
        tar.extractall(into, filter="data")
    if content:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(into, filter="data")
    index["rows"] = 0
    if results is not None and (came / ROWS).exists():
        known = set(results.read_text(encoding="utf-8").splitlines()) if results.exists() else set()
        lines = (came / ROWS).read_text(encoding="utf-8").splitlines()
        fresh = [line for line in lines if line not in known]
        with results.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in fresh)
        index["rows"] = len(fresh)
    return index


def _pack_records(home: Path, path: Path) -> None:
    wanted = [*(home / "runs").glob("*/*"), *home.glob("results/*.jsonl"), *home.glob("queue.log"),
              *home.glob("plan.json"), *home.glob("visit.json")]  # fmt: skip
    with tarfile.open(path, "w:gz") as tar:
        for one in sorted(wanted):
            if one.is_file() and one.suffix in (".json", ".jsonl", ".txt", ".log", ".toml"):
                tar.add(one, one.relative_to(home).as_posix())


def _weights(runs: Path, ended: bool) -> list[Path]:
    """Final weights in the order in which runs finished; then last checkpoints of the others."""
    folders = [folder for folder in runs.glob("*") if folder.is_dir()]
    final = [folder / FINAL for folder in folders if (folder / FINAL).exists()]
    last = [
        max((folder / "checkpoints").glob("step-*.safetensors"), default=None)
        for folder in sorted(folders)
        if ended and not (folder / FINAL).exists()
    ]
    return sorted(final, key=lambda path: path.stat().st_mtime) + [path for path in last if path is not None]


def _made_small(path: Path, kind: str, room: int, target: Path, shrink: Shrink) -> Path:
    """The file itself, or a copy without the optimiser's state or in float16."""
    checkpoint = path.name != FINAL
    size = path.stat().st_size
    if size <= (FILE_BYTES if checkpoint or kind == "float16" else room):
        return path
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shrink(path, target, kind == "float16" or not checkpoint)
    return target
