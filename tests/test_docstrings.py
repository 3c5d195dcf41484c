"""The examples in docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import xnorpp

PACKAGES = (
    "convert", "data", "export", "inspect", "models", "nn", "packing", "runtime", "serve", "shipped",
    "training",
)  # fmt: skip
# What an example needs beyond the packages of the tests; tests/export/check_engines.py runs these.
NEEDS = {
    "xnorpp.export.onnx.model": "onnx",
    "xnorpp.export.qonnx": "onnx",
    "xnorpp.export.openvino": "openvino",
}


def modules() -> list[str]:
    """The modules whose source has an example."""
    names = []
    for module in pkgutil.walk_packages(xnorpp.__path__, "xnorpp."):
        spec = module.module_finder.find_spec(module.name, None)  # type: ignore[call-arg]
        source = spec.loader.get_source(module.name) if spec and hasattr(spec.loader, "get_source") else None
        if source and ">>> " in source:
            names.append(module.name)
    return names


@pytest.fixture
def own_names_only() -> Iterator[None]:
    """Registries as a user finds them: other tests register things of their own under the same names."""
    from xnorpp.models.registry import NETWORKS
    from xnorpp.nn import QUANTIZERS, SCALES

    registries: list[Any] = [NETWORKS, QUANTIZERS, SCALES]
    before = {id(one): dict(one._entries) for one in registries}
    for one in registries:
        for key, entry in before[id(one)].items():
            if not one._origin(entry).startswith("xnorpp."):
                del one._entries[key]
    yield
    for one in registries:
        one._entries.clear()
        one._entries.update(before[id(one)])


def constants(module: ModuleType) -> dict[str, str]:
    """The texts below a module's constants, which the API reference shows and `doctest` does not look at."""
    nodes = ast.parse(inspect.getsource(module)).body
    texts = {}
    for node, below in itertools.pairwise(nodes):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            texts.update(dict.fromkeys(names, str(below.value.value)))
    return texts


@pytest.mark.usefixtures("own_names_only")
@pytest.mark.parametrize("name", modules())
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write a file
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
    runner = doctest.DocTestRunner()
    for constant, text in constants(module).items():
        example = doctest.DocTestParser().get_doctest(text, dict(vars(module)), constant, name, 0)
        assert runner.run(example).failed == 0, constant


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    """In its docstring or, of a constant, in the text below it, wherever that is defined."""
    public = importlib.import_module(f"xnorpp.{package}")
    texts: dict[str, str] = {}
    for module in [name for name in modules() if name.startswith(f"xnorpp.{package}.")]:
        texts.update(constants(importlib.import_module(module)))
    lacking = []
    for name in public.__all__:
        thing = getattr(public, name)
        own = inspect.isclass(thing) or inspect.isroutine(thing)
        text = (thing.__doc__ if own else texts.get(name)) or ""
        examples = doctest.DocTestParser().get_examples(text)
        if all(doctest.SKIP in example.options for example in examples):
            lacking.append(name)
    assert public.__all__
    assert lacking == []


def test_examples_are_found() -> None:
    assert {"xnorpp.inspect.layer", "xnorpp.runtime.errors", "xnorpp.shipped"} <= set(modules())
