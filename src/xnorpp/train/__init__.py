"""Training: recipes, the loop, checkpoints. Recipes can be read where torch is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xnorpp.train.accuracy import evaluate
    from xnorpp.train.checkpoint import (
        Checkpoint,
        CheckpointError,
        load_checkpoint,
        load_model,
        save_checkpoint,
    )
    from xnorpp.train.config import Recipe, RecipeError
    from xnorpp.train.diagnose import NonFiniteLoss
    from xnorpp.train.initial import initialise
    from xnorpp.train.loop import train
    from xnorpp.train.recipes import list_recipes, load_recipe, paper_rows
    from xnorpp.train.record import record_result

_HOME = {
    "Checkpoint": "checkpoint",
    "CheckpointError": "checkpoint",
    "NonFiniteLoss": "diagnose",
    "Recipe": "config",
    "RecipeError": "config",
    "evaluate": "accuracy",
    "initialise": "initial",
    "list_recipes": "recipes",
    "load_checkpoint": "checkpoint",
    "load_model": "checkpoint",
    "load_recipe": "recipes",
    "paper_rows": "recipes",
    "record_result": "record",
    "save_checkpoint": "checkpoint",
    "train": "loop",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "NonFiniteLoss",
    "Recipe",
    "RecipeError",
    "evaluate",
    "initialise",
    "list_recipes",
    "load_checkpoint",
    "load_model",
    "load_recipe",
    "paper_rows",
    "record_result",
    "save_checkpoint",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module 'xnorpp.train' has no attribute {name!r}")
