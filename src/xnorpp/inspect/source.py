"""Opening what MODEL stands for on the command line: a packed file, a checkpoint, or the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

from xnorpp.inspect.layer import Inspection
from xnorpp.inspect.packed import inspect_program
from xnorpp.runtime.files import FileKind, file_kind
from xnorpp.runtime.format.program import read


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a path is to be read as a packed model rather than as a checkpoint.

    Args:
        path: A file or a folder that exists.

    Returns:
        False for a checkpoint and for a folder. True for a packed model and for a file that is damaged or of
        an unknown kind, whose reader explains what is wrong with it.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: The file is something else, such as an image.

    Example:
        >>> from xnorpp.inspect import is_packed
        >>> from xnorpp.shipped import shipped_path
        >>> is_packed(shipped_path("cifar10-resnet20"))
        True
    """
    kind = file_kind(path)
    if kind is FileKind.MISSING:
        raise FileNotFoundError(f"there is no file or folder {os.fspath(path)}")
    if kind in (FileKind.IMAGE, FileKind.TORCH):
        raise ValueError(
            f"{os.fspath(path)} is {kind.value}; a packed model (.xnor), a checkpoint (.safetensors) or the "
            "folder of a run is needed"
        )
    return kind in (FileKind.PACKED, FileKind.SAFETENSORS, FileKind.UNKNOWN)


def inspect_file(path: str | os.PathLike[str]) -> Inspection:
    """Inspect a packed file (no torch needed), a checkpoint file or a run's folder.

    Args:
        path: The file or the folder.

    Returns:
        What is binary in the network, what is not, and why.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: It is neither a packed model nor a checkpoint.

    Example:
        >>> from xnorpp.inspect import inspect_file
        >>> from xnorpp.shipped import shipped_path
        >>> inspect_file(shipped_path("cifar10-resnet20")).title
        'cifar10-resnet20.xnor'
    """
    place = Path(path)
    if is_packed(place):
        return inspect_program(read(place), title=place.name, file_bytes=place.stat().st_size)
    from xnorpp.inspect.network import inspect_network
    from xnorpp.training import load_model

    model, meta = load_model(place)
    name = (meta.get("recipe") or {}).get("name")
    return inspect_network(model, title=str(name or place.name))
