"""The command line: the table of commands, and what happens around one.

To add a command, write a file `cli/NAME.py` (one that lists things: `cli/listing/NAME.py`) with a function
`NAME(arguments: list[str]) -> int` and add its row to `COMMANDS`. The docstring of the function is what
`xnorpp NAME --help` prints below the summary. The file is imported only when its command runs, and imports
torch and numpy inside its function, so that `xnorpp --help` stays fast.

Errors are exceptions with one sentence for the user: `main` prints it. The exit status is the error's own
`exit_code` (see `xnorpp.runtime.errors`); other `ValueError`s and `OSError`s end with status 2.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import xnorpp

SHOW_TRACEBACK = "XNORPP_TRACEBACK"


class Command(NamedTuple):
    """One row of the table: where the function of a command is, and its line in `xnorpp --help`."""

    function: str  # "module:function"
    summary: str

    def load(self) -> Callable[[list[str]], int]:
        module, _, name = self.function.partition(":")
        function: Callable[[list[str]], int] = getattr(import_module(module), name)
        return function


COMMANDS: dict[str, Command] = {
    "train": Command("xnorpp.cli.train:train", "Train a network from a recipe."),
    "eval": Command("xnorpp.cli.eval:evaluate", "Measure the accuracy of a checkpoint or a packed model."),
    "pack": Command("xnorpp.cli.pack:pack", "Pack a trained network into one small file."),
    "calibrate": Command(
        "xnorpp.cli.calibrate:calibrate",
        "Make the probabilities of a packed model right as often as they state.",
    ),
    "predict": Command("xnorpp.cli.predict:predict", "Classify images with a packed model."),
    "export": Command("xnorpp.cli.export:export", "Write a packed model as C source or for another engine."),
    "serve": Command("xnorpp.cli.serve:serve", "Classify images over HTTP."),
    "inspect": Command("xnorpp.cli.inspect:inspect", "Show which layers are binary, and what each costs."),
    "bench": Command("xnorpp.cli.bench:bench", "Compare the speed of xnorpp with other engines."),
    "demo": Command("xnorpp.cli.demo:demo", "Train, pack and run a small network in about a minute."),
    "recipes": Command("xnorpp.cli.listing.recipes:recipes", "List recipes, or show one with all its keys."),
    "models": Command(
        "xnorpp.cli.listing.models:models", "List the networks to train and the trained models that ship."
    ),
    "datasets": Command("xnorpp.cli.listing.datasets:datasets", "List the data sets and how to get each."),
    "completion": Command(
        "xnorpp.cli.listing.completion:completion", "Print a script that completes commands in a shell."
    ),
    "shards": Command(
        "xnorpp.cli.shards:shards", "Write a data set as tar shards of resized images, which are read faster."
    ),
    "paper": Command("xnorpp.cli.paper.experiments:paper", "Reproduce the paper's tables and figures."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; those of the process by default.

    Returns:
        The exit status: 0 for success, 1 for work that failed, 2 for input that cannot be used, 130 after
        Ctrl-C, 141 when the reader of the output went away.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here, so that a reader that went away is noticed here
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes again
        return 141


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] in ("-v", "-V", "--version"):
        print(f"xnorpp {xnorpp.__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        from xnorpp.runtime.choices import nearest_first

        valid = ", ".join(nearest_first(name, COMMANDS))
        kind = "option" if name.startswith("-") else "command"
        print(f"xnorpp: there is no {kind} {name!r}; the commands are {valid}.", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return COMMANDS[name].load()(rest)
        except KeyboardInterrupt:
            print(f"xnorpp {name}: stopped.", file=sys.stderr)
            return 130
        except BrokenPipeError:
            raise
        except Exception as error:
            status = _status(error)
            if status is None or os.environ.get(SHOW_TRACEBACK):
                raise
            print(f"xnorpp {name}: {_sentence(error)}", file=sys.stderr)
            return status


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    return "\n".join(
        [
            "usage: xnorpp COMMAND ...",
            "",
            "One-bit neural networks: train them, pack them, run them as real bit operations.",
            "",
            "commands:",
            *(f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items()),
            "",
            "`xnorpp COMMAND --help` shows the arguments and examples of a command.",
            "`xnorpp --version` prints the version. Start with `xnorpp demo`.",
        ]
    )


def _status(error: Exception) -> int | None:
    """The exit status of an error; None for a fault of the program, which keeps its traceback."""
    own: int | None = getattr(error, "exit_code", None)
    if own is not None:
        return own
    if isinstance(error, ModuleNotFoundError):
        return 2 if (error.name or "").partition(".")[0] != "xnorpp" else None
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return 1  # the input was fine
    return 2 if isinstance(error, (ValueError, OSError)) else None


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"this command needs {error.name}; install it with `pip install 'xnorpp[train]'`."
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = {
            errno.ENOENT: f"there is no file or folder {error.filename}",
            errno.EISDIR: f"{error.filename} is a folder, and a file is needed",
            errno.ENOSPC: f"{error.filename} could not be written: {error.strerror}",
        }.get(error.errno or 0, f"{error.filename} cannot be used: {error.strerror}")
    return text if text.endswith((".", ")", "?")) else text + "."


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"xnorpp: warning: {message}", file=sys.stderr)
