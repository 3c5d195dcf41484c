"""The error of an export that is not possible."""

from __future__ import annotations

from xnorpp.runtime.errors import XnorppError


class ExportError(XnorppError, ValueError):
    """A program, or a layer of it, that the target cannot express: the layer's name and the reason."""


def refuse(name: str, op: str, target: str, reason: str) -> ExportError:
    """The error for one layer: which, what it is, and why this target does not take it."""
    return ExportError(f"layer {name!r} ({op}) cannot be exported to {target}: {reason}")
