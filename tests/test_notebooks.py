"""The notebooks run, and what is stored in them is what they print."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"notebooks_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def kinds(notebook: dict[str, Any]) -> list[list[str]]:
    """What each code cell puts out, such as a stream and an image."""
    return [
        [key for one in cell["outputs"] for key in one.get("data", {one["output_type"]: None})]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["bring_your_own", "deploy", "train"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_puts_out_what_is_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = read(path)
    done = tool("execute").execute(notebook, tmp_path)
    assert kinds(done) == kinds(notebook), "run docs/notebooks/execute.py"
    assert any(kinds(done))


def test_a_cell_that_fails_is_an_error(tmp_path: Path) -> None:
    execute = tool("execute").execute
    for source in ("1 / 0", "!exit 3"):
        with pytest.raises((ZeroDivisionError, RuntimeError), match=r"division|ended with status 3"):
            execute({"cells": [{"cell_type": "code", "source": [source]}]}, tmp_path)


def test_a_cell_puts_out_its_prints_and_its_last_value(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": ["x = 2\n", "print(x)\n", "!echo shell\n", "x + 1"]}]
    done = tool("execute").execute({"cells": cells}, tmp_path)
    stream, value = done["cells"][0]["outputs"]
    assert stream["text"] == ["2\n", "shell\n"]
    assert value["data"]["text/plain"] == ["3"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_of_a_machine_is_stored(path: Path) -> None:
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert not re.search(r"/(?:home|root|tmp|work|Users|usr)/", text)
    assert "Warning" not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page(path: Path) -> None:
    text = tool("pages").page(read(path), path.name)
    assert text.startswith("# Notebook: ")
    assert f'<a href="../{path.name}" download>' in text
    assert ".ipynb)" not in tool("pages").on_page_markdown(text)
    assert '<pre class="output">' in text
