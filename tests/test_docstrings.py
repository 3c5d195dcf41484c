"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

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


@pytest.mark.usefixtures("own_names_only")
@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_examples_are_found() -> None:
    assert {"xnorpp.inspect.layer", "xnorpp.runtime.errors", "xnorpp.shipped"} <= set(modules())
