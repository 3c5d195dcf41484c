"""A stranger adds an operation: three files, and the reference and the CPU engine run it.

Builds the native core anew from a copy of the tree, at -O0 because only answers matter, so it is not part of
the suite (no `test_` in its name): python -m pytest tests/extras/check_new_operation.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ROW = '        {"turn", {kF}, same_value, outputs_work, Fusion::Producer, {}, {}, {}, 2},'
DEFINITION = '    "turn": lambda program, op, x: np.ascontiguousarray(x[:, :, ::-1, ::-1]),'
FUNCTION = """
// The last pixel first: an image turned by half a circle.
PlainStep turn(const PlainSite &) {
    return {[](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        for (int i = 0; i < count; i++) {
            const float *from = in.data + (size_t)(in.pixels() - 1 - first - i) * in.stride;
            for (int k = 0; k < out.c; k++) to[(size_t)i * out.stride + k] = from[k];
        }
    }};
}"""

# Each file, and what is written after which of its lines.
PATCH = {
    "csrc/core/operations/shape.cpp": {"    rows.insert(rows.end(), {": ROW},
    "csrc/core/plain/shape.cpp": {
        "namespace {": FUNCTION,
        "void add_plain_shapes(PlainRows &rows) {": '    rows.push_back({"turn", turn});',
    },
    "src/xnorpp/runtime/reference/shape.py": {"APPLY: dict[str, Apply] = {": DEFINITION},
}

USE = """
import sys
sys.path[:0] = PATHS
import numpy as np
import xnorpp
from random_programs import Builder
from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.format.program import encode, read
from xnorpp.runtime.reference import run
assert xnorpp.__file__.startswith(PATHS[0]), xnorpp.__file__
b = Builder((5, 7, 3))
b_program = b.program(b.emit("relu", b.emit("turn", "input")))
program = read(encode(b_program))
x = np.random.default_rng(0).standard_normal((3, 5, 7, 3)).astype(np.float32)
want = np.maximum(x[:, :, ::-1, ::-1], 0)
np.testing.assert_array_equal(run(program, x), want)
for isa in available_isas():
    for threads in (1, 3):
        np.testing.assert_array_equal(CpuModel(program, isa=isa, threads=threads)(x), want)
print("both engines turn images")
"""


def changed_files(tree: Path) -> list[str]:
    """What differs from this checkout."""
    return [
        str(path.relative_to(tree))
        for path in sorted(tree.rglob("*"))
        if path.is_file() and path.read_bytes() != (ROOT / path.relative_to(tree)).read_bytes()
    ]


def test_an_operation_takes_three_files(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for folder in ("csrc", "src"):
        shutil.copytree(
            ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "_core*.so")
        )
    shutil.copy2(ROOT / "CMakeLists.txt", tree / "CMakeLists.txt")
    for name, additions in PATCH.items():
        text = (tree / name).read_text(encoding="utf-8")
        for line, added in additions.items():
            assert text.count(line + "\n") == 1, (name, line)
            text = text.replace(line + "\n", f"{line}\n{added}\n")
        (tree / name).write_text(text, encoding="utf-8")
    changed = changed_files(tree)
    assert changed == sorted(PATCH)
    assert len(changed) <= 3
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    row = next(line for line in contributing.splitlines() if line.startswith("| operation |"))
    for name in changed:
        assert f"`{Path(name).parent}`" in row, name

    made = tmp_path / "made"
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DXNORPP_PYTHON=ON", "-DXNORPP_LIBRARY=OFF",
               "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0"]  # fmt: skip
    subprocess.run(["cmake", "-S", str(tree), "-B", str(made), *options], check=True)
    cores = str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", str(made), "-j", cores, "--target", "_core"], check=True)
    (library,) = made.glob("_core*.so")
    shutil.copy2(library, tree / "src" / "xnorpp" / "runtime" / library.name)
    paths = [str(tree / "src"), str(ROOT / "tests" / "runtime"), sysconfig.get_paths()["purelib"]]
    paths += [path for path in sys.path if path.endswith("site-packages")]
    script = f"PATHS = {paths!r}\n{USE}"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both engines turn images" in done.stdout
