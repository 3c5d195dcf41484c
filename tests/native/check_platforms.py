"""The C library on other platforms: compiled without a warning, and run where an emulator can.

    python tests/native/check_platforms.py [NAME...] [--work build/platforms]

Part of `make test-deploy`, which installs what it needs: nothing is skipped. For each platform the library
and xnorpp-run are built by CMake with -Werror: by Clang at -O0, because its warnings do not depend on the
level, and by GCC, whose warnings do, at -O1. Only answers matter here. What runs is compared with Python on
this machine: signs and integer sums (a network whose output is a binary convolution) in every bit;
a trained network by class and within rounding. macOS is compiled, not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

import xnorpp
from xnorpp.runtime.format.bits import pack_conv_weight
from xnorpp.runtime.format.program import encode
from xnorpp.shipped import shipped_path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runtime"))
from random_programs import Builder  # noqa: E402


@dataclass(frozen=True)
class Platform:
    """How to compile for a platform, and how to run there."""

    system: str
    processor: str
    compiler: tuple[str, ...]
    emulator: tuple[str, ...] | None = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    isas: tuple[str, ...] = ("generic",)
    suffix: str = ""
    level: str = "-O0"


ZIG = (sys.executable, "-m", "ziglang")


def zig(target: str) -> tuple[str, ...]:
    """Zig's clang for a target; glibc's version is part of its name. At -O0 zig would check for undefined
    behaviour too, and a library of its own would have to be linked."""
    return (*ZIG, "c++", "-target", target, "-fno-sanitize=undefined")


STATIC = ("-DCMAKE_EXE_LINKER_FLAGS=-static",)
ARM_LIBRARIES = {"QEMU_LD_PREFIX": "/usr/aarch64-linux-gnu"}
QUIET = {"WINEDEBUG": "-all"}
X86, ARM = ("avx2", "generic"), ("neon", "generic")
PLATFORMS = {
    "linux-x86_64-glibc2.28": Platform("Linux", "x86_64", zig("x86_64-linux-gnu.2.28"), isas=X86),
    "linux-x86_64-musl": Platform("Linux", "x86_64", zig("x86_64-linux-musl"), isas=X86),
    "linux-aarch64-glibc2.28": Platform(
        "Linux", "aarch64", zig("aarch64-linux-gnu.2.28"), ("qemu-aarch64",), ARM_LIBRARIES, isas=ARM,
    ),
    "linux-aarch64-musl": Platform(
        "Linux", "aarch64", zig("aarch64-linux-musl"), ("qemu-aarch64",), isas=ARM,
    ),
    "linux-riscv64": Platform(
        "Linux", "riscv64", ("riscv64-linux-gnu-g++",), ("qemu-riscv64",), options=STATIC, level="-O1",
    ),
    "windows-x86_64": Platform(
        "Windows", "x86_64", ("x86_64-w64-mingw32-g++-posix",), ("wine",), QUIET, STATIC, X86, ".exe", "-O1",
    ),
    "macos-x86_64": Platform("Darwin", "x86_64", zig("x86_64-macos"), None),
    "macos-arm64": Platform("Darwin", "arm64", zig("aarch64-macos"), None),
}  # fmt: skip


def program(path: Path, command: tuple[str, ...]) -> Path:
    """A command as one program, as CMake wants it."""
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def tools_of(platform: Platform, folder: Path) -> dict[str, Path]:
    """The compiler, and zig's archiver with zig's compiler: GNU's writes no archive that macOS can read."""
    tools = {"CXX_COMPILER": program(folder / "compiler", platform.compiler)}
    if "ziglang" in platform.compiler:
        for name in ("ar", "ranlib"):
            tools[name.upper()] = program(folder / name, (*ZIG, name))
    return tools


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Output of a command; its failure ends the check."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-6000:]}{done.stderr[-6000:]}\nfailed")
    return done.stdout


def build(name: str, platform: Platform, work: Path, level: str | None) -> Path:
    """The library, xnorpp-run and the program of the test, with no warning."""
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    level = level or platform.level  # one for all: zig builds its C++ library for each
    tools = tools_of(platform, folder)
    target = folder / "build"
    options = [
        f"-DCMAKE_SYSTEM_NAME={platform.system}", f"-DCMAKE_SYSTEM_PROCESSOR={platform.processor}",
        *(f"-DCMAKE_{name}={path}" for name, path in tools.items()), "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_CXX_FLAGS={level} -Werror", *platform.options,
    ]  # fmt: skip
    run(["cmake", "-S", str(ROOT), "-B", str(target), "-G", "Ninja", *options])
    run(["cmake", "--build", str(target)])
    library = next(
        path
        for path in (target / "csrc" / "capi").iterdir()
        if path.suffix == ".a" and "dll" not in path.name
    )
    static = ["-static"] if STATIC[0] in platform.options else []
    answers = folder / f"answers{platform.suffix}"
    source = ROOT / "tests" / "native" / "answers.cpp"
    flags = ["-std=c++17", level, "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    compiler = str(tools["CXX_COMPILER"])
    run([compiler, *flags, str(source), str(library), *static, "-pthread", "-o", str(answers)])
    return answers


def integer_network() -> bytes:
    """Signs of the input's sums, and their binary convolution: whole numbers alone."""
    rng = np.random.default_rng(1)
    b = Builder((3, 16, 16))
    geometry = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    x = b.emit("sign", "input", tensors={"threshold": np.asarray([0.5, 0.25, 0.125], np.float32)})
    for width in (3, 40):
        weight = {"weight": pack_conv_weight(rng.standard_normal((40, width, 3, 3)))}
        dot = b.emit("binary_conv2d", x, attrs={**geometry, "pad_value": 0}, tensors=weight)
        x = b.emit("sign", dot)
    out = b.emit(
        "affine",
        dot,
        tensors={"mult": np.full(40, 0.37, np.float32), "add": rng.standard_normal(40).astype("f4")},
    )
    return encode(b.program(out, mean=(0.0,) * 3, std=(1.0,) * 3))


def check(name: str, platform: Platform, answers: Path, work: Path) -> list[str]:
    """Answers there against answers here."""
    assert platform.emulator is not None
    lines = []
    rng = np.random.default_rng(0)
    (work / "integer.xnor").write_bytes(integer_network())
    cases = {"integer": work / "integer.xnor", "resnet20": Path(shipped_path("cifar10-resnet20"))}
    for case, path in cases.items():
        model = xnorpp.load(path, threads=1)
        channels, height, width = model.input_shape
        coarse = rng.integers(0, 256, (6, 4, 4, channels), np.uint8)
        images = np.stack([np.asarray(Image.fromarray(one).resize((width, height), 2)) for one in coarse])
        raw, out = work / f"{case}.raw", work / name / f"{case}.f32"
        raw.write_bytes(images.tobytes())
        flat = (images.reshape(-1).astype(np.float32) / 64 - 2).reshape(len(images), channels, height, width)
        wanted = np.stack([model(images), model(flat)]).reshape(2, len(images), -1)
        for isa in platform.isas:
            command = [*platform.emulator, str(answers), str(path), str(raw), str(out), isa]
            described = run(command, platform.environment).strip()
            found = np.fromfile(out, np.float32).reshape(wanted.shape)
            if case == "integer":
                assert np.array_equal(found, wanted), f"{name}, {isa}: not the same bits"
            else:
                assert np.array_equal(found.argmax(2), wanted.argmax(2)), f"{name}, {isa}: another class"
                error = np.abs(found - wanted).max(2) / np.abs(wanted).max(2)
                assert np.median(error) < 1e-4, error
                assert error.max() < 0.1, error
            lines.append(
                f"{case}, {described}: {'same bits' if np.array_equal(found, wanted) else 'same classes'}"
            )
    return lines


def main() -> int:
    """Build and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "names", metavar="NAME", nargs="*", choices=[*PLATFORMS, []], help=", ".join(PLATFORMS)
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "platforms")
    parser.add_argument("--level", help="optimisation, in place of each platform's own")
    given = parser.parse_args()
    for name in given.names or PLATFORMS:
        platform, start = PLATFORMS[name], time.monotonic()
        answers = build(name, platform, given.work, given.level)
        print(f"{name}: compiled without a warning in {time.monotonic() - start:.0f} s", flush=True)
        if platform.emulator is not None:
            for line in check(name, platform, answers, given.work):
                print(f"{name}: {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
