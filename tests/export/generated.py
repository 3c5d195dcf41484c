"""Compiles generated C on this machine and runs it: bytes of inputs on stdin, bytes of outputs on stdout."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export import Generated
from xnorpp.runtime.format.program import Program

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DTYPES = {"uint8_t": np.uint8, "float": np.float32, "int16_t": np.int16, "int32_t": np.int32}

MAIN = """
#include <stdio.h>
#include "{name}.h"
int main(void)
{{
    static {input} image[{size}];
    {declarations}
    while (fread(image, sizeof image, 1, stdin) == 1) {{
        {name}_run(image, {names});
        {writes}
    }}
    return 0;
}}
"""


def c_types(made: Generated) -> list[tuple[str, str]]:
    """Type and name of each argument of the run function: the input, then the outputs."""
    text = made.header.split(f"void {made.name}_run(")[1].split(");")[0]
    pairs = [argument.replace("const ", "").split(" *") for argument in text.split(", ")]
    return [(ctype, name) for ctype, name in pairs]


def build(made: Generated, program: Program, folder: Path, flags: tuple[str, ...] = ("-O1",)) -> Path:
    """The program of a generated network, compiled strictly."""
    made.write(folder)
    (ctype, _), *outputs = c_types(made)
    sizes = [program.values[value].elements for value in program.outputs.values()]
    text = MAIN.format(
        name=made.name,
        input=ctype,
        size=program.values["input"].elements,
        declarations="\n    ".join(f"static {t} {n}[{s}];" for (t, n), s in zip(outputs, sizes, strict=True)),
        names=", ".join(name for _, name in outputs),
        writes="\n        ".join(f"fwrite({n}, sizeof {n}, 1, stdout);" for _, n in outputs),
    )
    main = folder / "main.c"
    main.write_text(text)
    target = folder / "network"
    source = folder / f"{made.name}.c"
    command = ["gcc", *STRICT, *flags, "-o", str(target), str(source), str(main)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def answers(target: Path, made: Generated, program: Program, x: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The outputs for a batch, each `(n, ...)`."""
    (ctype, _), *outputs = c_types(made)
    given = np.ascontiguousarray(x.astype(DTYPES[ctype]))
    done = subprocess.run([str(target)], input=given.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    rows = np.frombuffer(done.stdout, np.uint8).reshape(len(x), -1)
    found, at = [], 0
    for (output, _), value in zip(outputs, program.outputs.values(), strict=True):
        shape = program.values[value].shape
        size = np.dtype(DTYPES[output]).itemsize * int(np.prod(shape))
        found.append(rows[:, at : at + size].copy().view(DTYPES[output]).reshape(len(x), *shape))
        at += size
    return found
