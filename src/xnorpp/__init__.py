"""One-bit neural networks: train them, pack them, run them as real bit operations.

Importing this package is cheap: nothing heavier than the standard library is loaded until a name is used.
`xnorpp.training` is a package; its function is imported from it: `from xnorpp.training import train`.
`from xnorpp.packing import pack` imports the function that packs a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.lazy import names_from
from xnorpp.renamed import register_old_modules

if TYPE_CHECKING:
    from xnorpp.convert import binarize, unbinarize
    from xnorpp.data import load_dataset, register_dataset
    from xnorpp.models import create_model, list_models, register_model
    from xnorpp.nn import (
        Binarization,
        BinaryConv1d,
        BinaryConv2d,
        BinaryConvTranspose2d,
        BinaryLinear,
        register_quantizer,
        register_scale,
    )
    from xnorpp.packing import check_packable, pack, pack_submodules
    from xnorpp.runtime import PackedModel, Preprocess
    from xnorpp.shipped import list_shipped, load, shipped_card, shipped_path
    from xnorpp.training import evaluate, load_model, load_recipe, train

__version__ = "0.2.0.dev0"

_HOME = {
    "Binarization": "xnorpp.nn",
    "BinaryConv1d": "xnorpp.nn",
    "BinaryConv2d": "xnorpp.nn",
    "BinaryConvTranspose2d": "xnorpp.nn",
    "BinaryLinear": "xnorpp.nn",
    "PackedModel": "xnorpp.runtime",
    "Preprocess": "xnorpp.runtime",
    "binarize": "xnorpp.convert",
    "check_packable": "xnorpp.packing",
    "create_model": "xnorpp.models",
    "evaluate": "xnorpp.training",
    "list_models": "xnorpp.models",
    "list_shipped": "xnorpp.shipped",
    "load": "xnorpp.shipped",
    "load_dataset": "xnorpp.data",
    "load_model": "xnorpp.training",
    "load_recipe": "xnorpp.training",
    "pack": "xnorpp.packing",
    "pack_submodules": "xnorpp.packing",
    "register_dataset": "xnorpp.data",
    "register_model": "xnorpp.models",
    "register_quantizer": "xnorpp.nn",
    "register_scale": "xnorpp.nn",
    "shipped_card": "xnorpp.shipped",
    "shipped_path": "xnorpp.shipped",
    "unbinarize": "xnorpp.convert",
    "train": "xnorpp.training",
}

# So that `import xnorpp` is enough for `xnorpp.packing.verify`.
_PACKAGES = frozenset(
    [
        "bench",
        "convert",
        "data",
        "export",
        "inspect",
        "models",
        "nn",
        "packing",
        "runtime",
        "serve",
        "shipped",
        "training",
    ]
)

__all__ = [
    "Binarization",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryConvTranspose2d",
    "BinaryLinear",
    "PackedModel",
    "Preprocess",
    "__version__",
    "binarize",
    "check_packable",
    "create_model",
    "evaluate",
    "list_models",
    "list_shipped",
    "load",
    "load_dataset",
    "load_model",
    "load_recipe",
    "pack",
    "pack_submodules",
    "register_dataset",
    "register_model",
    "register_quantizer",
    "register_scale",
    "shipped_card",
    "shipped_path",
    "train",
    "unbinarize",
]


__getattr__ = names_from(__name__, _HOME, _PACKAGES)
register_old_modules()


def __dir__() -> list[str]:
    return sorted(__all__)
