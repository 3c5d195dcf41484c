"""What the commands share: a parser whose help comes from the command's docstring, arguments that several
commands have, tables of text, and checks that are made before any work is done.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xnorpp.cli.main import COMMANDS

if TYPE_CHECKING:
    from xnorpp.runtime import PackedModel

THREADS = "threads per call (default: chosen automatically, up to min(cores, 8))"


class Parser(argparse.ArgumentParser):
    """argparse with errors of one sentence, and with help that keeps the line breaks of its examples."""

    def __init__(self, command: str, function: Callable[[list[str]], int], examples: str) -> None:
        text = inspect.cleandoc(function.__doc__ or "")
        if command in COMMANDS:
            text = f"{COMMANDS[command].summary}\n\n{text}"
        super().__init__(
            prog=f"xnorpp {command}",
            description=text,
            epilog="examples:\n" + textwrap.indent(inspect.cleandoc(examples), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if _asked.get():
            raise _Described(self)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        for kind, words in (("int", "a whole number"), ("float", "a number")):
            message = re.sub(rf"invalid {kind} value: ('.*')", rf"\1 is not {words}", message)
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            near = difflib.get_close_matches(unknown[1], self._option_string_actions, n=1)
            takes_model = any(one.dest == "model" and not one.option_strings for one in self._actions)
            if unknown[1] == "--model" and takes_model:
                message += "; MODEL is given without a flag, by path or by the name of a shipped model"
            elif near:
                message += f"; did you mean {near[0]}?"
        print(f"{self.prog}: {message} (see `{self.prog} --help`).", file=sys.stderr)
        raise SystemExit(2)


class _Described(BaseException):  # no `except Exception` of a command may catch it
    """Leaves a command when its parser is complete."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


_asked: ContextVar[bool] = ContextVar("asked", default=False)


def parser_of(function: Callable[[list[str]], int]) -> Parser:
    """The parser of a command: its function builds it, and does not get to parse anything."""
    token = _asked.set(True)
    try:
        function([])
    except _Described as found:
        return found.parser
    finally:
        _asked.reset(token)
    raise TypeError(f"{function.__name__} does not parse its arguments with a Parser")


def say(line: str) -> None:
    """Print a line of progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Print columns, each padded to its widest entry."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) if rows else 0)]
    for row in rows:
        print((indent + "  ".join(text.ljust(width) for text, width in zip(row, widths))).rstrip())


def at_least(low: int) -> Callable[[str], int]:
    """The `type` of an argument that is a whole number of at least `low`."""

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return number

    return whole_number


def positive(text: str) -> float:
    """The `type` of an argument that is a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def engine_options(parser: Parser, threads: str = THREADS) -> None:
    """Add --threads and --isa, the options of the CPU engine."""
    parser.add_argument("--threads", metavar="N", type=at_least(1), help=threads)
    parser.add_argument("--isa", metavar="NAME", help="use the kernels of this instruction set")


def pattern_of(text: str | None, names: Iterable[str], more: Iterable[str] = ()) -> str | None:
    """The pattern of names that a person asked for: `text` itself if it has wildcards, or the names that
    contain it if it is neither one of them nor of `more`. None stands for one name, known or not.
    """
    if text is None or set(text) & set("*?["):
        return text
    known = [*names]
    part = text not in (*known, *more) and any(text in name for name in known)
    return f"*{text}*" if part else None


def one_model(path: str | None, name: str | None) -> Path:
    """The model that was asked for, by path or by the name of a shipped one: exactly one of the two."""
    from xnorpp.shipped import find_model, list_shipped, shipped_path

    known = ", ".join(list_shipped()) or "none in this copy of the package"
    if path is not None and name is not None:
        raise ValueError(f"give one model: MODEL (={path!r}) or --model (={name!r}), not both")
    if name is not None:
        if name not in list_shipped() and Path(name).exists():
            return Path(name)
        if Path(name).suffix or Path(name).name != name:
            raise ValueError(
                f"`--model` (={name!r}) must be the name of a shipped model ({known}); a file is given as "
                f"MODEL, without the flag, and there is no file {name}"
            )
        return shipped_path(name)
    if not path:
        raise ValueError(f"give a model: MODEL, a file or a folder, or --model NAME ({known})")
    return find_model(path)


def check_packed(path: str | Path) -> None:
    """Refuse what is known to be something else than a packed model, and name what to do."""
    from xnorpp.runtime.files import FileKind, file_kind

    kind = file_kind(path)
    if kind in (FileKind.RUN, FileKind.CHECKPOINT):
        raise ValueError(
            f"{path} is {kind.value}, and a packed model is needed; pack it first: "
            f"`xnorpp pack {path} -o model.xnor`"
        )
    if kind in (FileKind.IMAGE, FileKind.TORCH, FileKind.SAFETENSORS):
        raise ValueError(f"{path} is {kind.value}, and a packed model (.xnor) is needed as MODEL")


def load_packed(path: str | Path, given: argparse.Namespace) -> PackedModel:
    """Load a packed file on the device, threads and kernels that were asked for; `auto` is the CPU."""
    from xnorpp.runtime import load

    check_packed(path)
    if given.device in ("auto", "cpu"):
        return load(path, threads=given.threads, isa=given.isa)
    if given.device.partition(":")[0] != "cuda":
        raise ValueError(f"`device` (={given.device!r}) must be auto, cpu, cuda or cuda:N")
    refuse_ignored(given, ("threads", "isa"), f"the CPU engine, not for --device {given.device}")
    from xnorpp.runtime.cuda.model import CudaError

    try:
        return load(path, device=given.device)
    except CudaError as error:
        raise ValueError(str(error).replace("device='cpu'", "--device cpu")) from None


def refuse_ignored(given: argparse.Namespace, names: tuple[str, ...], place: str) -> None:
    """Raise an error for the first of these options that was given: it is for `place`, and has no effect."""
    for name in names:
        value = getattr(given, name)
        if value is not None and value is not False:
            raise ValueError(f"`--{name.replace('_', '-')}` (={value!r}) is for {place}")


def check_file(option: str, path: str | None, *, makes_folder: bool = False) -> None:
    """Refuse a file that cannot be written, before any work; `makes_folder`: its writer makes the folder."""
    if path is None:
        return
    place = Path(path)
    if not path or place.is_dir():
        raise ValueError(f"`{option}` (={path!r}) must be a file, and is {'a folder' if path else 'empty'}")
    folder = _nearest_that_exists(place.parent) if makes_folder else place.parent
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"`{option}` (={path!r}) must be in a folder that exists, and {folder} {what}")
    if place.exists():
        if not os.access(place, os.W_OK):
            raise ValueError(
                f"`{option}` (={path!r}) must be a file that can be written; it is write-protected"
            )
        return
    _check_writable(option, path, folder)


def check_folder(option: str, path: str | Path | None) -> None:
    """Refuse a folder that cannot be made or written to, before any work."""
    if path is None:
        return
    if not str(path):
        raise ValueError(f"`{option}` (='') must be a folder, and is empty")
    nearest = _nearest_that_exists(Path(path))
    if not nearest.is_dir():
        raise ValueError(f"`{option}` (={str(path)!r}) must be a folder, and {nearest} is a file")
    _check_writable(option, str(path), nearest)


def _check_writable(option: str, path: str, folder: Path) -> None:
    """Create and delete a file: permissions are not enough, a file system may be read-only or full."""
    import secrets

    try:
        probe = folder / f".xnorpp-{secrets.token_hex(6)}.tmp"
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"`{option}` (={path!r}) cannot be written: no file can be created in {folder} ({error.strerror})"
        ) from None


def check_plot(option: str, path: str | None) -> None:
    """`check_file` for a plot: its suffix must be one that matplotlib can write."""
    if path is None:
        return
    check_file(option, path)
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.lower().lstrip(".") not in known:
        raise ValueError(f"`{option}` (={path!r}) must end in one of .{', .'.join(known)}")


def check_data(dataset: str, folder: str | None) -> None:
    """Refuse a data folder that does not exist for the digits, which come with scikit-learn and would ignore
    it; the other data sets report themselves where they were looked for.
    """
    if dataset == "digits" and folder is not None and not Path(folder).expanduser().is_dir():
        raise ValueError(f"`--data` (={folder!r}) must be a folder, and does not exist")


def share_cores() -> None:
    """Let torch's threads soon sleep when they wait for each other. Called before torch is imported.

    By default they spin for milliseconds. Where other programs use the cores, a thread then spins until one
    without a core gets its turn, and a small network trains ten times slower. A thousand turns of the loop
    (some 20 microseconds) are as fast on idle cores; no number changes. Settings of the environment are
    respected.
    """
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


def _nearest_that_exists(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
