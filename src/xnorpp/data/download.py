"""Fetching a data set's official archive: resumed where it stopped, checksum verified, moved into place
whole.

A file under its final name is complete and verified; an interrupted fetch leaves only `NAME.part`, which the
next call continues. Archives are unpacked into a temporary folder that is renamed at the end, so half an
unpacked set is never seen.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from xnorpp.data.dataset import DatasetError
from xnorpp.data.progress import Progress

_BLOCK = 1 << 20


class DownloadError(DatasetError):
    """The file could not be fetched or is not the expected one."""


@dataclass(frozen=True)
class Archive:
    """An official file: its address and its published md5 (a check against damage, not against malice)."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def fetch(archive: Archive, folder: Path, *, timeout: float = 60.0) -> Path:
    """Downloads into `folder` unless the verified file is there already; returns its path."""
    target = folder / archive.file
    if target.exists():
        if _md5(target) == archive.md5:
            return target
        target.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        _receive(archive.url, part, timeout)
    except (urllib.error.URLError, OSError, EOFError) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise DownloadError(
            f"download of {archive.url} failed ({error}); {kept:,} bytes are stored for the next attempt"
        ) from error
    found = _md5(part)
    if found != archive.md5:
        part.unlink()
        raise DownloadError(
            f"{archive.url} has md5 {found} where {archive.md5} was expected; it has been deleted"
        )
    os.replace(part, target)
    return target


def _receive(url: str, part: Path, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if (
            error.code == 416 and have
        ):  # nothing left to send: the part is complete (or wrong, which the md5 shows)
            return
        raise
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        left = int(length) if length is not None else None
        total = None if left is None else left + (have if resumed else 0)
        progress = Progress(f"downloading {url}", total, "bytes")
        progress.advance(have if resumed else 0)
        received = 0
        with open(part, "ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                received += len(block)
                progress.advance(len(block))
            file.flush()
            os.fsync(file.fileno())
        progress.close()
    if left is not None and received < left:
        raise EOFError(f"the connection ended {left - received:,} bytes early")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def unpack(path: Path, folder: Path, produces: str) -> Path:
    """Unpacks a .tar.gz or .zip that holds one folder `produces`.

    `folder`/`produces` appears only when complete.
    """
    target = folder / produces
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{produces}-") as temporary:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as package:
                package.extractall(temporary)
        else:
            with tarfile.open(path) as package:
                _extract(package, Path(temporary), path)
        unpacked = Path(temporary) / produces
        if not unpacked.is_dir():
            raise DownloadError(f'{path} does not hold a folder "{produces}"')
        shutil.move(unpacked, target)
    return target


def _extract(package: tarfile.TarFile, folder: Path, path: Path) -> None:
    """Unpack what stays inside `folder`: by Python's own filter or, before 3.10.12 and 3.11.4, which have
    none, plain files and folders only.
    """
    if hasattr(tarfile, "data_filter"):
        try:
            package.extractall(folder, filter="data")
        except tarfile.FilterError as error:
            raise DownloadError(f"{path} was not unpacked: {error}") from None
        return
    root = folder.resolve()
    for member in package.getmembers():
        inside = (root / member.name).resolve().is_relative_to(root)
        if not inside or not (member.isfile() or member.isdir()):
            raise DownloadError(f"{path} was not unpacked: {member.name!r} does not stay in its folder")
    package.extractall(folder)
