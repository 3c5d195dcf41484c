"""Where data sets are looked for, and where decoded copies of them are stored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from xnorpp.data.dataset import DatasetInfo, DatasetNotFoundError


def data_home() -> Path:
    """Where data sets are looked for and downloaded to when no root is given.

    $XNORPP_DATA, or ~/.local/share/xnorpp.
    """
    return Path(os.environ.get("XNORPP_DATA") or Path.home() / ".local" / "share" / "xnorpp")


def cache_home() -> Path:
    """Where decoded copies go when the data's own folder cannot be written.

    $XNORPP_CACHE, or ~/.cache/xnorpp.
    """
    return Path(os.environ.get("XNORPP_CACHE") or Path.home() / ".cache" / "xnorpp")


def candidates(info: DatasetInfo, root: str | Path | None, folders: Iterable[str]) -> list[Path]:
    """The folders a data set may lie in: `root` itself, or one of its usual sub-folders in it."""
    top = data_home() if root is None else Path(root).expanduser()
    names = [info.name, *folders]
    places = [top, *(top / name for name in names)]
    return places + [top / info.name / name for name in folders]


def not_found(info: DatasetInfo, root: str | Path | None, expected: str) -> DatasetNotFoundError:
    where = data_home() if root is None else root
    return DatasetNotFoundError(
        f'data set "{info.name}" is not in {where} (looked for {expected}): {info.how_to_get}'
    )


def cache_path(data: Path, file: str) -> Path:
    """`data`/.xnorpp/`file` where that folder exists or can be made, else a folder of `cache_home` bound to
    `data`'s path.
    """
    beside = data / ".xnorpp"
    try:
        beside.mkdir(exist_ok=True)
        if os.access(beside, os.W_OK):
            return beside / file
    except OSError:
        pass
    digest = hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:16]
    folder = cache_home() / f"{data.name}-{digest}"
    with suppress(OSError):  # no room: what is to be written there is not stored
        folder.mkdir(parents=True, exist_ok=True)
    return folder / file
