"""The API reference is complete: every public name is on a page of docs/api, with an example that runs.

That the examples run is `test_docstrings.py`'s part.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[1] / "docs" / "api"
MODULES = (
    "xnorpp.convert",
    "xnorpp.data",
    "xnorpp.export",
    "xnorpp.inspect",
    "xnorpp.models",
    "xnorpp.nn",
    "xnorpp.packing",
    "xnorpp.runtime",
    "xnorpp.serve",
    "xnorpp.shipped",
    "xnorpp.training",
)


def documented() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md")))
    return set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


def public(module: str) -> list[str]:
    """The names of a module's `__all__`."""
    return [name for name in importlib.import_module(module).__all__ if not name.startswith("_")]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_on_a_page(module: str) -> None:
    assert {f"{module}.{name}" for name in public(module)} <= documented()


def test_every_name_on_a_page_exists() -> None:
    for name in documented():
        module, _, attribute = name.rpartition(".")
        assert attribute in public(module), name


def test_every_name_of_the_package_itself_is_on_a_page() -> None:
    have = {name.rpartition(".")[2] for name in documented()}
    assert set(public("xnorpp")) <= have


def test_every_name_of_the_package_itself_has_an_example() -> None:
    package = importlib.import_module("xnorpp")
    objects = {name: getattr(package, name) for name in public("xnorpp")}
    lacking = [name for name, one in objects.items() if ">>> " not in (inspect.getdoc(one) or "")]
    assert lacking == []
