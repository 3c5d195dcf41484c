"""What kind of file something is, and writing a file whole or not at all. Needs neither torch nor numpy."""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

PACKED_FORMAT = "xnorpp"  # `format` in the metadata of a packed model
CHECKPOINT_FORMAT = "xnorpp-checkpoint"  # the same of a checkpoint; both are safetensors files
MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library
_DISK_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_CHUNK = 1 << 24

_IMAGES = (
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*",
    b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"\x00\x00\x00\x0cjP  ", b"\x00\x00\x01\x00",
)  # fmt: skip
_TORCH = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # zip (torch.save) or pickle


class FileKind(enum.Enum):
    """What a path holds, by its content and not by its name."""

    MISSING = "no file or folder"
    RUN = "the folder of a training run"
    FOLDER = "a folder"
    PACKED = "a packed model"
    CHECKPOINT = "a checkpoint"
    SAFETENSORS = "a safetensors file"
    TORCH = "a file of torch.save"
    IMAGE = "an image"
    UNKNOWN = "a file of an unknown kind"


def file_kind(path: str | os.PathLike[str]) -> FileKind:
    """Determine what a path holds; only the first bytes and the header of a file are read.

    Args:
        path: A file or a folder, which need not exist.

    Returns:
        The kind. A damaged packed model or checkpoint is `UNKNOWN` where its header cannot be read.

    Raises:
        OSError: The path exists and cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        run = (place / "model.safetensors").is_file() or (place / "checkpoints").is_dir()
        return FileKind.RUN if run else FileKind.FOLDER
    try:
        status = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return FileKind.MISSING
    if not stat.S_ISREG(status.st_mode):  # a pipe: reading it would take its bytes from its reader
        return FileKind.UNKNOWN
    with place.open("rb") as file:
        start = file.read(16)
        file.seek(8)
        header = _safetensors_header(start, file, status.st_size)  # first: it may begin with any two bytes
    if header is None:
        if start.startswith(_IMAGES) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP"):
            return FileKind.IMAGE
        return FileKind.TORCH if start.startswith(_TORCH) else FileKind.UNKNOWN
    meta = header.get("__metadata__")
    name = meta.get("format") if isinstance(meta, dict) else None
    return {PACKED_FORMAT: FileKind.PACKED, CHECKPOINT_FORMAT: FileKind.CHECKPOINT}.get(
        str(name), FileKind.SAFETENSORS
    )


def _safetensors_header(start: bytes, file: BinaryIO, size: int) -> dict[str, Any] | None:
    """The JSON header of a safetensors file, whose length is its first eight bytes; None for another file."""
    length = int.from_bytes(start[:8], "little")
    if start[8:9] != b"{" or not 2 <= length <= min(MAX_HEADER, size - 8):
        return None
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, flush: bool = True) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends without an error.

    Whenever the process dies, a reader finds the old file or the new one, whole. On an error the temporary
    file is deleted and the old one stays.

    Args:
        path: The file to write; its folder must exist.
        flush: Flush the file and its folder to the disk, so that this also holds when the power fails.

    Yields:
        The path of the temporary file, in the same folder: empty, and named `.NAME.*.tmp`.

    Raises:
        OSError: The file cannot be written. `filename` is `path`, or its folder where that is the reason.

    Example:
        >>> with replacing("numbers.txt") as temporary:     # doctest: +SKIP
        ...     temporary.write_text("1 2 3")
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(6).hex()}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target.parent)) from None
    try:
        yield temporary
        if flush:
            _flush(temporary)
        os.replace(temporary, target)
        if flush:
            _flush(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and (
            error.filename == str(temporary) or (error.filename is None and error.errno in _DISK_ERRORS)
        ):
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


def write_atomically(path: str | os.PathLike[str], content: bytes, *, flush: bool = True) -> None:
    """Write a file whole or not at all; see `replacing`, which also lists the errors."""
    with replacing(path, flush=flush) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view[:_CHUNK]) :]
        finally:
            os.close(descriptor)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
