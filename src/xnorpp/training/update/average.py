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
        self.trained, self.model = model, copy.deepcopy(model).requires_grad_(False)
        # Pairs (average, trained), whose memory stays the same through updates and loading.
        pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))
        self._averaged = _two_lists([pair for pair in pairs if pair[0].is_floating_point()])
        self._copied = _two_lists([pair for pair in pairs if not pair[0].is_floating_point()])

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights as they are after step `step` (from 0), without waiting for the device."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self._averaged, 1 - decay)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)

    def network(self) -> nn.Module:
        """The averaged network, in the mode and the stage of training that the trained one is in."""
        for ours, theirs in zip(self.model.modules(), self.trained.modules(), strict=True):
            ours.training = theirs.training
            if hasattr(theirs, "binarize_weights"):
                ours.binarize_weights = theirs.binarize_weights
        return self.model


def _two_lists(pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
