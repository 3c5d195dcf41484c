"""Runs the code cells of the notebooks and stores what they print and draw.

    python docs/notebooks/execute.py             # all of them
    python docs/notebooks/execute.py train.ipynb

A cell behaves as in Jupyter as far as these notebooks need it: its prints and the value of its last line are
its output, open matplotlib figures are shown as PNG, and a line that starts with `!` runs in a shell. So the
tests execute the notebooks without Jupyter. Runs in an empty folder; nothing of the machine gets into the
stored outputs but the numbers that were measured on it.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHELL = "__shell__"


def notebooks() -> list[Path]:
    """The notebooks of this folder."""
    return sorted(HERE.glob("*.ipynb"))


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Runs the code cells in order, in `folder`, and gives the notebook with their outputs.

    Args:
        notebook: The content of an .ipynb file.
        folder: The working directory of the cells.

    Returns:
        A copy of the notebook with new outputs and counts.
    """
    names: dict[str, Any] = {"__name__": "__main__", SHELL: _shell}
    cells, count = [], 0
    with contextlib.chdir(folder) if hasattr(contextlib, "chdir") else _chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell = {
                    **cell,
                    "execution_count": count,
                    "outputs": _run("".join(cell["source"]), names, count),
                }
            cells.append(cell)
    return {**notebook, "cells": cells}


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    """`contextlib.chdir`, which Python 3.10 does not have."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    source = re.sub(r"^!(.*)$", lambda line: f"{SHELL}({line[1]!r})", source, flags=re.MULTILINE)
    body = ast.parse(source).body
    last = (
        body.pop() if body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    )
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"<cell {count}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    outputs += _figures()
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        outputs.append(
            {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": count}
        )
    return outputs


def _figures() -> Iterator[dict[str, Any]]:
    """The open figures, which are closed."""
    plots = sys.modules.get("matplotlib.pyplot")
    for number in plots.get_fignums() if plots else ():
        png = io.BytesIO()
        plots.figure(number).savefig(
            png, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None}
        )
        plots.close(number)
        data = {"image/png": base64.b64encode(png.getvalue()).decode()}
        yield {"output_type": "display_data", "data": data, "metadata": {}}


def _shell(command: str) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        command,
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(f"`{command}` ended with status {done.returncode}: {done.stdout}")


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the notebooks and store their outputs.")
    parser.add_argument("notebook", nargs="*", type=Path, help="notebooks of this folder (default: all)")
    for path in parser.parse_args().notebook or notebooks():
        place = HERE / path.name
        with tempfile.TemporaryDirectory() as folder:
            done = execute(json.loads(place.read_text(encoding="utf-8")), Path(folder))
        place.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{place.name}: {sum(cell['cell_type'] == 'code' for cell in done['cells'])} cells")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
