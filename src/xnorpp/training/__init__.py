"""Training: recipes, the loop, checkpoints. Recipes can be read where torch is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.lazy import names_from

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


__getattr__ = names_from(__name__, {name: f".{module}" for name, module in _HOME.items()})
