"""Training: recipes, the loop, checkpoints. Recipes can be read where torch is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xnorpp.training.accuracy import evaluate
    from xnorpp.training.diagnose import NonFiniteLoss
    from xnorpp.training.recipe.config import Recipe, RecipeError
    from xnorpp.training.recipe.library import list_recipes, load_recipe, paper_rows
    from xnorpp.training.records.record import record_result
    from xnorpp.training.start import train
    from xnorpp.training.state.checkpoint import (
        Checkpoint,
        CheckpointError,
        load_checkpoint,
        load_model,
        save_checkpoint,
    )
    from xnorpp.training.state.initial import initialise

_HOME = {
    "Checkpoint": "state.checkpoint",
    "CheckpointError": "state.checkpoint",
    "NonFiniteLoss": "diagnose",
    "Recipe": "recipe.config",
    "RecipeError": "recipe.config",
    "evaluate": "accuracy",
    "initialise": "state.initial",
    "list_recipes": "recipe.library",
    "load_checkpoint": "state.checkpoint",
    "load_model": "state.checkpoint",
    "load_recipe": "recipe.library",
    "paper_rows": "recipe.library",
    "record_result": "records.record",
    "save_checkpoint": "state.checkpoint",
    "train": "start",
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
    raise AttributeError(f"module 'xnorpp.training' has no attribute {name!r}")
