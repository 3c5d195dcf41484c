"""The user's cache folder. What is compiled once and run again from there (CUDA kernels, the library of
`xnorpp bench --avx2-only`) must not be another user's: the folder is checked before it is used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder", "private_folder"]


def cache_folder() -> Path:
    """`XNORPP_CACHE`, or `xnorpp` in the user's own cache folder."""
    named = os.environ.get("XNORPP_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "xnorpp"


def private_folder(folder: Path) -> Path:
    """`folder`, created for this user alone if it is missing.

    Raises:
        PermissionError: the folder belongs to another user (root excepted), or others may write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform == "win32":  # the folder of a user's local data has its access list from the system
        return folder
    owners = {folder.lstat().st_uid, folder.stat().st_uid}  # of a link, and of what it leads to
    advice = "remove it, or set XNORPP_CACHE to a folder of your own"
    if owners - {0, os.getuid()}:
        raise PermissionError(f"the cache folder {folder} belongs to another user; {advice}")
    if folder.stat().st_mode & 0o022:
        raise PermissionError(f"the cache folder {folder} can be written to by other users; {advice}")
    return folder
