"""Functions of one number: stages of an epilogue, which stages.cuh and curves.cuh compute."""

from __future__ import annotations

from xnorpp.runtime.cuda.operations.producer import Producer
from xnorpp.runtime.reference.curves import CURVES

ENTRY: dict[str, str] = {}
STAGES = ("relu", "prelu", "hardtanh", *CURVES)
PRODUCERS: dict[str, Producer] = {}
