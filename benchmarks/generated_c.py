"""Generated C of random small programs: strict compiler, sanitizers, the answers of the reference.

    python benchmarks/generated_c.py            # 200 programs, float and fixed point, some ten minutes
    python benchmarks/generated_c.py --programs 20

Float mode must agree with the reference as the library's engines do. In fixed-point mode the sanitizers must
find nothing, and the script reports how many programs agree: a random program may multiply a rounding by any
number, or take its sign.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / name) for name in ("runtime", "export")]

from generated import SANITIZED, answers, build  # noqa: E402
from random_programs import random_program  # noqa: E402

from xnorpp.export import export_c  # noqa: E402
from xnorpp.runtime.format.program import Program  # noqa: E402
from xnorpp.runtime.reference import run  # noqa: E402

MODES = {"float": None, "fixed 24": 24, "fixed 16": 16}


def error(program: Program, seed: int, fixed: int | None, from_bytes: bool) -> float:
    """The largest difference from the reference, relative to the largest output."""
    rng = np.random.default_rng(seed)
    c, h, w = program.input_shape
    x = rng.integers(0, 256, (2, h, w, c), dtype=np.uint8)
    if not from_bytes:
        x = rng.uniform(-2, 2, (2, c, h, w)).astype(np.float32)
    made = export_c(program, fixed=fixed, from_bytes=from_bytes)
    given = x
    if fixed is not None and not from_bytes:
        shift = int(re.search(r"_INPUT_SHIFT (-?\d+)", made.header)[1])
        given = np.clip(np.rint(x * 2.0**shift), -32767, 32767).astype(np.int16)
        x = (given / 2.0**shift).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        (ours,) = answers(build(made, program, Path(folder), SANITIZED), made, program, given)
    if fixed is not None:
        shift = int(re.search(r"_OUTPUT_SHIFT (-?\d+)", made.header)[1])
        ours = ours / 2.0**shift
    with np.errstate(all="ignore"):
        expected = run(program, x)
    if not np.array_equal(np.isfinite(ours), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=1e-3))
    return float(np.abs(ours[finite] - expected[finite]).max(initial=0)) / scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    errors: dict[str, list[float]] = {name: [] for name in MODES}
    for seed in range(given.first, given.first + given.programs):
        program = random_program(seed)
        for name, fixed in MODES.items():
            errors[name].append(error(program, seed, fixed, from_bytes=seed % 2 == 0))
            if fixed is None and errors[name][-1] > 1e-3:
                print(f"seed {seed}: float differs by {errors[name][-1]:.2g} of the largest output")
    for name, found in errors.items():
        within = [sum(one <= limit for one in found) for limit in (1e-3, 1e-2)]
        print(f"{name}: {len(found)} programs compiled strictly and ran clean under ASan and UBSan;", end=" ")
        print(f"within 0.1 % of the largest output: {within[0]}, within 1 %: {within[1]}")
    return int(any(one > 1e-3 for one in errors["float"]))


if __name__ == "__main__":
    raise SystemExit(main())
