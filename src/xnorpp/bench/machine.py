"""The machine and the versions a measurement was made with; no torch is imported to find out."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from xnorpp.bench.avx2 import MEANINGS, hidden, visible
from xnorpp.runtime.machine import available_cores, processor

# What decides which kernels an engine picks.
_FLAGS = (
    "sse4_2", "popcnt", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_vpopcntdq", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "gfni", "asimd",
    "asimddp",
)  # fmt: skip
_PACKAGES = ("numpy", "torch", "onnxruntime", "onnx", "openvino", "nncf")


def describe_machine() -> dict[str, Any]:
    """Processor, instruction sets, cores, memory, operating system and the versions of all engines."""
    name, flags = processor()
    found: dict[str, Any] = {
        "cpu": name,
        "isa": [flag for flag in _FLAGS if flag in flags],
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
    }
    mask = hidden()
    if mask:
        found["masked"] = MEANINGS[mask]
        found["isa"] = visible(found["isa"])
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
