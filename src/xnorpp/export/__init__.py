"""Packed models for other places: C source for microcontrollers, and the files of other engines."""

from xnorpp.export.c import Generated, export_c
from xnorpp.export.errors import ExportError

__all__ = ["ExportError", "Generated", "export_c"]
