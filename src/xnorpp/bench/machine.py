"""The machine and the versions a measurement was made with; no torch is imported to find out."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from xnorpp.bench.avx2 import MEANINGS, hidden, visible
from xnorpp.runtime.machine import available_cores, processor
from xnorpp.runtime.native import core

CPUS = Path("/sys/devices/system/cpu")

# What decides which kernels an engine picks.
_FLAGS = (
    "sse4_2", "popcnt", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_vpopcntdq", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "gfni", "asimd",
    "asimddp",
)  # fmt: skip
_PACKAGES = ("numpy", "torch", "onnxruntime", "onnx", "openvino", "nncf")


def describe_machine(threads: int = 1) -> dict[str, Any]:
    """Processor, instruction sets, cores, operating system and the versions of all engines; where several
    `threads` are measured, also how far the cores are apart (`describe_distance`).
    """
    name, flags = processor()
    found: dict[str, Any] = {
        "cpu": name,
        "isa": [flag for flag in _FLAGS if flag in flags],
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
    }
    if threads > 1:
        found |= describe_distance()
    mask = hidden()
    if mask:
        found["masked"] = MEANINGS[mask]
        found["isa"] = visible(found["isa"])
    return found


def distance_of_two() -> float:
    """Nanoseconds for a cache line between the cores of this process; below 0 where these are not two."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return float(core().core_distance(*cores)) if len(cores) == 2 else -1.0


def describe_distance(cpus: Path = CPUS) -> dict[str, Any]:
    """How far the cores of this process are apart, on Linux.

    Args:
        cpus: Where the system describes its cores.

    Returns:
        `share_l3`, whether all these cores share one L3 cache, and where there are two cores `line_ns`, the
        nanoseconds that a cache line takes from one to the other. What is not known is left out.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    found: dict[str, Any] = {}
    caches = {_l3(cpus / f"cpu{number}" / "cache") for number in cores}
    if len(cores) > 1 and None not in caches:
        found["share_l3"] = len(caches) == 1
    nanoseconds = distance_of_two()
    if nanoseconds > 0:
        found["line_ns"] = round(nanoseconds, 1)
    return found


def _l3(caches: Path) -> str | None:
    """The cores that share a core's L3 cache, as the system lists them; None where it lists no such cache."""
    for cache in caches.glob("index*"):
        try:
            if (cache / "level").read_text(encoding="ascii").strip() == "3":
                return (cache / "shared_cpu_list").read_text(encoding="ascii").strip()
        except OSError:
            continue
    return None


def versions() -> dict[str, str]:
    """The installed version of each engine; those that are missing are left out."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
