"""Every script in examples/ runs, as a user would run it, in an empty folder.

One that needs a package beyond our own extras is skipped where that is not installed, and the summary of the
test run names it. `make test-deploy` installs those packages and runs what needs them, and nothing else.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import warm
from PIL import Image

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXTRAS = {"lightning": "lightning", "ray": "ray[data]"}


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _needs(path: Path) -> list[str]:
    """The packages beyond our extras."""
    return sorted(_imports(path) & set(EXTRAS)) if path.suffix == ".py" else []


SCRIPTS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".sh"))
if os.environ.get("XNORPP_DEPLOY"):
    SCRIPTS = [path for path in SCRIPTS if _needs(path)]


def _arguments(path: Path) -> list[str]:
    """A script whose first lines ask for FOLDER gets one with images."""
    return ["images"] if "FOLDER" in path.read_text(encoding="utf-8").partition('"""\n\n')[0] else []


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for seed in range(4):
        pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{seed}.png")
    return tmp_path


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_runs(path: Path, place: Path) -> None:
    for name in _needs(path):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{path.name} needs `pip install {EXTRAS[name]}`; `make test-deploy` installs it")
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        "HOME": str(place),
    }
    arguments = [str(path), *_arguments(path)]
    if path.suffix == ".py":
        done = warm.run([sys.executable, *arguments], cwd=place, env=environment)
    else:
        done = subprocess.run(
            ["bash", *arguments], cwd=place, capture_output=True, text=True, timeout=300, env=environment,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    visible = {found.name for found in place.iterdir() if not found.name.startswith(".")}
    assert visible <= {"images", "runs"}, "an example leaves files only where git ignores them"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
