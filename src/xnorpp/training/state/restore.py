"""Whether a checkpoint can be resumed from. Its checksum shows damage, not who wrote the file."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from xnorpp.training.optimizer import NO_STATE, state_keys
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.state.checkpoint import Checkpoint, CheckpointError


def stored_recipe(found: Checkpoint) -> Recipe:
    """The recipe that the run of a checkpoint was started with.

    Raises:
        CheckpointError: The checkpoint has none, or one that is not valid.
    """
    table = found.meta.get("recipe")
    if not isinstance(table, dict):
        raise CheckpointError(
            f"The checkpoint {found.path} holds no recipe, so the run cannot be resumed; "
            "--init-from starts a new run from its weights."
        )
    try:
        return Recipe.from_dict(table)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"The recipe in the checkpoint {found.path} is not valid: {error}") from None


def check_resumable(
    found: Checkpoint, total: int, model: nn.Module, optimizer: torch.optim.Optimizer, *, scaled: bool = False
) -> None:
    """Check that a checkpoint has all that a run needs to continue.

    Args:
        found: The checkpoint.
        total: The number of steps of the run.
        model: The network, whose parameters the optimiser's state must fit.
        optimizer: The optimiser of the run.
        scaled: Whether the loss is scaled (`run.amp` is "fp16").

    Raises:
        CheckpointError: Something is missing or does not fit; the message names it.
    """
    meta = found.meta
    step = meta.get("step")
    if type(step) is not int or not 0 < step <= total:
        raise _unfit(found, f"its step is {step!r:.40}, and the run has {total} steps")
    for key in ("metrics", "best"):
        if not isinstance(meta.get(key), dict) or not all(map(_is_number, meta[key].values())):
            raise _unfit(found, f"its `{key}` is not a table of numbers")
    if step == total and not {"top1", "top5", "loss"} <= set(meta["metrics"]):
        raise _unfit(found, "it is the last one of the run, and was not evaluated")
    if meta["best"] and "top1" not in meta["best"]:
        raise _unfit(found, "its `best` has no `top1`")
    if not _is_number(meta.get("seconds")) or not 0 <= meta["seconds"] < math.inf:
        raise _unfit(found, "its `seconds` is not a time")
    if scaled and not isinstance(meta.get("scaler"), dict):
        raise _unfit(found, "it has no state of the loss scaler")
    _check_optimizer(found, model, optimizer)


def _check_optimizer(found: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    parameters = dict(model.named_parameters())
    stored: dict[str, set[str]] = {}
    for full, tensor in found.optimizer.items():
        name, _, key = full.rpartition("/")
        if name not in parameters:
            raise _unfit(found, f"it has an optimiser state of `{name:.80}`, which the network does not have")
        stored.setdefault(name, set()).add(key)
        shape = {NO_STATE: (0,), "step": ()}.get(key, tuple(parameters[name].shape))
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise _unfit(found, f"the optimiser state `{full:.80}` has the wrong shape or type")
    for name, parameter in parameters.items():
        wanted = state_keys(optimizer, parameter)
        if parameter.requires_grad and wanted and stored.get(name, set()) not in (wanted, {NO_STATE}):
            raise _unfit(found, f"it has no complete optimiser state of `{name}`")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unfit(found: Checkpoint, why: str) -> CheckpointError:
    return CheckpointError(f"The run cannot be resumed from {found.path}: {why}.")
