"""The processor this process runs on, for records of measurements."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

CPUINFO = "/proc/cpuinfo"


class Processor(NamedTuple):
    """The name of the processor and the instruction-set flags that the system lists for it."""

    name: str
    flags: frozenset[str]


@functools.cache
def processor() -> Processor:
    """Describe the processor; where the system lists no flags, they are empty."""
    name, flags = "", frozenset[str]()
    try:
        with open(CPUINFO, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and not name:
            name = value
        elif key in ("flags", "Features") and not flags:  # the second is Arm's
            flags = frozenset(value.split())
    import platform

    return Processor(name or platform.processor() or platform.machine(), flags)


def available_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
