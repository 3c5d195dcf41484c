"""Names of a package that are imported when they are first asked for, so that importing it is cheap."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from xnorpp.renamed import find_renamed


def names_from(
    package: str, homes: Mapping[str, str], packages: Collection[str] = ()
) -> Callable[[str], Any]:
    """The module-level `__getattr__` of `package`; names that were renamed are found with a warning.

    Args:
        package: Its `__name__`.
        homes: The module that has each name; ".loop" is a module of the package itself.
        packages: Packages inside of it that are names too.

    Example:
        >>> __getattr__ = names_from("xnorpp", {"pack": "xnorpp.packing"})
        >>> __getattr__("nothing")
        Traceback (most recent call last):
        AttributeError: module 'xnorpp' has no attribute 'nothing'
    """

    def find(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in homes:
            return find_renamed(package, name)
        return getattr(import_module(homes[name], package), name)

    return find
