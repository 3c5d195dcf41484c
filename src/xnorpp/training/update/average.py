"""An exponential moving average of the weights, which is evaluated, stored and packed in their place.

Weights that still move at the end of a run are noise around a better network. A binary network's average is
taken over the latent weights, and its signs are those of the average.

paper: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging"; the warm-up is that
of TensorFlow's `ExponentialMovingAverage`
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class AveragedWeights:
    """average <- d * average + (1 - d) * weights after each step, d = min(decay, (1 + step) / (10 + step)).

    Batch norm's running statistics are averaged with the weights; whole numbers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights as they are after step `step` (from 0), without waiting for the device."""
        decay = min(self.decay, (1 + step) / (10 + step))
        own, new = self.model.state_dict(), model.state_dict()
        averaged: list[Tensor] = []
        weights: list[Tensor] = []
        for name, tensor in own.items():
            if tensor.is_floating_point():
                averaged.append(tensor)
                weights.append(new[name])
            else:
                tensor.copy_(new[name])
        torch._foreach_lerp_(averaged, weights, 1 - decay)

    def network(self, model: nn.Module) -> nn.Module:
        """The averaged network, in the stage of training that `model` is in."""
        for ours, theirs in zip(self.model.modules(), model.modules(), strict=True):
            ours.training = theirs.training
            if hasattr(theirs, "binarize_weights"):
                ours.binarize_weights = theirs.binarize_weights
        return self.model
