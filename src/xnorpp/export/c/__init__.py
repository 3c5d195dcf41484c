"""A packed model as one C99 source and one header, for microcontrollers."""

from xnorpp.export.c.source import Generated, export_c

__all__ = ["Generated", "export_c"]
