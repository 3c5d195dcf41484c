"""Names of 0.1.0 that were renamed work in this minor version, and state what to write instead."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import xnorpp
from xnorpp.renamed import NAMES, REMOVED_IN, find_renamed

ROOT = Path(__file__).resolve().parents[1]
ROWS = [(package, name) for package, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("package", "name"), ROWS, ids=lambda text: text)
def test_an_old_name_gives_the_new_object_and_a_warning(package: str, name: str) -> None:
    place, _, instead = NAMES[package][name].partition(" ")
    module, _, new = place.partition(":")
    with pytest.warns(DeprecationWarning, match=f"`{package}.{name}` was renamed") as caught:
        found = getattr(importlib.import_module(package), name)
    write = instead or f"{module}.{new}"
    assert f"removed in xnorpp {REMOVED_IN}; write `{write}`" in str(caught[0].message)
    assert caught[0].filename == __file__  # the line to change
    expected = getattr(importlib.import_module(module), new.removesuffix("()"))
    assert found == (expected() if new.endswith("()") else expected)


def test_no_row_outlives_its_version() -> None:
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split(".")[:2])

    assert numbers(xnorpp.__version__) < numbers(REMOVED_IN), "delete the rows of xnorpp.renamed"


def test_the_imports_of_0_1_0_work_and_leave_the_new_functions() -> None:
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import xnorpp.train
    from xnorpp.train import load_recipe, train
    from xnorpp.pack import pack
    from xnorpp.predict import Prediction, evaluate_packed
    from xnorpp.nn import binarize
    from xnorpp.runtime import Model
import xnorpp
from xnorpp.packing import pack_program
assert {str(one.filename) for one in caught} == {"<string>"}, caught
assert len({str(one.message) for one in caught}) == 7
assert xnorpp.train is train and xnorpp.train.__name__ == "train"
assert pack is pack_program  # it returned a Program in 0.1.0
assert xnorpp.pack is not pack
assert binarize is xnorpp.binarize and Model is xnorpp.PackedModel
try:
    from xnorpp.train import nothing
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot import name 'nothing' from 'xnorpp.train'" in done.stdout


def test_tables_and_attributes_behave_as_before() -> None:
    layer = xnorpp.BinaryConv2d(4, 8, 3, config=xnorpp.Binarization(inputs="tanh", scale="channel"))
    with pytest.warns(DeprecationWarning, match=r"write `layer\.binarization\.inputs`") as caught:
        assert layer.surrogate == "tanh"
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"write `layer\.binarization\.weights`"):
        assert layer.weight_surrogate == "ste"
    with pytest.warns(DeprecationWarning, match=r"write `layer\.binarization\.scale_init`"):
        assert layer.scale_init == "analytic"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from xnorpp.nn import ANALYTIC_SCALES, SURROGATES, resolve_scale
        from xnorpp.runtime.format.ops import OPS
    assert tuple(SURROGATES) == ("ste", "polynomial", "tanh")
    assert "alpha" in ANALYTIC_SCALES
    assert "binary_conv2d" in OPS
    assert resolve_scale("xnor++", None) == "channel_height_width"
    assert resolve_scale("xnor++", None, linear=True) == "channel"
    assert resolve_scale("xnor", None) == "alpha"
    assert resolve_scale("bnn", None) is None
    with pytest.raises(ValueError, match="must be None for method 'real'"):
        resolve_scale("real", "channel")


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'xnorpp\.nn' has no attribute 'binarise'"):
        find_renamed("xnorpp.nn", "binarise")


@pytest.mark.parametrize("folder", ["src", "benchmarks", "examples", "tests"])
def test_nothing_of_ours_uses_an_old_name(folder: str) -> None:
    used = []
    for path in (ROOT / folder).rglob("*.py"):
        if path.name in ("test_renamed.py", "compare_worker.py"):  # the latter runs earlier versions
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                old = NAMES.get(node.module or "", {})
                used += [f"{path}: {node.module}.{one.name}" for one in node.names if one.name in old]
    assert used == []
