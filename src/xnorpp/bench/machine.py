"""The machine and the versions a measurement was made with; no torch is imported to find out."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from xnorpp.bench.avx2 import AVX2_ONLY

# What decides which kernels an engine picks.
_FLAGS = (
    "sse4_2", "popcnt", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_vpopcntdq", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "gfni", "asimd",
    "asimddp",
)  # fmt: skip
_PACKAGES = ("numpy", "torch", "onnxruntime", "onnx", "openvino", "nncf")


def describe_machine() -> dict[str, Any]:
    """Processor, instruction sets, cores, memory, operating system and the versions of all engines."""
    name, flags = _processor()
    found: dict[str, Any] = {
        "cpu": name,
        "isa": [flag for flag in _FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
    }
    if os.environ.get(AVX2_ONLY):
        found["masked"] = "everything above AVX2 and FMA is hidden from all engines"
        found["isa"] = [
            flag for flag in found["isa"] if not flag.startswith(("avx512", "amx", "avx_vnni", "gfni"))
        ]
    return found


def versions() -> dict[str, str]:
    """The installed version of each engine; those that are missing are left out."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> tuple[str, set[str]]:
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return name, flags
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return name, flags
