"""The optimiser: which parameters decay, how it is built, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from xnorpp.nn import binary_layers, parameter_groups
from xnorpp.training.recipe.config import OptimizerPart, RecipeError
from xnorpp.training.update.bop import Bop

NO_STATE = "none"


def make_optimizer(model: nn.Module, options: OptimizerPart, device: torch.device) -> torch.optim.Optimizer:
    """Adam, AdamW, SGD or Bop; the fused kernels on a GPU, which can also skip an update without waiting for
    the device.
    """
    decay = options.weight_decay
    groups = parameter_groups(
        model,
        decay,
        scale_weight_decay=decay if options.decay_scales else 0.0,
        norm_weight_decay=decay if options.decay_norms else 0.0,
    )
    if not any(group["params"] for group in groups):
        raise RecipeError("The network has no parameter to train: every one is frozen (requires_grad=False).")
    fused = True if device.type == "cuda" else None
    if options.name == "sgd":
        return torch.optim.SGD(
            groups, lr=options.lr, momentum=options.momentum, nesterov=options.nesterov, fused=fused
        )
    if options.name == "bop":
        flipped = [layer.weight for _, layer in binary_layers(model) if layer.binarization.binarizes_weights]
        if not flipped:
            raise RecipeError(
                "`optimizer.name` (='bop') must be another for a network without binary weights."
            )
        theirs = {id(weight) for weight in flipped}
        rest = [
            {**group, "params": [one for one in group["params"] if id(one) not in theirs]} for group in groups
        ]
        return Bop(
            [group for group in rest if group["params"]],
            flipped,  # type: ignore[arg-type]
            rate=options.flip_rate,
            threshold=options.flip_threshold,
            lr=options.lr,
            betas=(options.betas[0], options.betas[1]),
            fused=fused,
        )
    kind = torch.optim.Adam if options.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=options.lr, betas=(options.betas[0], options.betas[1]), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of the next update; where it is a tensor, that tensor's new value."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `PARAMETER/KEY`. Everything else in it follows from the
    recipe.

    A parameter that has no state, because it never had a gradient, gets an empty tensor named
    `PARAMETER/none`: a state that is missing is not mistaken for one that never was.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if value is not None}
        for key, value in state.items():
            found[f"{name}/{key}"] = torch.as_tensor(value)
        if not state:
            found[f"{name}/{NO_STATE}"] = torch.zeros(0)
    return found


def state_keys(optimizer: torch.optim.Optimizer, parameter: nn.Parameter | None = None) -> set[str]:
    """What the optimiser stores about a parameter that it has updated."""
    if isinstance(optimizer, Bop) and any(parameter is one for one in optimizer.flipped):
        return {"average"}
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer"} if optimizer.param_groups[0]["momentum"] else set()
    return {"step", "exp_avg", "exp_avg_sq"}


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Undo `optimizer_tensors`. Adam keeps its step count on the CPU unless fused; the rest follows the
    parameter.
    """
    parameters = dict(model.named_parameters())
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        if key == NO_STATE:
            continue
        parameter = parameters[name]
        if key != "step" or fused:
            tensor = tensor.to(parameter.device)
        if (
            tensor.ndim == 4
            and parameter.ndim == 4
            and parameter.is_contiguous(memory_format=torch.channels_last)
        ):
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        optimizer.state[parameter][key] = tensor.clone(memory_format=torch.preserve_format)
