"""Public names that were renamed. The old one works for one minor version, with a warning.

To rename a public name, add its row to `NAMES`: the old package, the old name, and where it is now. Accessing
it then gives the new object and a `DeprecationWarning` that states what to write. An old module that is gone
(`xnorpp.train`) needs nothing else. Where a new object differs from the old one, the row names a small
function or table that behaves as before. Rows are deleted in the version that `REMOVED_IN` names.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

REMOVED_IN = "0.3.0"

_TRAINING = (
    *("Checkpoint", "CheckpointError", "NonFiniteLoss", "Recipe", "RecipeError", "evaluate", "initialise"),
    *("list_recipes", "load_checkpoint", "load_model", "load_recipe", "paper_rows", "record_result"),
    *("save_checkpoint", "train"),
)
_PACKING = ("PackError", "Verification", "pack_to_file", "verify")
_CONVERT = ("Report", "ReportRow", "binarize", "resize_scales")
_PREDICT = ("Guess", "Prediction", "predict", "preprocess_of", "probabilities")

# old package -> old name -> "module:name" now, or "module:function()" where a call gives it; after a blank,
# what to write where that is not `module.name`.
NAMES: dict[str, dict[str, str]] = {
    "xnorpp.train": {name: f"xnorpp.training:{name}" for name in _TRAINING},
    "xnorpp.pack": {
        **{
            name: f"xnorpp.packing:{name}" for name in ("PackError", "Verification", "pack_to_file", "verify")
        },
        "pack": "xnorpp.packing:pack_program",  # it returned a Program; the new `pack` returns a PackedModel
    },
    "xnorpp.predict": {
        **{name: f"xnorpp.runtime.predict:{name}" for name in _PREDICT},
        "Accuracy": "xnorpp.data.evaluate:Accuracy",
        "evaluate_packed": "xnorpp.data.evaluate:evaluate_packed",
    },
    "xnorpp.nn": {
        **{name: f"xnorpp.convert:{name}" for name in _CONVERT},
        "ANALYTIC_SCALES": "xnorpp.nn.old_names:ANALYTIC_SCALES xnorpp.nn.METHOD_SCALES['xnor']",
        "SURROGATES": "xnorpp.nn.old_names:SURROGATES xnorpp.nn.QUANTIZERS",
        "resolve_scale": "xnorpp.nn.old_names:resolve_scale xnorpp.Binarization.preset(method, scale=...)",
    },
    "xnorpp.runtime": {"Model": "xnorpp.runtime:PackedModel xnorpp.PackedModel"},
    "xnorpp.runtime.format.ops": {"OPS": "xnorpp.runtime.format.ops:operations()"},
}


def find_renamed(package: str, name: str) -> Any:
    """The object that `package.name` was, with a warning; for the `__getattr__` of a module.

    Args:
        package: The old package or module.
        name: The old name in it.

    Raises:
        AttributeError: There was no such name.
    """
    place, _, instead = NAMES.get(package, {}).get(name, "").partition(" ")
    if not place:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, new = place.partition(":")
    warn_renamed(f"{package}.{name}", instead or f"{module}.{new}", stacklevel=3)
    found = getattr(import_module(module), new.removesuffix("()"))
    return found() if new.endswith("()") else found


def warn_renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Warn that `old` was renamed to `new`; the warning is about the line that called the caller.

    Args:
        old: The old name, as a person wrote it.
        new: What to write instead.
        stacklevel: How many calls above this function that line is.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_renamed("layer.old", "layer.new")
        >>> print(caught[0].message)
        `layer.old` was renamed and is removed in xnorpp 0.3.0; write `layer.new`
    """
    warnings.warn(
        f"`{old}` was renamed and is removed in xnorpp {REMOVED_IN}; write `{new}`",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


class _OldModule(ModuleType):
    """A module that is gone: its names are those of `NAMES`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return find_renamed(self.__name__, name)

    def __dir__(self) -> list[str]:
        return sorted(NAMES[self.__name__])


def register_old_modules() -> None:
    """Make `from xnorpp.train import ...` work, although `xnorpp.train` is a function now."""
    for name in ("xnorpp.train", "xnorpp.pack", "xnorpp.predict"):
        sys.modules.setdefault(name, _OldModule(name, f"Renamed; removed in xnorpp {REMOVED_IN}."))
