"""The network of a run: made from a recipe, by a function of the user's, or given as a module.

A checkpoint holds the network's configuration. Of our own networks it is all that `create_model` needs. Of a
user's it is a description only: reading a checkpoint imports and calls nothing that the file names, so the
reader has to give the module, or name the function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.models import create_model
from xnorpp.nn.controls import evaluating
from xnorpp.nn.fused.graph import find_chains
from xnorpp.runtime.registry import call, is_reference, resolve, without_imports
from xnorpp.training.recipe.config import ModelPart, RecipeError, RunPart

OWN = "own"
"""`name` in the configuration of a module that was given as an object."""

Source = nn.Module | Callable[..., nn.Module] | str


def recipe_network(
    part: ModelPart, *, input_size: Any, num_classes: int | None, in_channels: int
) -> nn.Module:
    """The network that a recipe's [model] section describes.

    `model.name` is a registered name or `package.module:function`, which `create_model` calls as
    `register_model` describes: with those of `num_classes`, `in_channels`, `input_size` and `options` that it
    has as parameters, and with `model.options`.
    """
    sides = isinstance(input_size, int) or (input_size is not None and len(input_size) == 2)
    return create_model(
        part.name,
        method=part.method,
        scale=None if part.scale == "default" else part.scale,
        input_size=input_size if sides else None,
        num_classes=num_classes,
        in_channels=in_channels,
        **part.options,
    )


def own_network(source: Source, *, input_size: Any, num_classes: int | None, in_channels: int) -> nn.Module:
    """A user's network: the module itself, or what the function (or `package.module:function`) returns."""
    if isinstance(source, nn.Module):
        return source
    offered = _offered(input_size, num_classes, in_channels)
    if isinstance(source, str):
        return _made(resolve("model", source), f"the network {source!r}", offered, {})
    if not callable(source):
        raise TypeError(
            f"`model` is {type(source).__name__}; give an nn.Module, a function that returns one, or "
            "package.module:function"
        )
    return _made(source, f"`model` ({getattr(source, '__name__', type(source).__name__)})", offered, {})


def _offered(input_size: Any, num_classes: int | None, in_channels: int) -> dict[str, Any]:
    """What a function that makes a network may ask for; a number of classes that is not known is left to its
    own default.
    """
    known = {"in_channels": in_channels, "input_size": input_size}
    return known if num_classes is None else {"num_classes": num_classes, **known}


def _made(
    function: Callable[..., Any], what: str, offered: Mapping[str, Any], options: Mapping[str, Any]
) -> nn.Module:
    made = call(function, what, offered, options)
    if not isinstance(made, nn.Module):
        raise RecipeError(f"{what} returned {type(made).__name__}; it must return an nn.Module.")
    return made


def describe(
    model: nn.Module, name: str, shape: tuple[int, ...], outputs: int, part: ModelPart | None = None
) -> dict[str, Any]:
    """The configuration of a user's network in a checkpoint: what packing and evaluation need of it.

    `part` is the recipe's [model] section where that named the function; its arguments are recorded.
    """
    made = {} if part is None else {"method": part.method, "scale": part.scale, "options": dict(part.options)}
    return {
        "name": name,
        "module": f"{type(model).__module__}.{type(model).__qualname__}",
        "in_channels": shape[0] if shape else 1,
        "input_size": list(shape[1:]),
        "num_classes": outputs,
        **({"arguments": made} if made else {}),
    }


def dry_run(model: nn.Module, images: Tensor) -> int:
    """One batch through a user's network, in evaluation mode: lazy modules get their shapes, and the number
    of its outputs is returned.

    Raises:
        RecipeError: The network does not take the images, or does not give one row of scores for each.
    """
    try:
        with torch.no_grad(), evaluating(model):
            scores = model(images)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RecipeError(
            f"The network fails on a batch of shape {tuple(images.shape)}: {reason.rstrip('.')}."
        ) from error
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != len(images):
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise RecipeError(
            f"The network returns {found} for a batch of {len(images)}; it must return a tensor of shape "
            f"({len(images)}, classes), the scores."
        )
    return int(scores.shape[1])


def why_not_fused(run: RunPart, device: torch.device) -> str | None:
    """None where the fused kernels can serve a run, else the reason."""
    if device.type != "cuda":
        return f"the run is on {device.type!r}, and the kernels need a GPU"
    if run.amp != "bf16":
        return f"`run.amp` is {run.amp!r}, and the fused path trains in 'bf16'"
    return "torch.compile makes kernels of its own" if run.compile else None


def fuse(model: nn.Module, run: RunPart, device: torch.device) -> str | None:
    """Lets a user's network train on the fused path where that exists (`nn.fuse_for_training`), in place.
    Names and parameters stay, so that checkpoints do not depend on it.

    Returns:
        What is fused and what is not, for the run's log; None where the question does not arise.
    """
    if why_not_fused(run, device) is not None:
        return None
    fusion = find_chains(model)
    return str(fusion) + "." if fusion.chains or fusion.left else None


def rebuild(config: Mapping[str, Any], path: Path, source: Source | None) -> nn.Module:
    """The network of a checkpoint, with fresh weights.

    Args:
        config: What the checkpoint holds as `model`.
        path: The checkpoint, for the error message.
        source: The user's module or what makes it; None for networks of this package.

    Raises:
        ValueError: The network is a user's and `source` is None.
    """
    name = config["name"]
    if source is not None:
        size = tuple(config["input_size"])
        expected: dict[str, Any] = {
            "input_size": size[0] if len(size) == 2 and size[0] == size[1] else size,
            "num_classes": config["num_classes"],
            "in_channels": config["in_channels"],
        }
        if source == name and "arguments" in config:  # the function that the recipe named, called as then
            return recipe_network(ModelPart(name=name, **config["arguments"]), **expected)
        return own_network(source, **expected)
    if name == OWN:
        raise ValueError(
            f"{path} holds the weights of {config['module']}, a module that was given to `train`; give it "
            "again: load_model(path, model=...), or --network package.module:function of eval and pack"
        )
    if is_reference(name):
        raise ValueError(
            f"{path} holds a network made by {name}, which a checkpoint may not call by itself; name it: "
            f"load_model(path, model={name!r}), or --network {name} of eval and pack"
        )
    with without_imports():  # scales and quantizers that a file names are not imported either
        return create_model(**config)
