"""Copies of other engines for `--avx2-only` where the processor cannot let CPUID fault, as most of AMD's.

In each copy every CPUID is the undefined instruction 0f 0a, of the same length, which
`benchmarks/avx2_only.c` answers as it answers a CPUID that faults. objdump shows where the instruction is,
because its two bytes also occur within others. The copies are made once for a version, and are imported in
place of the packages.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ENGINES = ("openvino", "onnxruntime")
# For engines that have a switch of their own: ours, torch's kernels, its oneDNN and its MKL.
SWITCHES = {
    "XNORPP_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}  # fmt: skip
_CPUID, _UNDEFINED = b"\x0f\xa2", 0x0A


def packages(names: Sequence[str] = ENGINES) -> list[Path]:
    """The folders of the engines that are installed."""
    found = (importlib.util.find_spec(name) for name in names)
    return [Path(spec.origin).parent for spec in found if spec is not None and spec.origin]


def copies(place: Path, folders: Sequence[Path]) -> Path:
    """A folder under `place` with copies of these packages in which CPUID is replaced.

    Raises:
        OSError: There is no objdump, or no room.
    """
    if shutil.which("objdump") is None:
        raise OSError("objdump (binutils) is needed to find the instruction in other engines")
    stamp = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in _libraries(folders)]
    made = place / f"patched-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]}"
    if not made.exists():
        fresh = Path(tempfile.mkdtemp(dir=place))
        try:
            for folder in folders:
                shutil.copytree(folder, fresh / folder.name, copy_function=_link)
            for file in _libraries([fresh]):
                replace_cpuid(file)
            fresh.rename(made)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    return made


def replace_cpuid(file: Path) -> int:
    """Replace every CPUID of a library, in a file of its own; returns how many there were."""
    code = bytearray(file.read_bytes())
    if code[:5] != b"\x7fELF\x02" or _CPUID not in code:
        return 0
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(file)], capture_output=True, check=True
    )
    count = 0
    for found in re.finditer(rb"^ *([0-9a-f]+):\tcpuid", listing.stdout, re.MULTILINE):
        at = _offset(code, int(found.group(1), 16))
        if code[at : at + 2] != _CPUID:
            raise OSError(f"objdump and {file.name} disagree about the place of an instruction")
        code[at + 1] = _UNDEFINED
        count += 1
    if count:
        file.unlink()  # which may be a link to the original
        file.write_bytes(code)
    return count


def _libraries(folders: Sequence[Path]) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.so*") if file.is_file())


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _offset(code: bytearray, address: int) -> int:
    """Where the instruction at an address lies in an ELF file of 64 bits."""
    (table,), (count,) = struct.unpack_from("<Q", code, 32), struct.unpack_from("<H", code, 56)
    for i in range(count):
        kind, _, offset, start, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", code, table + 56 * i)
        if kind == 1 and start <= address < start + size:
            return int(offset + address - start)
    raise OSError(f"the address {address:#x} is in no segment")
