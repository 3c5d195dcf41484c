"""What a training loop sets on a model's binary layers, and how it groups their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from xnorpp.nn.layers import BinaryLayer
from xnorpp.nn.scales import LearnedScale
from xnorpp.nn.sets import InputSet
from xnorpp.nn.shift import ChannelShift


def binary_layers(model: nn.Module) -> Iterator[tuple[str, BinaryLayer]]:
    """The model's binary layers with their paths; those of method 'real' are not among them.

    Example:
        >>> from torch import nn
        >>> from xnorpp.nn import BinaryConv2d, binary_layers
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), BinaryConv2d(16, 32, 3))
        >>> [path for path, _ in binary_layers(net)]
        ['1']
    """
    for path, module in model.named_modules():
        if isinstance(module, BinaryLayer) and not module.binarization.is_real:
            yield path, module


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards the mode that each module had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def set_stage(model: nn.Module, *, weights_binary: bool) -> None:
    """Two-stage training: False for the first stage (binary activations, real weights), True for the second.

    In the first stage W / mean|W| stands for sign(W). A compiled model recompiles once.

    Example:
        >>> from xnorpp.nn import BinaryConv2d, set_stage
        >>> layer = BinaryConv2d(16, 32, 3)
        >>> set_stage(layer, weights_binary=False)
        >>> layer.weights_are_binary
        False
    """
    for _, layer in binary_layers(model):
        layer.binarize_weights = weights_binary


def set_progress(model: nn.Module, fraction: float) -> None:
    """Sets the finished fraction of training, 0 to 1, for quantizers that anneal (`tanh`).

    Example:
        >>> from xnorpp.nn import BinaryConv2d, set_progress
        >>> layer = BinaryConv2d(16, 32, 3, config={"inputs": "tanh"})
        >>> set_progress(layer, 0.5)
        >>> layer.progress
        tensor(0.5000)
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"`fraction` (={fraction}) must lie between 0 and 1")
    found = [layer.progress for _, layer in binary_layers(model)]
    if found:  # two launches on a GPU instead of one per layer, because this happens at every step
        torch._foreach_zero_(found)
        torch._foreach_add_(found, fraction)


def anneals(model: nn.Module) -> bool:
    """Whether a quantizer of the model changes with the progress of training, so that `set_progress`
    matters.

    Example:
        >>> from xnorpp.nn import BinaryConv2d, anneals
        >>> anneals(BinaryConv2d(16, 32, 3)), anneals(BinaryConv2d(16, 32, 3, config={"inputs": "tanh"}))
        (False, True)
    """
    return any(layer.binarization.anneals for _, layer in binary_layers(model))


@torch.no_grad()
def clip_latent_weights_(model: nn.Module) -> None:
    """Clips the latent weights of layers with `clip_weights` to [-1, 1]; call it after each optimiser step.

    Beyond 1 the straight-through gradient is zero, so a weight that gets there could never come back.

    Example:
        >>> from torch import nn
        >>> from xnorpp.nn import BinaryLinear, clip_latent_weights_
        >>> layer = BinaryLinear(64, 10, config={"clip_weights": True})
        >>> _ = nn.init.constant_(layer.weight, 3.0)
        >>> clip_latent_weights_(layer)
        >>> layer.weight.max().item()
        1.0
    """
    for _, layer in binary_layers(model):
        if layer.clip_weights:
            layer.weight.clamp_(-1.0, 1.0)


def reset_scales(model: nn.Module) -> None:
    """Starts every learned scale again from its `scale_init` and the present weights.

    Example:
        >>> from torch import nn
        >>> from xnorpp.nn import BinaryLinear, reset_scales
        >>> layer = BinaryLinear(64, 10)
        >>> _ = nn.init.constant_(layer.weight, 0.5)
        >>> reset_scales(layer)
        >>> round(layer.scale.tensor().max().item(), 4)
        0.4
    """
    for _, layer in binary_layers(model):
        layer.reset_scale()


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    scale_weight_decay: float = 0.0,
    norm_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, named "weights", "norms" and "scales", empty ones left out.

    - "weights": convolution and linear weights, `weight_decay`;
    - "norms": everything else (batch norm, biases, activation slopes and shifts), `norm_weight_decay`, by
      default `weight_decay` too: torch's own convention, and what the paper's single figure means;
    - "scales": learned scale factors and sets of inputs, `scale_weight_decay`, by default none: decay pulls a
      scale towards zero, where a weight's sign would not change.

    Example:
        >>> import torch
        >>> from xnorpp.nn import BinaryConv2d, parameter_groups
        >>> groups = parameter_groups(BinaryConv2d(16, 32, 3), weight_decay=1e-4)
        >>> [(group["name"], group["weight_decay"]) for group in groups]
        [('weights', 0.0001), ('norms', 0.0001), ('scales', 0.0)]
        >>> optimizer = torch.optim.SGD(groups, lr=0.1)
    """
    sized = (LearnedScale, InputSet)
    scales = {id(p) for m in model.modules() if isinstance(m, sized) for p in m.parameters()}
    shifts = {id(m.shift) for m in model.modules() if isinstance(m, ChannelShift)}  # (c, 1, 1), no weight
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "norms": [], "scales": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            weight = parameter.dim() > 1 and id(parameter) not in shifts
            kind = "scales" if id(parameter) in scales else "weights" if weight else "norms"
            groups[kind].append(parameter)
    decay = {
        "weights": weight_decay,
        "norms": weight_decay if norm_weight_decay is None else norm_weight_decay,
        "scales": scale_weight_decay,
    }
    return [{"name": k, "params": ps, "weight_decay": decay[k]} for k, ps in groups.items() if ps]
