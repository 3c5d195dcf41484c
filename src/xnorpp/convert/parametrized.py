"""Layers whose weight is no parameter: torch computes it anew from others, by hooks or parametrizations."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

# What the hooks of each function leave behind, and how to undo it.
_HOOKS = {
    "weight_g": ("nn.utils.weight_norm", "nn.utils.remove_weight_norm(layer)"),
    "weight_u": ("nn.utils.spectral_norm", "nn.utils.remove_spectral_norm(layer)"),
    "weight_mask": ("nn.utils.prune", "nn.utils.prune.remove(layer, 'weight')"),
    "bias_mask": ("nn.utils.prune", "nn.utils.prune.remove(layer, 'bias')"),
}


def computed_weight(layer: nn.Module) -> str | None:
    """Why the weight or bias of a convolution or linear layer cannot be taken over, and what to do."""
    if parametrize.is_parametrized(layer):
        name = next(iter(layer.parametrizations))  # type: ignore[arg-type]
        rules = ", ".join(type(rule).__name__ for rule in layer.parametrizations[name])  # type: ignore[index]
        remove = f"nn.utils.parametrize.remove_parametrizations(layer, {name!r})"
        return f"its {name} is computed by a parametrization ({rules}); {remove} makes it a parameter"
    if all(name in layer._parameters for name in ("weight", "bias")):
        return None
    for left, (by, remove) in _HOOKS.items():
        if hasattr(layer, left):
            return f"its weight is computed in every run, by {by}; {remove} makes it a parameter"
    return "its weight is computed in every run, which a binary layer does not take over; make it a parameter"
