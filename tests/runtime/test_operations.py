"""Every engine covers every operation of the set: a new one fails here until it is defined everywhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from cuda_host import families
from engines import engines_agree

from xnorpp.packing.operations import FUNCTIONS
from xnorpp.runtime.cuda.operations import ENTRY, PRODUCERS, STAGES
from xnorpp.runtime.cuda.source import kernel_source
from xnorpp.runtime.format.ops import operations
from xnorpp.runtime.native import core
from xnorpp.runtime.plan import make_steps
from xnorpp.runtime.reference import ROWS
from xnorpp.runtime.reference.curves import CURVES

ROOT = Path(__file__).parents[2]
FAMILIES = (
    *("convolution", "product", "einsum", "arithmetic", "activation", "choice", "reduction", "window"),
    *("shape", "moves", "unfold", "volume", "attention", "recurrent"),
)
# Of an epilogue, in every engine.
MOVES = {"affine", "relu", "prelu", "hardtanh", "add", "mul", "sign", "sub", "div", "offset", *CURVES}


def test_the_reference_defines_every_operation() -> None:
    assert set(ROWS) == set(operations())


def test_the_cpu_engine_covers_every_operation() -> None:
    assert set(core().engine_operations()) == set(operations())


def test_the_gpu_engine_covers_every_operation() -> None:
    assert set(ENTRY) | set(PRODUCERS) | STAGES == set(operations())
    assert STAGES == MOVES
    for name, producer in PRODUCERS.items():
        assert f"\nPLAIN({producer.entry}, " in kernel_source("", {}, producer.kernels), name


def test_a_real_gpu_is_tested_with_every_operation_of_set_2_and_later() -> None:
    programs = [make()[0] for make in (*families.CASES.values(), *families.SUMS.values())]
    used = {op.op for program in programs for op in program.ops}
    assert used >= {name for name, rule in operations().items() if rule.since >= 2}


@pytest.mark.parametrize("name", families.LISTED)
def test_an_operation_is_tested_by_being_listed(name: str) -> None:
    program, x = families.CASES[f"{name} as listed"]()
    engines_agree(program, x)


def test_packing_bounds_the_error_of_every_operation() -> None:
    assert all(callable(ROWS[name].bound) for name in operations())


def test_moves_are_what_plans_have_besides_producers() -> None:
    from random_programs import random_program

    producers = {
        s.kind for seed in range(150) for s in make_steps(random_program(seed, length=6 + seed % 25))
    }
    first = {name for name, rule in operations().items() if rule.since == 1}
    assert producers - {"pointwise"} == first - MOVES


def test_the_format_page_lists_every_operation_of_each_set() -> None:
    page = (ROOT / "docs/format.md").read_text()
    first, second = page.split("## Operation set 1")[1].split("## Operation set 2")
    rows = {name: rule.since for name, rule in operations().items()}
    for since, text in ((1, first), (2, second.split("### ")[0])):
        listed = {
            name
            for line in text.splitlines()
            if line.startswith("| `")
            for name in re.findall(r"`(\w+)`", line.split("|")[1])
        }
        assert listed >= {name for name, own in rows.items() if own == since}
        assert listed <= set(rows)


def test_the_packing_page_lists_every_function_that_is_recognised() -> None:
    page = (ROOT / "docs/packing.md").read_text()
    listed: set[str] = set()
    for family in (*FAMILIES, "indexing"):
        *_, row = re.findall(rf"^\| {family} \| (`.*) \|$", page, re.MULTILINE)
        names = re.findall(r"`(\w+)`", row)
        folder = {"indexing": "moves", "attention": "sequences", "recurrent": "sequences"}.get(
            family, "operations"
        )
        module = importlib.import_module(f"xnorpp.packing.{folder}.{family}")
        assert names == sorted(module.FUNCTIONS), f"the row {family!r} of docs/packing.md"
        listed |= set(names)
    assert listed == set(FUNCTIONS)


# Names that CUDA declares itself, often more than once: a kernel of this name does not compile on a GPU,
# although a C++ compiler on the host takes it.
TAKEN_BY_CUDA = {
    "abs", "acos", "acosh", "all", "any", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clamp", "copysign", "cos", "cosh", "cospi", "cyl_bessel_i0", "erf", "erfc", "exp", "exp10",
    "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot",
    "ilogb", "isfinite", "isinf", "isnan", "j0", "j1", "jn", "ldexp", "lgamma", "llrint", "llround",
    "log", "log10", "log1p", "log2", "logb", "lrint", "lround", "max", "min", "modf", "nan",
    "nearbyint", "nextafter", "norm", "norm3d", "norm4d", "normcdf", "pow", "rcbrt", "remainder",
    "remquo", "rhypot", "rint", "rnorm", "rnorm3d", "rnorm4d", "round", "rsqrt", "scalbln",
    "scalbn", "select", "signbit", "sin", "sincos", "sincospi", "sinh", "sinpi", "sqrt", "tan",
    "tanh", "tgamma", "trunc", "y0", "y1", "yn",
}  # fmt: skip


def test_no_kernel_has_the_name_of_a_function_of_cuda() -> None:
    names = {producer.entry for producer in PRODUCERS.values()} | set(ENTRY.values())
    assert len(names) >= 10
    assert not names & TAKEN_BY_CUDA
