"""What the commands share: a parser whose help comes from the command's docstring, and tables of text."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Callable
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
