"""What the commands share: a parser whose help comes from the command's docstring, tables of text, and checks
of arguments that are made before any work is done.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse with errors of one sentence and help that keeps the line breaks of its examples."""

    def __init__(self, command: str, function: Callable[[list[str]], int], examples: str) -> None:
        text = inspect.cleandoc(function.__doc__ or "")
        super().__init__(
            prog=f"xnorpp {command}",
            description=text,
            epilog="examples:\n" + textwrap.indent(inspect.cleandoc(examples), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (`{self.prog} --help` says more).", file=sys.stderr)
        raise SystemExit(2)


def say(line: str) -> None:
    """A line of progress, beside what the command prints."""
    print(line, file=sys.stderr, flush=True)


def print_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Columns padded to their widest entry."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) if rows else 0)]
    for row in rows:
        print((indent + "  ".join(text.ljust(width) for text, width in zip(row, widths))).rstrip())


def at_least(low: int) -> Callable[[str], int]:
    """The `type` of an argument that is a whole number from `low` on."""

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return number

    return whole_number


def check_file(option: str, path: str | None, *, makes_folder: bool = False) -> None:
    """Refuse a file that could not be written in the end; `makes_folder`: its writer makes the folder."""
    if path is None:
        return
    place = Path(path)
    if place.is_dir():
        raise ValueError(f"`{option}` (={path!r}) must be a file, and is a folder")
    folder = _nearest_that_exists(place.parent) if makes_folder else place.parent
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"`{option}` (={path!r}) must be in a folder that exists, and {folder} {what}")
    if not os.access(place if place.exists() else folder, os.W_OK):
        raise ValueError(f"`{option}` (={path!r}) must be a file that may be written, and may not")


def check_folder(option: str, path: str | Path | None) -> None:
    """Refuse a folder that could not be made in the end, because a file is in its place or above it."""
    if path is None:
        return
    found = _nearest_that_exists(Path(path))
    if not found.is_dir():
        raise ValueError(f"`{option}` (={str(path)!r}) must be a folder, and {found} is a file")


def check_picture(option: str, path: str | None) -> None:
    """`check_file` for a picture that matplotlib draws: its ending must be one that it can write."""
    if path is None:
        return
    check_file(option, path)
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.lower().lstrip(".") not in known:
        raise ValueError(f"`{option}` (={path!r}) must end in one of .{', .'.join(known)}")


def check_data(dataset: str, folder: str | None) -> None:
    """Refuse a folder of data that is not there for the digits, which would be read from scikit-learn without
    a word; other data sets say themselves where they were looked for.
    """
    if dataset == "digits" and folder is not None and not Path(folder).expanduser().is_dir():
        raise ValueError(f"`--data` (={folder!r}) must be a folder, and does not exist")


def _nearest_that_exists(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
