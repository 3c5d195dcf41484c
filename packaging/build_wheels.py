"""Builds the wheels that a release on Linux has: manylinux_2_28, x86_64 and aarch64.

    python packaging/build_wheels.py [--arch x86_64 aarch64] [--python PATH...] [--out dist]

PyPI's `ziglang` is the compiler for both, because it knows the symbols of glibc 2.28 and needs no container.
The source distribution is made first, and must hold the sources that the wheels are then built from: its
build asks for what pyproject.toml lists and no more. One wheel with the stable ABI serves Python 3.12 and
newer; older versions get one each. The engine does not depend on Python's version: it is compiled once for
each processor, in one build folder. Each wheel is checked by auditwheel, and by what it holds. `make wheels`
installs what this needs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2.28"
PLATFORM = "manylinux_2_28"
TOOLS = ("build>=1.2", "scikit-build-core>=0.10", "nanobind>=2.2", "cmake>=3.26", "ninja>=1.11", "wheel")
BUILT = (".pyc", ".so")
OLDEST, STABLE, NEWEST = 10, 12, 13  # minor versions of Python: the stable ABI begins at 3.12


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Output of a command; its failure ends the build."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-6000:]}{done.stderr[-6000:]}\nfailed")
    return done.stdout


def version_of(python: str) -> int | None:
    """The minor version of a Python, or None where it cannot run or has no headers."""
    code = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_path('include'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        return None
    minor, include = done.stdout.split()
    return int(minor) if (Path(include) / "Python.h").is_file() else None


def every_python(minor: int) -> list[str]:
    """Pythons of a version with headers, on the path or by pyenv."""
    pyenv = Path.home() / ".pyenv" / "versions"
    candidates = [shutil.which(f"python3.{minor}")]
    candidates += [str(path) for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"))]
    return [candidate for candidate in candidates if candidate and version_of(candidate) == minor]


def find_pythons() -> list[str]:
    """One Python for each wheel: 3.10 and 3.11, and the oldest that has the stable ABI."""
    found = {minor: pythons[0] for minor in range(OLDEST, NEWEST + 1) if (pythons := every_python(minor))}
    stable = [minor for minor in found if minor >= STABLE][:1]
    if not stable:
        raise SystemExit(
            "no Python 3.12 or 3.13 with headers found: install one, or give its path by --python"
        )
    return [python for minor, python in found.items() if minor < STABLE or minor in stable]


def program(path: Path, command: list[str]) -> Path:
    """A command as one program, as CMake wants it."""
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def tools(pythons: list[str], work: Path) -> Path:
    """A folder with what a build needs, for all Pythons: no torch, none of the package's own needs.

    One folder, because scikit-build-core empties a build folder that another copy of it has used.
    """
    folder = work / "tools"
    if not (folder / "ready").exists():
        run([pythons[0], "-m", "pip", "install", "--quiet", "--target", str(folder), *TOOLS])
        (folder / "ready").touch()
    return folder


def build(arch: str, python: str, with_tools: Path, work: Path, out: Path) -> Path:
    """One wheel."""
    folder = work / arch
    folder.mkdir(parents=True, exist_ok=True)
    zig = [sys.executable, "-m", "ziglang"]
    # -O3 for CMake's own checks too: zig builds its C++ library once for each level.
    compiler = program(folder / "c++", [*zig, "c++", "-target", f"{arch}-linux-gnu.{GLIBC}", "-O3"])
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": arch,
        "CMAKE_CXX_COMPILER": str(compiler),
        "CMAKE_AR": str(program(folder / "ar", [*zig, "ar"])),
        "CMAKE_RANLIB": str(program(folder / "ranlib", [*zig, "ranlib"])),
    }
    options = [f"-Ccmake.define.{name}={value}" for name, value in settings.items()]
    environment = {
        "PATH": f"{with_tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(with_tools),
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        "CMAKE_GENERATOR": "Ninja",
    }
    minor = version_of(python) or 0
    if minor < STABLE:
        environment["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-3{minor}-{arch}-linux-gnu.so"
    fresh = folder / "out"
    shutil.rmtree(fresh, ignore_errors=True)
    run(
        [python, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(fresh),
         f"-Cbuild-dir={folder / 'build'}", *options],
        environment,
    )  # fmt: skip
    (made,) = fresh.glob("*.whl")
    retag = [python, "-m", "wheel", "tags", "--remove", f"--platform-tag={PLATFORM}_{arch}", str(made)]
    run(retag, environment)
    (made,) = fresh.glob("*.whl")
    check(made, arch, minor)
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(made, out / made.name))


def source_distribution(python: str, with_tools: Path, work: Path, out: Path) -> Path:
    """The source distribution, which has every file that a build reads, as it is here."""
    fresh = work / "sdist"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [python, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(fresh)]
    run(command, {"PYTHONPATH": str(with_tools)})
    (made,) = fresh.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        held = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if member.isfile()
        }
    listed = [ROOT / name for name in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")]
    for folder in ("csrc", "include", "src"):
        listed += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in BUILT]
    for path in listed:
        name = path.relative_to(ROOT).as_posix()
        assert held.get(name) == path.read_bytes(), f"the source distribution has no {name}, or another one"
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(made, out / made.name))


def check(wheel: Path, arch: str, minor: int) -> None:
    """Its name, its one module, and auditwheel's opinion of the module."""
    tag = f"cp3{STABLE}-abi3" if minor >= STABLE else f"cp3{minor}-cp3{minor}"
    expected = f"-{tag}-{PLATFORM}_{arch}.whl"
    assert wheel.name.endswith(expected), f"{wheel.name} does not end with {expected}"
    suffix = ".abi3.so" if minor >= STABLE else f".cpython-3{minor}-{arch}-linux-gnu.so"
    modules = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert modules == [f"xnorpp/runtime/_core{suffix}"], modules
    shown = run([sys.executable, "-m", "auditwheel", "show", str(wheel)])
    consistent = re.search(r'platform tag:\s*"(?:manylinux_(\d+)_(\d+)_)', " ".join(shown.split()))
    assert consistent, shown
    assert tuple(map(int, consistent.groups())) <= tuple(map(int, GLIBC.split("."))), shown


def main() -> int:
    """Build and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["x86_64", "aarch64"], choices=["x86_64", "aarch64"])
    parser.add_argument(
        "--python", nargs="+", help="default: those found as python3.10 ... python3.13, or by pyenv"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    pythons = given.python or find_pythons()
    work, out = given.work.resolve(), given.out.resolve()
    with_tools = tools(pythons, work)
    print(source_distribution(pythons[-1], with_tools, work, out).name, flush=True)
    for arch in given.arch:
        for python in pythons:
            start = time.monotonic()
            wheel = build(arch, python, with_tools, work, out)
            print(
                f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {time.monotonic() - start:.0f} s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
