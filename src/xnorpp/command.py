"""What the commands share: a parser whose help comes from the command's docstring, and tables of text."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
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


def print_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Columns padded to their widest entry."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) if rows else 0)]
    for row in rows:
        print((indent + "  ".join(text.ljust(width) for text, width in zip(row, widths))).rstrip())
