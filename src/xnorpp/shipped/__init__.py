"""Trained models that come with the package: `NAME.xnor`, the packed file, and `NAME.json`, its model card.

Neither torch nor numpy is needed to list them. `xnorpp.load(NAME)` runs one.
`xnorpp.paper.shipping.ship` makes the two files from a checkpoint.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xnorpp.shipped.card import check_card, render_card, short_card, summary_rows

if TYPE_CHECKING:
    from xnorpp.runtime import Limits, PackedModel, Program

__all__ = [
    "check_card",
    "find_model",
    "list_shipped",
    "load",
    "render_card",
    "shipped_card",
    "shipped_path",
    "short_card",
    "summary_rows",
]

FOLDER = Path(__file__).resolve().parent


def list_shipped(folder: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The names of the models that come with the package: each has its file and its card.

    Example:
        >>> "cifar10-resnet20" in list_shipped()
        True
    """
    place = FOLDER if folder is None else Path(folder)
    return tuple(sorted(path.stem for path in place.glob("*.xnor") if path.with_suffix(".json").is_file()))


def shipped_path(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """The packed file of a shipped model.

    Example:
        >>> shipped_path("cifar10-resnet20").name
        'cifar10-resnet20.xnor'
    """
    place = FOLDER if folder is None else Path(folder)
    known = list_shipped(place)
    if name not in known:
        raise ValueError(_unknown(name, known))
    return place / f"{name}.xnor"


def shipped_card(name: str, folder: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The model card of a shipped model; `card.py` lists what it holds.

    Example:
        >>> card = shipped_card("cifar10-resnet20")
        >>> card["data"]["dataset"], card["data"]["classes"][0]
        ('cifar10', 'airplane')
    """
    path = shipped_path(name, folder).with_suffix(".json")
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"the model card {path} is damaged ({error})") from None
    return check_card(card, str(path))


def find_model(text: str | os.PathLike[str]) -> Path:
    """What a person means by a model: a path as it is, else the file of the shipped model of that name.

    A bare word that is neither is an error with the names that exist; anything else is left to its reader.

    Example:
        >>> from xnorpp.shipped import find_model
        >>> find_model("cifar10-resnet20").name, find_model("runs/mine.xnor").name
        ('cifar10-resnet20.xnor', 'mine.xnor')
    """
    path = Path(text)
    if path.exists() or path.name != str(text) or path.suffix:
        return path
    known = list_shipped()
    if str(text) in known:
        return shipped_path(str(text))
    near = f"those are {_nearest(str(text), known)}" if known else "this copy of the package has none"
    raise ValueError(f"there is no file or folder {text!s}, and no shipped model of that name ({near})")


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Program,
    threads: int | None = None,
    isa: str | None = None,
    device: str = "cpu",
    limits: Limits | None = None,
) -> PackedModel:
    """Load a packed model: `xnorpp.runtime.load`, which also takes the name of a model that ships.

    Args:
        source: A path, the name of a shipped model where there is no file of that name, the bytes of a packed
            file, or a `Program`.
        threads: How many threads one call may use, 1 to 1024; by default as many as its work is worth.
        isa: The CPU kernels; by default the fastest of this machine.
        device: "cpu", "cuda" or "cuda:N".
        limits: What a file may ask for; None: the default limits.

    Raises:
        FileNotFoundError: There is neither a file nor a shipped model of that name.
        ProgramError: The file is damaged, or its pre-processing is wrong.
        ValueError: An argument is wrong.

    Example:
        >>> load("cifar10-resnet20", threads=1).input_shape
        (3, 32, 32)
    """
    from xnorpp import runtime

    if isinstance(source, str):
        try:
            source = find_model(source)
        except ValueError as error:
            raise FileNotFoundError(str(error)) from None
    return runtime.load(source, threads, isa, device, limits or runtime.Limits())


def _unknown(name: str, known: tuple[str, ...]) -> str:
    """One sentence with the valid names, nearest first."""
    if not known:
        return f"`model` (={name!r}) is not a shipped model; none is shipped with this copy of the package"
    return f"`model` (={name!r}) is not a shipped model; those are {_nearest(name, known)}"


def _nearest(name: str, known: tuple[str, ...]) -> str:
    from xnorpp.runtime.choices import nearest_first  # imports numpy, which listing does without

    return ", ".join(nearest_first(name, known))
