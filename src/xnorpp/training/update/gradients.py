"""Gradients of binary layers, changed between the backward pass and the update."""

from __future__ import annotations

import torch
from torch import nn

from xnorpp.nn import binary_layers


@torch.no_grad()
def raise_gradients_(model: nn.Module, share: float) -> None:
    """OvSW's adaptive gradient scaling: a filter whose gradient is small against its weight flips no sign.

    Of each filter of a binary layer with norm(g) < `share` * norm(w), the gradient is scaled up to that norm.
    With Adam, which divides gradients by their size, it changes little; it is meant for SGD.

    paper: Xiang et al. 2024, "OvSW: Overcoming Silent Weights for Accurate Binary Neural Networks",
    https://arxiv.org/abs/2407.05257
    """
    for _, layer in binary_layers(model):
        gradient = layer.weight.grad
        if gradient is None or not layer.weights_are_binary:
            continue
        norms = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
        wanted = share * torch.linalg.vector_norm(layer.weight.flatten(1), dim=1)
        tiny = torch.finfo(norms.dtype).tiny
        factors = torch.where((norms < wanted) & (norms > tiny), wanted / norms.clamp_min(tiny), 1.0)
        gradient.mul_(factors.reshape(-1, *(1,) * (gradient.dim() - 1)))
