"""The kernels without Python: NEON under emulation, and every x86 kernel under the sanitizers."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import capi
import pytest

from xnorpp.runtime.cpu import available_isas

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    "tests/native/compare.cpp",
    "csrc/kernels/generic.cpp",
    "csrc/kernels/dispatch.cpp",
    "csrc/core/conv_build.cpp",
    "csrc/core/filters.cpp",
]
COMMON = ["-std=c++17", "-ffp-contract=off", "-w", "-pthread"]


def x86_flags() -> dict[str, list[str]]:
    """What each file of x86 kernels is compiled with, as CMakeLists.txt has it."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    for name in re.findall(r'set\((avx\w+) "', text):  # a later set may name an earlier one
        options = text.split(f'set({name} "')[1].split('"')[0]
        text = text.replace(f"${{{name}}}", options)
    found = re.findall(r'csrc/kernels/([\w/]+)\.cpp PROPERTIES COMPILE_OPTIONS\s+"([^"]*)"', text)
    return {file: [flag for flag in flags.split(";") if flag.startswith("-m")] for file, flags in found}


def build(compiler: str, sources: list[tuple[str, list[str]]], flags: list[str], out: Path) -> Path:
    """Compile each file with its own flags, as the real build does, and link; libraries come last."""
    jobs = []
    libraries = [source for source, _ in sources if source.endswith(".a")]
    for index, (source, own) in enumerate(sources[: len(sources) - len(libraries)]):
        target = out / f"{index}.o"
        command = [compiler, *COMMON, *flags, *own, "-c", str(ROOT / source), "-o", str(target)]
        jobs.append((target, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
    for _, job in jobs:
        _, errors = job.communicate()
        assert job.returncode == 0, errors[-2000:]
    program = out / "compare"
    objects = [*(str(target) for target, _ in jobs), *libraries]
    subprocess.run([compiler, *COMMON, *flags, *objects, "-o", str(program)], check=True)
    return program


compiles_kernels = pytest.mark.skipif(
    not os.environ.get("XNORPP_DEPLOY"),
    reason="NOT RUN: compiles all kernels once more; `make test-deploy` does",
)


@compiles_kernels
def test_neon_equals_generic_under_emulation(tmp_path: Path) -> None:
    native = platform.machine() == "aarch64"
    compiler = shutil.which("g++" if native else "aarch64-linux-gnu-g++")
    emulator = None if native else shutil.which("qemu-aarch64")
    if compiler is None or (not native and emulator is None):
        pytest.skip("NEON KERNELS NOT TESTED: aarch64-linux-gnu-g++ and qemu-aarch64 are needed")
    sources = [(source, ["-DXNORPP_HAVE_NEON"]) for source in [*SOURCES, "csrc/kernels/neon.cpp"]]
    program = build(compiler, sources, ["-O0", "-static"], tmp_path)
    command = [str(program), "1", "60"]
    done = subprocess.run([emulator, *command] if emulator else command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "neon equals generic in 60 cases" in done.stdout


@compiles_kernels
def test_x86_kernels_stay_inside_their_memory(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if platform.machine() != "x86_64" or compiler is None:
        pytest.skip("X86 KERNELS NOT TESTED UNDER SANITIZERS: an x86-64 machine with g++ is needed")
    files = x86_flags()
    assert {"avx2", "avx512", "wide/amx"} <= set(files)
    defines = [f"-DXNORPP_HAVE_{Path(file).name.upper()}" for file in files] + ["-DXNORPP_EMULATE_AMX"]
    sources = [(source, defines) for source in SOURCES]
    sources += [(f"csrc/kernels/{file}.cpp", [*defines, *own]) for file, own in files.items()]
    flags = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    program = build(compiler, sources, flags, tmp_path)
    done = subprocess.run([str(program), "2", "60"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "generic equals generic" in done.stdout
    assert ("amx equals generic" in done.stdout) == ("avx512 equals generic" in done.stdout)


def test_tiles_of_the_matrix_unit_equal_generic_under_emulation(tmp_path: Path) -> None:
    """The kernels for AMX, with its instructions in plain C++: only a processor with AVX-512 is needed.

    All else is the installation's where that was built, because the generic kernels take longest to compile.
    """
    compiler = shutil.which("g++")
    if platform.machine() != "x86_64" or compiler is None:
        pytest.skip("AMX KERNELS NOT TESTED: an x86-64 machine with g++ is needed")
    if "avx512" not in available_isas():
        pytest.skip("OTHER PROCESSOR NEEDED: AMX KERNELS NOT TESTED, their vectors are AVX-512's")
    defines = ["-DXNORPP_HAVE_AMX", "-DXNORPP_EMULATE_AMX"]
    flags = [flag for flag in x86_flags()["wide/amx"] if "amx" not in flag]
    library = capi.built("libxnorpp.a")
    known = (SOURCES[0], "csrc/kernels/dispatch.cpp") if library else SOURCES
    sources = [(source, defines) for source in known] + [("csrc/kernels/wide/amx.cpp", [*defines, *flags])]
    sources += [(str(library), [])] if library else []
    program = build(compiler, sources, ["-O0"], tmp_path)
    done = subprocess.run([str(program), "3", "16"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "amx equals generic in 16 cases" in done.stdout
