"""Generated C of random small programs: strict compiler, sanitizers, the answers of the reference.

    python benchmarks/generated_c.py            # 200 programs, float and fixed point, some ten minutes
    python benchmarks/generated_c.py --programs 20

Each program is compiled with -std=c99 -Wall -Wextra -Wpedantic -Werror and runs under ASan and UBSan. It
agrees with the reference where every output is within 0.1 % of the largest one (fixed point with 16 bits:
1 %). A sign turns a rounding into a difference of 2, so the signs that the C code took are outputs too: the
reference continues with them, and each may differ from its own only where the number is that near to its
threshold. The ranges of fixed-point numbers come from the same inputs, as from a user's own data.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / name) for name in ("runtime", "export")]

from generated import SANITIZED, answers, build  # noqa: E402
from random_programs import random_program  # noqa: E402

from xnorpp.export import export_c  # noqa: E402
from xnorpp.runtime.format.program import INPUT, Op, Program  # noqa: E402
from xnorpp.runtime.reference.arrays import Array, per_channel  # noqa: E402
from xnorpp.runtime.reference.convolution import byte_conv  # noqa: E402
from xnorpp.runtime.reference.run import apply, normalise  # noqa: E402

MODES = {"float": None, "fixed 24": 24, "fixed 16": 16}
NEAR = {"float": 1e-3, "fixed 24": 1e-3, "fixed 16": 1e-2}  # of the largest number


def with_signs(program: Program) -> tuple[Program, dict[str, str]]:
    """The program with its signs as further outputs; their names by the value of bits."""
    bits = [op.output for op in program.ops if op.op == "sign"]
    names = {value: f"signs_of_{value}" for value in bits}
    shown = tuple(Op("signs", name, (value,), name, {}, {}) for value, name in names.items())
    outputs = {**program.more_outputs, **{name: name for name in names.values()}}
    return replace(program, ops=(*program.ops, *shown), more_outputs=outputs), names


def follow(program: Program, x: Array, taken: Mapping[str, Array]) -> tuple[Array, float]:
    """The reference's output with the signs that were taken; and the farthest that a number lay from its
    threshold where the reference has another sign, relative to the largest number."""
    values: dict[str, Array] = {INPUT: normalise(program, x)}
    farthest = 0.0
    for op in program.ops:
        if "byte_weight" in op.tensors and x.dtype == np.uint8:
            value = byte_conv(program, op, x)
        else:
            value = apply(program, op, *(values[name] for name in op.inputs))
        if op.op == "sign":
            given = taken[op.output].reshape(value.shape).astype(value.dtype)
            numbers = apply(program, replace(op, op="affine", tensors=spatial(op)), values[op.inputs[0]])
            limit = program.real(op, "threshold")
            if limit is not None:
                numbers = numbers - per_channel(limit, numbers.ndim)
            away = np.abs(numbers)[given != value]
            largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=1e-3)
            farthest = max(farthest, float(away.max(initial=0) / largest))
            value = given
        values[op.output] = value
    return values[program.output], farthest


def spatial(op: Op) -> dict[str, str]:
    """The tensors of a sign's own factor."""
    return {role: name for role, name in op.tensors.items() if role in ("row", "col", "map", "full")}


def error(program: Program, seed: int, fixed: int | None, from_bytes: bool) -> float:
    """The largest difference from the reference, relative to the largest number."""
    rng = np.random.default_rng(seed)
    c, h, w = program.input_shape
    x = rng.integers(0, 256, (2, h, w, c), dtype=np.uint8)
    if not from_bytes:
        x = rng.uniform(-2, 2, (2, c, h, w)).astype(np.float32)
    shown, names = with_signs(program)
    examples = {} if fixed is None else {"examples": x}
    made = export_c(shown, fixed=fixed, from_bytes=from_bytes, **examples)
    given = x
    if fixed is not None and not from_bytes:
        shift = int(re.search(r"_INPUT_SHIFT (-?\d+)", made.header)[1])
        given = np.clip(np.rint(x * 2.0**shift), -32767, 32767).astype(np.int16)
        x = (given / 2.0**shift).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        found = answers(build(made, shown, Path(folder), SANITIZED), made, shown, given)
    ours, taken = found[0], dict(zip(names, (np.sign(one) for one in found[1:]), strict=True))
    if fixed is not None:
        shift = int(re.search(r"_OUTPUT_SHIFT (-?\d+)", made.header)[1])
        ours = ours / 2.0**shift
    with np.errstate(all="ignore"):
        expected, farthest = follow(program, x, taken)
    if not np.array_equal(np.isfinite(ours), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=1e-3))
    return max(farthest, float(np.abs(ours[finite] - expected[finite]).max(initial=0)) / scale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    given = parser.parse_args()
    wrong = 0
    errors: dict[str, list[float]] = {name: [] for name in given.modes}
    for seed in range(given.first, given.first + given.programs):
        program = random_program(seed)
        for name in given.modes:
            errors[name].append(error(program, seed, MODES[name], from_bytes=seed % 2 == 0))
            if errors[name][-1] > NEAR[name]:
                print(f"seed {seed}, {name}: {errors[name][-1]:.2g} of the largest number away", flush=True)
    for name, found in errors.items():
        within = sum(one <= NEAR[name] for one in found)
        wrong += len(found) - within
        print(
            f"{name}: {len(found)} programs compiled strictly and ran clean under ASan and UBSan; "
            f"{within} agree within {NEAR[name]:.1%} (half of them within {np.median(found):.1g})"
        )
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
