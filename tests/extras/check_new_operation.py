"""A stranger adds an operation: three files, and every engine runs it, packing bounds its error.

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

ROW = '        {"turn", {kF}, same_value, outputs_work, Fusion::Producer, {}, {}, {}, 4, turn},'
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
DEFINITION = """    "turn": Row(
        lambda program, op, x: np.ascontiguousarray(x[:, :, ::-1, ::-1]),
        carried,
        "f32 (c,h,w) -> f32, same shape",
        meaning="The last pixel first: an image turned by half a circle.",
    ),"""
KERNEL = """XN_INLINE void turned_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH_CHANNEL(v[i] = source_at(a, p.image, (long)a.h * a.w - 1 - pixel_of(a, p), c))
}
PLAIN(turn, turned_values(a, p, v))"""

# Each file, and what is written after which of its lines.
PATCH = {
    "csrc/core/operations/shape.cpp": {"    rows.insert(rows.end(), {": ROW, "// On the CPU.": FUNCTION},
    "src/xnorpp/runtime/reference/shape.py": {"ROWS: dict[str, Row] = {": DEFINITION},
    "src/xnorpp/runtime/cuda/operations/shape.py": {
        "PLAIN(reshape, reshaped_values(a, p, v))": KERNEL,
        "PRODUCERS = {": '    "turn": Producer(KERNELS, "turn"),',
    },
}

# Run in the changed tree: the engines, what is compiled for a GPU, and what packing says of a network. The
# torch function that becomes the operation is another task (CONTRIBUTING: packable torch function).
USE = """
import sys
sys.path[:0] = PATHS
import numpy as np
import torch
import xnorpp
from torch import nn
from random_programs import Builder
from xnorpp.packing import operations as packing
from xnorpp.packing import pack_program, verify
from xnorpp.paper.operations import later_sets
from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.cuda import build
from xnorpp.runtime.format.program import encode, read
from xnorpp.runtime.reference import run
assert xnorpp.__file__.startswith(PATHS[0]), xnorpp.__file__

b = Builder((5, 7, 3))
program = read(encode(b.program(b.emit("relu", b.emit("turn", "input")))))
x = np.random.default_rng(0).standard_normal((3, 5, 7, 3)).astype(np.float32)
want = np.maximum(x[:, :, ::-1, ::-1], 0)
np.testing.assert_array_equal(run(program, x), want)
for isa in available_isas():
    for threads in (1, 3):
        np.testing.assert_array_equal(CpuModel(program, isa=isa, threads=threads)(x), want)
(launch,) = build.Builder(program, build.Gpu()).schedule(3, False).launches
assert launch.kernel.entry == "turn"
assert "PLAIN(turn, turned_values(a, p, v))" in launch.kernel.source()

packing.FUNCTIONS["rot90"] = lambda trace, result, input, k, dims: trace.emit(
    "turn", [trace.node(input)], tuple(result.shape[1:]), {})

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(5, 8, 3)

    def forward(self, x):
        return self.conv(torch.rot90(x.sigmoid(), 2, (2, 3))).relu()

torch.manual_seed(0)
net = Turned().eval()
packed = pack_program(net, (5, 7, 3))
assert [op.op for op in packed.ops] == ["sigmoid", "turn", "conv2d", "relu"]
found = verify(net, x)
assert found.holds
(turn,) = [layer for layer in found.layers if layer.op == "turn"]
assert 0 == turn.beyond and turn.error == 0 <= turn.bound, turn

page = later_sets()
assert "## Operation set 4" in page, page
assert "| `turn` | f32 (c,h,w) -> f32, same shape | | |" in page, page
assert "**turn** The last pixel first" in page, page
print("every engine turns images")
"""


def changed_files(tree: Path) -> list[str]:
    """What differs from this checkout."""
    return [
        str(path.relative_to(tree))
        for path in sorted(tree.rglob("*"))
        if path.is_file() and path.read_bytes() != (ROOT / path.relative_to(tree)).read_bytes()
    ]


def run(script: str) -> str:
    """A Python script without this checkout's installation, and what it prints."""
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_operation_takes_three_files(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for folder in ("csrc", "src", "tests/runtime"):
        ignored = shutil.ignore_patterns("__pycache__", "_core*.so")
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
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
    paths = [str(tree / "src"), str(tree / "tests" / "runtime"), sysconfig.get_paths()["purelib"]]
    paths += [path for path in sys.path if path.endswith("site-packages")]
    assert "every engine turns images" in run(f"PATHS = {paths!r}\n{USE}")

    # The tests that every operation has: all engines cover it, and agree on it where it is listed. The
    # kernel runs as C++ here, on the GPU in tests/gpu.
    tests = [
        f"{tree}/tests/runtime/test_operations.py::test_{name}"
        for name in (
            "the_reference_defines_every_operation", "the_cpu_engine_covers_every_operation",
            "the_gpu_engine_covers_every_operation", "packing_bounds_the_error_of_every_operation",
            "an_operation_is_tested_by_being_listed[turn]",
        )
    ]  # fmt: skip
    arguments = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(tree), *tests]
    script = f"import sys\nsys.path[:0] = {paths!r}\nimport pytest\nsys.exit(pytest.main({arguments!r}))"
    assert "5 passed" in run(script)
