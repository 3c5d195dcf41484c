"""Copies of engines in which CPUID is an undefined instruction: which bytes change, and what it answers."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xnorpp.bench import avx2, patched

SOURCE = """
#include <cpuid.h>
unsigned seven(void) { unsigned a, b = 0, c, d; __cpuid_count(7, 0, a, b, c, d); return b; }
unsigned like(void) { return 0x12a20f34u; }  /* the bytes of CPUID within another instruction */
"""
NEEDED = platform.machine() == "x86_64" and all(map(shutil.which, ("gcc", "objdump")))


@pytest.mark.skipif(not NEEDED, reason="needs gcc and objdump on x86-64")
def test_a_copy_sees_no_more_than_avx2(tmp_path: Path) -> None:
    package = tmp_path / "engine"
    package.mkdir()
    (tmp_path / "engine.c").write_text(SOURCE)
    library = package / "libengine.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, tmp_path / "engine.c"], check=True)
    (package / "__init__.py").write_text("")
    before = library.read_bytes()
    place = tmp_path / "cache"
    place.mkdir()
    site = patched.copies(place, [package])
    assert site == patched.copies(place, [package])
    assert library.read_bytes() == before
    after = (site / "engine" / "libengine.so").read_bytes()
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len(changed) == 1
    assert before[changed[0] - 1 : changed[0] + 1] == b"\x0f\xa2"
    assert after[changed[0]] == 0x0A

    mask = avx2._compiled(tmp_path / "mask", "--avx2-only")
    code = (
        "import ctypes, sys; engine = ctypes.CDLL(sys.argv[1]); engine.seven.restype = ctypes.c_uint; "
        "engine.like.restype = ctypes.c_uint; print(engine.seven(), engine.like())"
    )
    environment = {**os.environ, "LD_PRELOAD": str(mask), avx2.HIDDEN: "above-avx2", "XNORPP_PATCHED": "1"}
    command = [sys.executable, "-c", code, str(site / "engine" / "libengine.so")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    masked, like = map(int, done.stdout.split())
    assert like == 0x12A20F34
    engine = ctypes.CDLL(str(library))
    engine.seven.restype = ctypes.c_uint
    assert masked & 1 << 16 == 0  # AVX-512
    assert masked & 1 << 5 == engine.seven() & 1 << 5  # AVX2


def test_without_objdump_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="objdump"):
        patched.copies(tmp_path, [])
