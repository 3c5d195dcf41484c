"""The error of an export that is not possible."""

from __future__ import annotations

from xnorpp.runtime.errors import XnorppError


class ExportError(XnorppError, ValueError):
    """A program, or a layer of it, that the target cannot express: the layer's name and the reason.

    Example:
        >>> import xnorpp
        >>> from xnorpp.export import ExportError, export_c
        >>> try:
        ...     export_c(xnorpp.load("cifar10-resnet20").program, name="8-bit")
        ... except ExportError as error:
        ...     print(error)
        `name` (='8-bit') must be a C identifier: letters, digits and _, a letter first
    """


def refuse(name: str, op: str, target: str, reason: str) -> ExportError:
    """The error for one layer: which, what it is, and why this target does not take it."""
    return ExportError(f"layer {name!r} ({op}) cannot be exported to {target}: {reason}")
