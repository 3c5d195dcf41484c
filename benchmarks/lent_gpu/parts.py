"""A data set in parts: folders of limited size that are carried one at a time and joined elsewhere.

A part holds blocks, each compressed by itself, so that they can be made and unpacked in parallel and no part
needs another. Each part lists the blocks of all parts with their checksums: what is missing or damaged is
found before anything is unpacked, and every block carries the checksum of its content as well.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import struct
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path, PurePosixPath
from typing import Any

import planes

LIST = "parts.json"
PART_BYTES = 40_000_000  # Tiny-ImageNet is four of them, CIFAR-10 and CIFAR-100 three
BLOCK_BYTES = 2_000_000  # before compression: small blocks fill a part well
RECORD_BYTES = {3073: 1, 3074: 2}  # CIFAR-10's and CIFAR-100's binary records: bytes, of which labels
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 4, "lp": 0, "pb": 0}]
LEFT_OUT = ("_boxes.txt", ".html")  # files that no loader reads; hidden ones and `test` without labels too

Piece = tuple[str, int, int]  # path in the data set, first byte, number of bytes


class PartError(ValueError):
    """A part is missing, damaged, or cannot be made; the message is one sentence."""


def write_parts(folder: Path, out: Path, limit: int = PART_BYTES) -> list[Path]:
    """Write the files of `folder` as `out`/part-1, part-2, ... of at most `limit` bytes each."""
    if not folder.is_dir():
        raise PartError(f"{folder} is not a folder with a data set")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("part-*")):
        raise PartError(f"{out} holds parts already; remove them or choose another folder")
    with get_context("spawn").Pool() as pool:
        blocks = pool.starmap(_compress, ((folder, pieces, head) for pieces, head in _blocks(folder)), 1)
    if not blocks:
        raise PartError(f"{folder} holds no file")
    room = limit - 300 * len(blocks)  # the list is part of a part
    if (largest := max(map(len, blocks))) > room:
        raise PartError(f"--bytes (={limit}) must be at least {largest + limit - room} for this data set")
    content: list[list[tuple[str, bytes]]] = []
    used = room
    for number, block in enumerate(blocks):
        if used + len(block) > room:
            content.append([])
            used = 0
        content[-1].append((f"block-{number:04d}.xz", block))
        used += len(block)
    listed = {name: [i + 1, _digest(block)] for i, part in enumerate(content) for name, block in part}
    text = json.dumps({"name": folder.name, "parts": len(content), "blocks": listed})
    folders = []
    for number, part in enumerate(content, 1):
        place = out / f"part-{number}"
        place.mkdir()
        for name, block in part:
            (place / name).write_bytes(block)
        (place / LIST).write_text(text, encoding="utf-8")
        folders.append(place)
    return folders


def take_part(part: Path, store: Path) -> str:
    """Copy the blocks of `part` into `store`, verified; the name of the data set."""
    text = (part / LIST).read_text(encoding="utf-8")
    listed = json.loads(text)
    place = store / listed["name"]
    place.mkdir(parents=True, exist_ok=True)
    known = place / LIST
    if known.exists() and known.read_text(encoding="utf-8") != text:
        raise PartError(f"{part} and what is in {place} are parts of two different splits")
    for path in sorted(part.glob("block-*.xz")):
        block = path.read_bytes()
        if path.name not in listed["blocks"] or _digest(block) != listed["blocks"][path.name][1]:
            raise PartError(f"{path} is damaged: its checksum is not the one in {LIST}")
        (place / path.name).write_bytes(block)
    known.write_text(text, encoding="utf-8")
    return str(listed["name"])


def join_parts(store: Path, data: Path) -> Path:
    """Unpack the parts of one data set, taken into `store`, into `data`/NAME; done once."""
    listed = json.loads((store / LIST).read_text(encoding="utf-8"))
    place = data / listed["name"]
    if place.exists():
        return place
    missing = {entry[0] for name, entry in listed["blocks"].items() if not (store / name).exists()}
    if missing:
        names = ", ".join(f"part-{number}" for number in sorted(missing))
        raise PartError(f"{listed['name']} has {listed['parts']} parts, and {names} did not come")
    half = place.with_name(place.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    jobs = [(store / name, digest, half) for name, (_, digest) in listed["blocks"].items()]
    with get_context("spawn").Pool() as pool:
        pool.starmap(_unpack, jobs, 1)
    half.rename(place)
    return place


def _blocks(folder: Path) -> Iterator[tuple[list[Piece], int]]:
    """Pieces of files that make a block each, and the labels' bytes where they are CIFAR's records."""
    pieces: list[Piece] = []
    size = 0
    for path in _files(folder):
        name, length = path.relative_to(folder).as_posix(), path.stat().st_size
        record = next((one for one in RECORD_BYTES if length % one == 0), 0) if path.suffix == ".bin" else 0
        if record and length:
            step = BLOCK_BYTES // record * record
            for start in range(0, length, step):
                yield [(name, start, min(step, length - start))], RECORD_BYTES[record]
            continue
        start = 0
        while True:
            taken = min(BLOCK_BYTES - size, length - start)
            pieces.append((name, start, taken))
            start, size = start + taken, size + taken
            if size >= BLOCK_BYTES:
                yield pieces, 0
                pieces, size = [], 0
            if start >= length:
                break
    if pieces:
        yield pieces, 0


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        top = Path(here) == folder
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not (top and f == "test"))
        yield from (
            Path(here, n) for n in sorted(names) if not n.startswith(".") and not n.endswith(LEFT_OUT)
        )


def _compress(folder: Path, pieces: list[Piece], head: int) -> bytes:
    content = b"".join(_read(folder / name, start, size) for name, start, size in pieces)
    text = json.dumps({"pieces": pieces, "head": head, "sha256": _digest(content)}).encode()
    content = planes.encode(content, head) if head else content
    return lzma.compress(struct.pack("<I", len(text)) + text + content, lzma.FORMAT_XZ, filters=XZ)


def _read(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _unpack(block: Path, digest: str, place: Path) -> None:
    raw = block.read_bytes()
    if _digest(raw) != digest:
        raise PartError(f"{block} is damaged: its checksum is not the one in {LIST}")
    raw = lzma.decompress(raw)
    (length,) = struct.unpack_from("<I", raw)
    about: dict[str, Any] = json.loads(raw[4 : 4 + length])
    content = raw[4 + length :]
    content = planes.decode(content, about["head"]) if about["head"] else content
    if _digest(content) != about["sha256"]:
        raise PartError(f"{block} unpacks to something else than was packed")
    for folder in {PurePosixPath(name).parent for name, _, _ in about["pieces"]}:
        if folder.is_absolute() or ".." in folder.parts:
            raise PartError(f"{block} names {str(folder)!r}, which is outside of the data set")
        (place / folder).mkdir(parents=True, exist_ok=True)
    at = 0
    for name, start, size in about["pieces"]:
        descriptor = os.open(place / name, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, content[at : at + size], start)
        finally:
            os.close(descriptor)
        at += size


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
