"""The C library as others find it: installed, then used by pkg-config and by find_package, shared and static.

    python tests/native/check_install.py [--work build/install]

Part of `make test-deploy`. The library is built with and without threads (-DXNORPP_THREADS=OFF), installed,
and moved to another folder, because a package may lie anywhere. The programs of examples/c are then built in
the four ways of the manual; each answers as Python does. At -O0: only answers matter here.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from check_platforms import ROOT, run
from PIL import Image

import xnorpp
from xnorpp.shipped import shipped_path

MODEL = "cifar10-resnet20"


def install(threads: str, work: Path) -> Path:
    """Built with -Werror, installed, and moved."""
    build, first, prefix = work / f"build-{threads}", work / f"first-{threads}", work / f"prefix-{threads}"
    options = [f"-DXNORPP_THREADS={threads}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0 -Werror",
               "-DCMAKE_INSTALL_LIBDIR=lib"]  # fmt: skip
    run(["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options])
    run(["cmake", "--build", str(build)])
    for folder in (first, prefix):
        shutil.rmtree(folder, ignore_errors=True)
    run(["cmake", "--install", str(build), "--prefix", str(first)])
    first.rename(prefix)
    for name in ("include/xnorpp.h", "bin/xnorpp-run", "lib/libxnorpp.so", "lib/libxnorpp.a"):
        assert (prefix / name).exists(), f"{name} is not installed"
    return prefix


def by_pkg_config(prefix: Path, work: Path) -> dict[str, Path]:
    """classify.c by its shared and by its static library, as the manual writes it."""
    environment = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    source = str(ROOT / "examples" / "c" / "classify.c")
    programs = {}
    for kind, asked, linked in (("shared", [], []), ("static", ["--static"], ["-static"])):
        flags = run(["pkg-config", "--cflags", "--libs", *asked, "xnorpp"], environment).split()
        programs[f"pkg-config, {kind}"] = program = work / f"classify-{kind}"
        strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        run(["cc", *strict, source, *flags, *linked, "-o", str(program)])
    return programs


def by_find_package(prefix: Path, work: Path) -> dict[str, Path]:
    """The examples' own project: classify takes the shared target, batch the static one."""
    build = work / f"examples-{prefix.name}"
    shutil.rmtree(build, ignore_errors=True)
    project = ["-S", str(ROOT / "examples" / "c"), "-B", str(build), "-G", "Ninja"]
    run(["cmake", *project, f"-DCMAKE_PREFIX_PATH={prefix}"])
    run(["cmake", "--build", str(build)])
    return {"find_package, shared": build / "classify", "find_package, static": build / "batch"}


def main() -> int:
    """Install, build and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "install")
    work = parser.parse_args().work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(6).integers(0, 256, (2, 32, 32, 3), np.uint8)
    image, raw = work / "image.ppm", work / "images.raw"
    Image.fromarray(images[0]).save(image)
    raw.write_bytes(images.tobytes())
    labels = [found[0].label for found in (xnorpp.load(MODEL).classify(one) for one in images)]
    path = str(shipped_path(MODEL))
    for threads in ("ON", "OFF"):
        start = time.monotonic()
        prefix = install(threads, work)
        libraries = {"LD_LIBRARY_PATH": str(prefix / "lib")}
        assert run([str(prefix / "bin" / "xnorpp-run"), path, str(image)]).startswith(
            f"{image}: {labels[0]} "
        )
        for name, program in {**by_pkg_config(prefix, work), **by_find_package(prefix, work)}.items():
            if threads == "OFF" and program.name == "batch":  # it asks for two
                refused = subprocess.run([str(program), path, str(raw)], capture_output=True, text=True)
                assert (refused.returncode, "this build has no threads" in refused.stderr) == (1, True), (
                    refused
                )
                continue
            found = run([str(program), path, str(raw if program.name == "batch" else image)], libraries)
            wanted = "".join(f"{i} {label}\n" for i, label in enumerate(labels))
            assert found == wanted if program.name == "batch" else found.split()[0] == labels[0], found
            shared = "libxnorpp" in run(["sh", "-c", f"ldd {program} 2>&1 || true"])
            assert shared == name.endswith("shared"), f"{name} is linked with the other library"
        if threads == "OFF":
            symbols = run(["nm", "-D", "--undefined-only", str(prefix / "lib" / "libxnorpp.so")])
            assert "pthread_create" not in symbols, "a library without threads starts none"
            assert "pthread" not in (prefix / "lib" / "pkgconfig" / "xnorpp.pc").read_text(encoding="utf-8")
        print(
            f"XNORPP_THREADS={threads}: installed and moved; pkg-config and find_package, shared and static: "
            f"Python's classes; {time.monotonic() - start:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
