"""Builds the browser package and its page.

    python web/build.py [--out web/dist] [--zig "python -m ziglang"]

The core, the WebAssembly kernels and the C library are compiled by Zig's clang (PyPI's `ziglang`, `make
web-setup`) into xnorpp-simd.wasm and xnorpp-relaxed.wasm, compressed, and laid out as

    OUT/npm/     the npm package
    OUT/page/    the page, for any file server

Objects that are newer than their sources are used again.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "web"
FLAGS = [
    "-target", "wasm32-wasi", "-std=c++17", "-g0", "-fignore-exceptions", "-fno-rtti", "-ffp-contract=off",
    "-ffunction-sections", "-fdata-sections", "-Wall", "-Wextra", "-Iinclude", "-DXNORPP_NO_THREADS",
    "-DXNORPP_HAVE_WASM", "-DXNORPP_NO_GENERIC",
]  # fmt: skip
BUILDS = {"simd": ["-msimd128"], "relaxed": ["-msimd128", "-mrelaxed-simd"]}
HOT = ("csrc/wasm/kernels.cpp", "csrc/core/operations/")  # compiled for speed, the rest for size
FUNCTIONS = (
    "version", "isa", "load_memory", "free", "input", "takes_any_size", "output_count", "output",
    "label_count", "label", "model_isa", "memory", "run_bytes", "run_floats", "prepare", "probabilities",
    "classify", "resized",
)  # fmt: skip
EXPORTS = ["malloc", "free", "__stack_pointer", *(f"xnorpp_{name}" for name in FUNCTIONS)]
STACK = 1 << 19


def version() -> str:
    """The version of the C library."""
    found = re.search(
        r"project\(xnorpp VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    )
    assert found
    return found[1]


def sources() -> list[Path]:
    """Everything but files, threads' own code and the kernels of other machines."""
    core = sorted((ROOT / "csrc" / "core").rglob("*.cpp"))
    names = ("kernels/dispatch.cpp", "wasm/kernels.cpp", "capi/xnorpp.cpp", "wasm/exceptions.cpp")
    return [*core, *(ROOT / "csrc" / name for name in names)]


def run(command: Iterable[str]) -> None:
    """A command in the source tree; its warnings are failures."""
    done = subprocess.run([*command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or "warning:" in done.stderr:
        raise SystemExit(f"{done.stdout}{done.stderr}\n{shlex.join(command)} failed")


def compile_build(zig: list[str], name: str, work: Path) -> bytes:
    """One WebAssembly module."""
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    headers = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".inl")]
    newest = max(path.stat().st_mtime for path in [*headers, ROOT / "include" / "xnorpp.h"])
    objects, commands = [], []
    for source in sources():
        path = source.relative_to(ROOT).as_posix()
        target = folder / f"{path.replace('/', '_')}.o"
        objects.append(str(target))
        if target.exists() and target.stat().st_mtime > max(newest, source.stat().st_mtime):
            continue
        speed = "-O2" if path.startswith(HOT) else "-Os"
        own = [f'-DXNORPP_VERSION="{version()}"', *BUILDS[name], speed, "-c", path, "-o", str(target)]
        commands.append([*zig, "c++", *FLAGS, *own])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, commands))
    module = folder / "xnorpp.wasm"
    exports = [f"-Wl,--export={export}" for export in EXPORTS]
    options = [
        "-target",
        "wasm32-wasi",
        "-mexec-model=reactor",
        "-O2",
        "-s",
        "-Wl,--gc-sections",
        f"-Wl,-z,stack-size={STACK}",
    ]
    run([*zig, "c++", *options, *objects, *exports, "-o", str(module)])
    return module.read_bytes()


def lay_out(modules: dict[str, bytes], out: Path) -> None:
    """The npm package and the page."""
    shutil.rmtree(out / "npm", ignore_errors=True)
    compared = out / "page" / "compare"
    for path in (out / "page").glob("*"):  # the comparison takes long to make, and is not made here
        if path != compared:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(WEB / "page", out / "page", dirs_exist_ok=True)
    models = out / "page" / "models"
    models.mkdir(exist_ok=True)
    shutil.copy(ROOT / "src" / "xnorpp" / "shipped" / "cifar10-resnet20.xnor", models)
    for folder in (out / "npm", out / "page" / "lib"):
        folder.mkdir(parents=True)
        for path in (WEB / "src").glob("*.js"):
            shutil.copy(path, folder)
        for name, module in modules.items():
            (folder / f"xnorpp-{name}.wasm.gz").write_bytes(gzip.compress(module, 9, mtime=0))
    for name in ("src/xnorpp.d.ts", "README.md"):
        shutil.copy(WEB / name, out / "npm")
    description = (WEB / "package.json").read_text(encoding="utf-8").replace("0.0.0", version())
    (out / "npm" / "package.json").write_text(description, encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", out / "npm")


def main() -> int:
    """Compile and lay out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=WEB / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "web", help="objects")
    parser.add_argument("--zig", default=f"{shlex.quote(sys.executable)} -m ziglang")
    given = parser.parse_args()
    zig = shlex.split(given.zig)
    if subprocess.run([*zig, "version"], capture_output=True).returncode:
        raise SystemExit(
            f"`{given.zig}` does not run; install Zig with `make web-setup` (pip install ziglang)"
        )
    modules = {name: compile_build(zig, name, given.work) for name in BUILDS}
    lay_out(modules, given.out)
    for path in sorted(given.out.rglob("*")):
        if path.is_file() and "compare" not in path.parts:
            print(f"{path.stat().st_size:>8} {path.relative_to(given.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
