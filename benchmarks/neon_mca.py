"""Instructions and modelled cycles per multiply-add of the NEON kernels, from llvm-mca.

    python benchmarks/neon_mca.py
    python benchmarks/neon_mca.py --cpu cortex-a72,apple-a14 --json mca.json

Needs aarch64-linux-gnu-g++ (or g++ on Arm) and llvm-mca. The kernels are compiled as in the real build. Of
each one the loop with the largest share of multiply-adds is taken from the assembly, and the analyser reports
its instructions and the cycles of a model of each processor, with everything in the first-level cache. No
hardware is timed. What the bit kernel does once in 31 rounds, adding the byte sums to 16-bit ones, is left
out where the compiler puts it elsewhere.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["-O3", "-DNDEBUG", "-std=c++17", "-ffp-contract=off", "-w", "-S"]
CPUS = "cortex-a53,cortex-a55,cortex-a72,apple-a14"
# A kernel's name, the function that contains its loop, the instruction that multiplies, the multiply-adds of
# one such instruction, and the fewest of them in a round. One `cnt` counts sixteen bytes; 16 are a tile of
# eight pixels and 32 filters.
KERNELS = (
    ("binary convolution", "", r"cnt\s+v", 128, 16),
    ("fp32 convolution, 1x1 and 3x3", "conv_float", r"fmla\s+v\d+\.4s", 4, 16),
    ("fp32 depthwise 3x3", "grouped_knownILi7ELi3ELi1E", r"fmla\s+v\d+\.4s", 4, 16),
    ("fp32 depthwise 3x3, stride 2", "grouped_knownILi7ELi3ELi2E", r"fmla\s+v\d+\.4s", 4, 16),
    ("fp32 matrix product", "product_tileILi4ELi2E", r"fmla\s+v\d+\.4s", 4, 16),
    ("whole-number convolution, int8 or bytes", "", r"smull2?\s+v\d+\.4s", 4, 8),
)
ROUNDS = 200


def assembly() -> str:
    """`neon.cpp` as the compiler translates it."""
    compiler = shutil.which("aarch64-linux-gnu-g++") or shutil.which("g++")
    if compiler is None:
        sys.exit("neon_mca: aarch64-linux-gnu-g++ is needed (Debian: apt install g++-aarch64-linux-gnu)")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "neon.s"
        subprocess.run([compiler, *FLAGS, str(ROOT / "csrc/kernels/neon.cpp"), "-o", str(out)], check=True)
        return out.read_text()


def counts(lines: list[str], instruction: str) -> int:
    return sum(1 for line in lines if re.match(rf"\s+{instruction}", line))


def inner_loop(text: str, function: str, instruction: str, fewest: int) -> list[str]:
    """The loop that is densest in multiply-adds, of those of a function that do a whole tile in a round."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\.(?!L)|//|#)", line) and line.strip()]
    places = {line.split(":")[0]: at for at, line in enumerate(lines) if re.match(r"\.L\w+:", line)}
    loops, inside = [], False
    for end, line in enumerate(lines):
        label = re.match(r"(_\w+):", line)
        if label:
            inside = function in label[1]
        target = re.match(r"\s+(?:b\.?\w*|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)\s*$", line)
        if inside and target and places.get(target[1], end) < end:
            loops.append([one for one in lines[places[target[1]] : end + 1] if not one.startswith(".L")])
    loops = [loop for loop in loops if counts(loop, instruction) >= fewest]
    if not loops:
        sys.exit(f"neon_mca: no loop of {function or 'any function'!r} was found in the assembly")
    return max(loops, key=lambda loop: counts(loop, instruction) / len(loop))


def analyse(name: str, loop: list[str], products: int, cpu: str) -> dict[str, float | str]:
    """What llvm-mca reports of a loop with this many multiply-adds on a processor, per multiply-add."""
    tool = next((name for name in map(shutil.which, ("llvm-mca", "llvm-mca-14")) if name), None)
    if tool is None:
        sys.exit("neon_mca: llvm-mca is needed (Debian: apt install llvm)")
    command = [tool, "-mtriple=aarch64", f"-mcpu={cpu}", f"-iterations={ROUNDS}", "-instruction-tables=0"]
    straight = [
        line for line in loop if not re.match(r"\s+(b\.?\w*|cbn?z|tbn?z)\s", line)
    ]  # branches are predicted
    done = subprocess.run(command, input="\n".join(straight) + "\n", capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"neon_mca: llvm-mca failed for {cpu}: {done.stderr.strip().splitlines()[-1]}")
    found = {
        key: int(re.search(rf"{key}:\s+(\d+)", done.stdout)[1])  # type: ignore[index]
        for key in ("Instructions", "Total Cycles")
    }
    work = ROUNDS * products
    return {
        "kernel": name,
        "cpu": cpu,
        "instructions_per_multiply_add": len(loop) * ROUNDS / work,
        "multiply_adds_per_instruction": work / (len(loop) * ROUNDS),
        "modelled_multiply_adds_per_cycle": work / found["Total Cycles"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", default=CPUS, help=f"processors that llvm-mca knows (default: {CPUS})")
    parser.add_argument("--json", help="write the figures to this file")
    given = parser.parse_args()
    text, rows = assembly(), []
    for name, function, instruction, lanes, fewest in KERNELS:
        loop = inner_loop(text, function, instruction, fewest)
        products = counts(loop, instruction) * lanes
        found = [analyse(name, loop, products, cpu) for cpu in given.cpu.split(",")]
        each = len(loop) / products
        print(f"{name}: {len(loop)} instructions for {products} multiply-adds, {each:.3f} per multiply-add")
        for row in found:
            cycle = float(row["modelled_multiply_adds_per_cycle"])
            print(f"  {row['cpu']}: modelled {cycle:.1f} multiply-adds per cycle")
        rows += found
    print("No hardware was timed.")
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
