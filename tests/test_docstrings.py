"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import xnorpp


def modules() -> list[str]:
    """The modules whose source has an example."""
    names = []
    for module in pkgutil.walk_packages(xnorpp.__path__, "xnorpp."):
        spec = module.module_finder.find_spec(module.name, None)  # type: ignore[call-arg]
        source = spec.loader.get_source(module.name) if spec and hasattr(spec.loader, "get_source") else None
        if source and ">>> " in source:
            names.append(module.name)
    return names


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_examples_are_found() -> None:
    assert {"xnorpp.inspect.layer", "xnorpp.runtime.errors", "xnorpp.shipped"} <= set(modules())
