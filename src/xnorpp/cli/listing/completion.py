"""`xnorpp completion`: what can be completed, from the parsers; `shells.py` writes it as a script."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from xnorpp.cli.command import Parser, parser_of
from xnorpp.cli.main import COMMANDS


def completion(arguments: list[str]) -> int:
    """The script completes commands, options, and the names of recipes, models and data sets. It is generated
    from the parsers of this version: write it again after an update. bash reads it from a file of its
    completion folder (the package bash-completion), zsh from a folder of $fpath, fish from its own folder.
    """
    parser = Parser(
        "completion",
        completion,
        """
        xnorpp completion bash > ~/.local/share/bash-completion/completions/xnorpp
        xnorpp completion zsh > ~/.zfunc/_xnorpp
        xnorpp completion fish > ~/.config/fish/completions/xnorpp.fish
        eval "$(xnorpp completion bash)"
        """,
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    given = parser.parse_args(arguments)

    from xnorpp.cli.listing import shells

    print(getattr(shells, given.shell)(list(shapes())), end="")
    return 0


SHELLS = ("bash", "zsh", "fish")


class Value(NamedTuple):
    """What an argument may be: some words, and files or folders."""

    words: tuple[str, ...] = ()
    paths: str = ""  # "files" or "folders"


class Option(NamedTuple):
    flags: tuple[str, ...]
    help: str
    value: Value | None  # None: a flag
    repeated: bool
    metavar: str


class Position(NamedTuple):
    metavar: str
    value: Value
    repeated: bool


class Shape(NamedTuple):
    """A command with all that it takes; that of `xnorpp paper table2` has the name "paper table2"."""

    name: str
    summary: str
    options: tuple[Option, ...]
    positions: tuple[Position, ...]


def shapes() -> Iterator[Shape]:
    """The shape of every command, and of every experiment of `paper` after it."""
    for name, command in COMMANDS.items():
        yield _shape(name, command.summary, command.load())
    from xnorpp.cli.paper.experiments import PAPER

    for name, function in PAPER.items():
        yield _shape(f"paper {name}", (function.__doc__ or "").partition("\n")[0], function)


def _shape(name: str, summary: str, function: Callable[[list[str]], int]) -> Shape:
    options, positions = [], []
    for action in parser_of(function)._actions:
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        repeated = action.nargs in ("*", "+")
        value = _value(name, action, metavar)
        if action.option_strings:
            many = repeated or isinstance(action, argparse._AppendAction)
            takes = None if action.nargs == 0 else value
            options.append(Option(tuple(action.option_strings), action.help or "", takes, many, metavar))
        else:
            positions.append(Position(metavar, value, repeated))
    return Shape(name, summary, tuple(options), tuple(positions))


def _value(command: str, action: argparse.Action, metavar: str) -> Value:
    if action.choices is not None:
        return Value(tuple(str(choice) for choice in action.choices))
    dest = action.dest
    if metavar == "DIR":
        return Value((), "folders")
    if dest == "device":
        return Value(("auto", "cpu", "cuda") if action.default == "auto" else ("cpu", "cuda"))
    if dest == "recipe":
        return Value(_recipes(), "files" if metavar == "RECIPE" else "")
    if dest == "dataset":
        return Value(_datasets())
    if (command, dest) == ("paper", "experiment"):
        from xnorpp.cli.paper.experiments import PAPER

        return Value(tuple(PAPER))
    if (command, dest) in (("models", "name"), ("predict", "model"), ("eval", "model")):
        return Value(_shipped())
    if metavar == "MODEL" or (command, dest) == ("predict", "files"):
        return Value(_shipped(), "files")
    return Value((), "files" if metavar in ("FILE", "PATH", "CHECKPOINT", "IMAGE", "SOURCE") else "")


def _recipes() -> tuple[str, ...]:
    from xnorpp.training import list_recipes

    return tuple(list_recipes())


def _datasets() -> tuple[str, ...]:
    from xnorpp.data import list_datasets

    return tuple(list_datasets())


def _shipped() -> tuple[str, ...]:
    from xnorpp.shipped import list_shipped

    return list_shipped()
