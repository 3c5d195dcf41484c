"""What generated C needs and answers: flash, memory and stack on emulated chips, classes against the library.

    python benchmarks/microcontrollers.py --data DIR       # CIFAR-10 in its binary form; needs the tools of
                                                           # `make test-export`; some ten minutes
    python benchmarks/microcontrollers.py --digits FILE    # a packed digits network on a Cortex-M0
    python benchmarks/microcontrollers.py --draw           # the table of docs/microcontrollers.md

Rows go to results/microcontrollers.jsonl.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "export")]

from emulators import CHIPS, run_on, sizes  # noqa: E402
from generated import answers, build  # noqa: E402

from xnorpp.data import load_dataset  # noqa: E402
from xnorpp.export import Generated, export_c  # noqa: E402
from xnorpp.runtime import load  # noqa: E402
from xnorpp.runtime.format.program import Program, read  # noqa: E402
from xnorpp.shipped import list_shipped, shipped_path  # noqa: E402

ROWS = ROOT / "results" / "microcontrollers.jsonl"
PAGE = ROOT / "docs" / "microcontrollers.md"
BLOCK = re.compile(r"(<!-- measured: microcontrollers -->\n).*?(<!-- end -->)", re.DOTALL)
MODES = {"float": None, "fixed 24": 24, "fixed 16": 16}
IN_EMULATOR, ON_HOST = 100, 2000


def record(row: dict[str, Any]) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    row = {"kind": "generated C", **row, "commit": commit.stdout.strip()}
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
    print(row, flush=True)


def needs(made: Generated) -> dict[str, int]:
    """Flash and static memory of the network alone on a Cortex-M4."""
    with tempfile.TemporaryDirectory() as folder:
        flash, static = sizes(made, CHIPS["cortex-m4"], Path(folder))
    return {"flash": flash, "static": static, "arena": made.arena_bytes, "constants": made.constant_bytes}


def on_host(made: Generated, program: Program, images: Any, labels: Any) -> dict[str, Any]:
    """Classes of generated code on this machine, with fused multiply-adds, against the library."""
    flags = ("-O2", "-mfma") if "fma" in Path("/proc/cpuinfo").read_text() else ("-O2",)
    with tempfile.TemporaryDirectory() as folder:
        (ours,) = answers(build(made, program, Path(folder), flags), made, program, images)
    expected = load(program, threads=1)(images)
    same = float((ours.argmax(1) == expected.argmax(1)).mean())
    top1 = [float((found.argmax(1) == labels).mean()) for found in (ours, expected)]
    numbers = {"same_class": same, "top1": top1[0], "top1_library": top1[1]}
    return {"images": len(images), **{key: round(100 * value, 3) for key, value in numbers.items()}}


def in_emulator(made: Generated, program: Program, images: Any, chip: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = run_on(made, CHIPS[chip], images, 10, Path(folder))
    expected = load(program, threads=1)(images)
    same = int((found.outputs.argmax(1) == expected.argmax(1)).sum())
    row = {"chip": chip, "emulated_images": len(images), "emulated_same_class": same, "stack": found.stack}
    if found.outputs.dtype == np.float32:
        row["equal_bits"] = bool(np.array_equal(found.outputs, expected))
    return {**row, "flash": found.flash, "static": found.static}


def shipped(data: str | None) -> None:
    test = None if data is None else load_dataset("cifar10", split="test", root=data)
    for name in list_shipped():
        program = read(shipped_path(name))
        for mode, fixed in MODES.items():
            made = export_c(program, "network", fixed=fixed)
            row: dict[str, Any] = {"model": name, "mode": mode, **needs(made)}
            if test is not None and name == "cifar10-resnet20":
                row |= on_host(made, program, test.images[:ON_HOST], test.labels[:ON_HOST])
                row |= in_emulator(made, program, test.images[:IN_EMULATOR], "cortex-m4")
            record(row)


def digits(path: str) -> None:
    program = read(path)
    test = load_dataset("digits", split="test")
    for mode, fixed in MODES.items():
        made = export_c(program, "network", fixed=fixed)
        row: dict[str, Any] = {"model": "digits (small)", "mode": mode, "arena": made.arena_bytes}
        row |= {"constants": made.constant_bytes, **on_host(made, program, test.images, test.labels)}
        record(row | in_emulator(made, program, test.images, "cortex-m0"))


def table() -> str:
    """The newest row of each model and mode."""
    rows = {}
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["model"], row["mode"]] = row
    lines = [
        "| model | numbers | chip | flash | RAM | stack | same class in the emulator | top-1 % | library |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    smallest: dict[str, int] = {}
    for (model, _), row in rows.items():
        smallest[model] = min(row["flash"], smallest.get(model, row["flash"]))
    order = sorted(rows, key=lambda key: (smallest[key[0]], list(MODES).index(key[1])))
    for model, mode in order:
        row = rows[model, mode]
        emulated = "" if "stack" not in row else f"{row['emulated_same_class']} of {row['emulated_images']}"
        accuracy = [f"{row[key]:.2f}" if key in row else "" for key in ("top1", "top1_library")]
        cells = [model, mode, row.get("chip", "cortex-m4"), f"{row['flash']:,}", f"{row['static']:,}"]
        cells += [str(row.get("stack", "")), emulated, *accuracy]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="DIR", help="CIFAR-10, for classes and accuracy")
    parser.add_argument("--digits", metavar="FILE", help="a packed digits network")
    parser.add_argument("--draw", action="store_true", help="only draw the table")
    given = parser.parse_args()
    if given.digits:
        digits(given.digits)
    elif not given.draw:
        shipped(given.data)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + table() + found[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
