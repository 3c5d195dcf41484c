"""One-bit neural networks: train them, pack them, run them as real bit operations.

Importing this package is cheap: nothing heavier than the standard library is loaded until a name is used.
`xnorpp.training` is a package; its function is imported from it: `from xnorpp.training import train`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xnorpp.convert import binarize
    from xnorpp.data import load_dataset
    from xnorpp.models import create_model, list_models
    from xnorpp.nn import BinaryConv2d, BinaryLinear
    from xnorpp.packing import check_packable, pack, pack_submodules
    from xnorpp.shipped import list_shipped, load, shipped_card, shipped_path
    from xnorpp.training import load_model, load_recipe

__version__ = "0.1.1"

_HOME = {
    "BinaryConv2d": "xnorpp.nn",
    "BinaryLinear": "xnorpp.nn",
    "binarize": "xnorpp.convert",
    "check_packable": "xnorpp.packing",
    "create_model": "xnorpp.models",
    "list_models": "xnorpp.models",
    "list_shipped": "xnorpp.shipped",
    "load": "xnorpp.shipped",
    "load_dataset": "xnorpp.data",
    "load_model": "xnorpp.training",
    "load_recipe": "xnorpp.training",
    "pack": "xnorpp.packing",
    "pack_submodules": "xnorpp.packing",
    "shipped_card": "xnorpp.shipped",
    "shipped_path": "xnorpp.shipped",
}

__all__ = [
    "BinaryConv2d",
    "BinaryLinear",
    "__version__",
    "binarize",
    "check_packable",
    "create_model",
    "list_models",
    "list_shipped",
    "load",
    "load_dataset",
    "load_model",
    "load_recipe",
    "pack",
    "pack_submodules",
    "shipped_card",
    "shipped_path",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'xnorpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
