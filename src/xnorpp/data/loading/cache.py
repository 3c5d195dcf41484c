"""Decoding a folder of small images once, in parallel, and storing the result beside the data.

The stored file is safetensors: `images`, `labels`, and in its metadata the list's fingerprint and a checksum
of the pixels. It is written under a temporary name and renamed, and checked when read: a damaged or outdated
one is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from xnorpp.data.dataset import (
    ArrayDataset,
    DatasetError,
    FolderDataset,
    Int64Array,
    Skipped,
    StreamDataset,
    UInt8Array,
    skip_limit,
)
from xnorpp.data.loading.worker import Geometry, Item, Task
from xnorpp.data.loading.workers import WorkerPool
from xnorpp.data.places import cache_path
from xnorpp.data.progress import Progress
from xnorpp.runtime.files import replacing
from xnorpp.runtime.machine import available_cores

_ITEMS_A_TASK = 256
_IN_ONE_PROCESS = 4096
"""Below this many images starting processes takes longer than decoding."""


def load_decoded(
    source: FolderDataset,
    size: int,
    *,
    workers: int | None = None,
    max_skipped: int | None = None,
    by_time: bool = False,
) -> ArrayDataset:
    """`source` as an array of `size` x `size` images.

    From the stored file if it is sound, else decoded and then stored. `by_time`: the stored file is also
    outdated when an image's size or time of change is another one, for folders that people edit. A stored
    file that left more images out than `max_skipped` allows is refused as decoding would be.
    """
    path = cache_path(source.root, f"{source.split}-{size}.safetensors")
    fingerprint = _fingerprint(source, size, by_time)
    with _locked(path):
        kept = _read(path, fingerprint)
        if kept is None:
            images, good, skipped = decode_all(source, size, workers=workers, max_skipped=max_skipped)
            labels = source.labels[good]
            _write(path, fingerprint, images, labels, skipped)
            kept = images, labels, skipped
    _check_skipped(source, kept[2], skip_limit(len(source), max_skipped))
    return ArrayDataset(source.info, source.split, source.classes, *kept)


def decode_all(
    source: StreamDataset, size: int, *, workers: int | None = None, max_skipped: int | None = None
) -> tuple[UInt8Array, Int64Array, list[Skipped]]:
    """Decodes every image in `workers` processes (default: one per core).

    Returns the images, their indices in `source`, and those left out because they cannot be read.
    """
    total = len(source)
    if workers is None:
        workers = 0 if total < _IN_ONE_PROCESS else available_cores()
    geometry = Geometry(size, size, source.info.channels)
    images = np.empty((total, size, size, source.info.channels), np.uint8)
    limit = skip_limit(total, max_skipped)
    bad: dict[int, Skipped] = {}
    progress = Progress(f"decoding {source.name} {source.split}", total, "images")
    slots = max(1, 2 * workers)
    slot_bytes = _ITEMS_A_TASK * geometry.bytes_per_image
    starts = iter(range(0, total, _ITEMS_A_TASK))
    running: dict[int, tuple[int, int]] = {}  # ticket -> (first sample, slot)
    with WorkerPool(workers, slots * slot_bytes) as pool:

        def send(slot: int) -> None:
            start = next(starts, None)
            if start is not None:
                running[start] = (start, slot)
                items = [Item(source.blob(i), 0, 0) for i in range(start, min(start + _ITEMS_A_TASK, total))]
                pool.send(Task(start, slot * slot_bytes, geometry, items))

        for slot in range(slots):
            send(slot)
        while running:
            for answer in pool.receive():
                start, slot = running.pop(answer.ticket)
                count = min(_ITEMS_A_TASK, total - start)
                pixels = pool.memory[slot * slot_bytes :][: count * geometry.bytes_per_image]
                images[start : start + count] = pixels.reshape(count, *images.shape[1:])
                for position, reason in answer.failures:
                    bad[start + position] = Skipped(source.sample_name(start + position), reason)
                progress.advance(count)
                send(slot)
            _check_skipped(source, list(bad.values()), limit)
    progress.close()
    if not bad:
        return images, np.arange(total, dtype=np.int64), []
    good = np.setdiff1d(np.arange(total, dtype=np.int64), list(bad))
    return images[good], good, [bad[index] for index in sorted(bad)]


def _check_skipped(source: StreamDataset, skipped: list[Skipped], limit: int) -> None:
    if len(skipped) > limit:
        named = "; ".join(f"{name} ({why})" for name, why in skipped[:3])
        raise DatasetError(
            f"{len(skipped)} images of {source.name} could not be read, more than `max_skipped` "
            f"(={limit}); among them {named}"
        )


def _fingerprint(source: FolderDataset, size: int, by_time: bool = False) -> str:
    """Changes when the list of files, their labels, or what is made of them changes."""
    digest = hashlib.sha256(f"1 {size} {source.info.channels}\n".encode())
    digest.update("\n".join(source.paths).encode())
    digest.update(source.labels.tobytes())
    if by_time:
        for path in source.paths:
            status = os.stat(source.root / path)
            digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read(path: Path, fingerprint: str) -> tuple[UInt8Array, Int64Array, list[Skipped]] | None:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        return None
    try:
        metadata = _metadata(path)
        if metadata.get("fingerprint") != fingerprint:
            return None
        tensors = load_file(path)
        images, labels = tensors["images"], tensors["labels"]
        skipped = [Skipped(*entry) for entry in json.loads(metadata["skipped"])]
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, struct.error):
        return None
    if _checksum(images, labels) != metadata.get("sha256"):
        return None
    return images, labels, skipped


def _metadata(path: Path) -> dict[str, str]:
    """A safetensors file starts with the length of its JSON header, then the header."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > os.fstat(file.fileno()).st_size:
            raise ValueError(f"header of {length} bytes")
        header = json.loads(file.read(length))
    return dict(header["__metadata__"])


def _write(
    path: Path, fingerprint: str, images: UInt8Array, labels: Int64Array, skipped: list[Skipped]
) -> None:
    """A full disk is no reason to stop.

    The decoded set is used all the same, and decoded again the next time.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    metadata = {
        "fingerprint": fingerprint,
        "sha256": _checksum(images, labels),
        "skipped": json.dumps([list(entry) for entry in skipped]),
    }
    with suppress(OSError, SafetensorError), replacing(path, flush=False) as temporary:
        save_file({"images": images, "labels": labels}, temporary, metadata)


def _checksum(images: UInt8Array, labels: Int64Array) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels).data)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process decodes, the others on this machine wait and then find the stored file.

    Where the lock file cannot be made, on a full disk for one, each of them decodes.
    """
    with ExitStack() as stack:
        with suppress(OSError, ImportError):
            import fcntl

            lock = stack.enter_context(open(path.with_name(path.name + ".lock"), "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file releases it
        yield
