"""Instructions and modelled cycles per multiply-add of the NEON bit kernel, from llvm-mca.

    python benchmarks/neon_mca.py
    python benchmarks/neon_mca.py --cpu cortex-a72,apple-a14 --json mca.json

Needs aarch64-linux-gnu-g++ (or g++ on Arm) and llvm-mca. The kernels are compiled as in the real build, the
innermost loop that counts bits is taken from the assembly, and the analyser reports its instructions and the
cycles of a model of each processor, with everything in the first-level cache. No hardware is timed. What is
done once in 31 rounds, adding the byte sums to 16-bit ones, is left out where the compiler puts it elsewhere.
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
LANES = 16 * 8  # multiply-adds of one `cnt` of sixteen bytes
TILE = 16  # `cnt` of eight pixels and 32 filters
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


def counts(lines: list[str]) -> int:
    return sum(1 for line in lines if re.match(r"\s+cnt\s+v", line))


def inner_loop(text: str) -> list[str]:
    """The loop that is densest in counting, of those that count a whole tile in a round."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\.(?!L)|//|#)", line) and line.strip()]
    places = {line.split(":")[0]: at for at, line in enumerate(lines) if re.match(r"\.L\w+:", line)}
    loops = []
    for end, line in enumerate(lines):
        target = re.match(r"\s+(?:b\.?\w*|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)\s*$", line)
        if target and places.get(target[1], end) < end:
            loops.append(lines[places[target[1]] : end + 1])
    loops = [loop for loop in loops if counts(loop) >= TILE]
    if not loops:
        sys.exit("neon_mca: no loop that counts the bits of a whole tile was found in the assembly")
    loop = max(loops, key=lambda loop: counts(loop) / len(loop))
    return [line for line in loop if not line.startswith(".L")]


def analyse(loop: list[str], cpu: str) -> dict[str, float | str]:
    """What llvm-mca reports of a processor, per multiply-add."""
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
    work = ROUNDS * counts(loop) * LANES
    return {
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
    loop = inner_loop(assembly())
    rows = [analyse(loop, cpu) for cpu in given.cpu.split(",")]
    work = counts(loop) * LANES
    print(f"inner loop of the NEON bit kernel: {len(loop)} instructions for {work} multiply-adds")
    for row in rows:
        print(
            f"{row['cpu']}: {row['instructions_per_multiply_add']:.5f} instructions per multiply-add, "
            f"modelled {row['modelled_multiply_adds_per_cycle']:.0f} multiply-adds per cycle"
        )
    print("No hardware was timed.")
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
