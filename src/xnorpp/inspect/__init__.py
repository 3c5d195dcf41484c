"""What is binary in a network, what is not and why, what it stores and computes, and what that could gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.inspect.layer import Geometry, Inspection, Layer, speedup_ours, speedup_xnor
from xnorpp.inspect.packed import inspect_program
from xnorpp.inspect.source import inspect_file, is_packed
from xnorpp.inspect.table import render
from xnorpp.lazy import names_from

if TYPE_CHECKING:
    from xnorpp.inspect.network import inspect_network
    from xnorpp.inspect.timing import time_layers

__all__ = [
    "Geometry",
    "Inspection",
    "Layer",
    "inspect_file",
    "inspect_network",
    "inspect_program",
    "is_packed",
    "render",
    "speedup_ours",
    "speedup_xnor",
    "time_layers",
]

_HOME = {"inspect_network": ".network", "time_layers": ".timing"}


__getattr__ = names_from(__name__, _HOME)
