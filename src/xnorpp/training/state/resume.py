"""What lets a run continue as if it had never stopped: its random numbers are a function of what they are
for, and its recipe is the one it was started with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from xnorpp.training.recipe.config import Recipe, RecipeError
from xnorpp.training.state.checkpoint import FINAL_NAME

# What may change between a run and its resumption: nothing that enters the arithmetic (a CUDA graph, cuDNN's
# choice of algorithms and stored answers of a teacher change roundings at most).
FREE_TO_CHANGE = {
    "name", "about", "data.workers", "run.save_epochs", "run.save_steps", "run.keep", "run.log_steps",
    "run.eval_epochs", "run.eval_train", "run.tensorboard", "run.threads", "run.cuda_graph",
    "run.cudnn_benchmark", "loss.answers",
}  # fmt: skip


def seed_for(*what: Any) -> None:
    """Seed torch with a number that depends on everything in `what`."""
    digest = hashlib.sha256(repr(what).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def check_same_recipe(new: Recipe, old: Recipe, out: Path) -> None:
    """A `RecipeError` that names the first key in which the run in `out` differs. The network's options are
    left to `check_same_network`, which knows the defaults of the run's time.
    """
    mine, theirs = flat(new.to_dict()), flat(old.to_dict())
    changed = [
        key
        for key in sorted({*mine, *theirs})
        if mine.get(key) != theirs.get(key)
        and key not in FREE_TO_CHANGE
        and not key.startswith(("paper.", "model.options"))
    ]
    if changed:
        key = changed[0]
        if key in ("schedule.epochs", "schedule.max_steps"):
            raise RecipeError(
                f"`{key}` is {mine.get(key)!r} here and {theirs.get(key)!r} in the run in {out}; the "
                "learning rate depends on the length, so a run cannot be made longer. Start another one from "
                f"its weights: --init-from {out / FINAL_NAME} with another --out."
            )
        raise RecipeError(
            f"`{key}` is {mine.get(key)!r} here and {theirs.get(key)!r} in the run in {out}; "
            "a run is resumed with the recipe it was started with."
        )


def check_same_network(new: dict[str, Any], old: dict[str, Any], out: Path) -> None:
    """A `RecipeError` that names the first option in which the network of the run in `out` differs. Both are
    complete (`model.config`), so a default that changed since the run began shows too.
    """
    for key in sorted({*new} & {*old}):
        if new[key] != old[key] and key != "module":
            if "module" in old:  # a user's own network, which has no options
                raise RecipeError(
                    f"The network's `{key}` is {new[key]!r} here and {old[key]!r} in the run in {out}; a run "
                    "is resumed with the network and the data it was started with."
                )
            raise RecipeError(
                f"`model.options.{key}` is {new[key]!r} here and {old[key]!r} in the run in {out}; "
                f"to continue with the network it was started with, add --set model.options.{key}={old[key]}."
            )


def check_same_data(new: int, old: int, out: Path) -> None:
    """A `RecipeError` where the data gives another number of steps per epoch than in the run in `out`."""
    if new != old:
        raise RecipeError(
            f"The data gives {new} steps per epoch here and gave {old} in the run in {out}; a run is resumed "
            "with the data it was started with."
        )


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe's tables as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
