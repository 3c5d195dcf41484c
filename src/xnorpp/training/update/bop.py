"""Bop: an optimiser that flips binary weights and has no latent ones; Adam for everything else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Bop(torch.optim.Adam):
    """Flips a binary weight where the moving average of its gradient is large and has the weight's sign.

        m <- (1 - rate) m + rate g;   w <- -w where |m| > threshold and m w > 0

    `rate` follows the learning rate's schedule: it is the given one times lr / (lr at the start). Weights of
    binary layers are set to their signs when the optimiser is made; all other parameters are updated by Adam.

    paper: Helwegen et al. 2019, "Latent Weights Do Not Exist: Rethinking Binarized Neural Network
    Optimization", https://arxiv.org/abs/1906.02107

    Args:
        groups: Parameter groups as Adam takes them, the binary weights not among them.
        flipped: The binary weights.
        rate: Of the moving average, at the start.
        threshold: What the moving average must exceed.
        **options: Adam's.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        flipped: Iterable[nn.Parameter],
        *,
        rate: float,
        threshold: float,
        **options: Any,
    ) -> None:
        self.flipped = list(flipped)
        self.rate, self.threshold, self.start = rate, threshold, float(options["lr"])
        # A group of their own: they are the optimiser's, so that gradients are cleared and states are found.
        super().__init__(
            [*groups, {"name": "flipped", "params": self.flipped, "weight_decay": 0.0}], **options
        )
        with torch.no_grad():
            for weight in self.flipped:
                weight.copy_(torch.where(weight > 0, 1.0, -1.0))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; the gradients of binary weights are used up."""
        if closure is not None:
            raise ValueError("`closure` is not supported by Bop")
        lr = self.param_groups[-1]["lr"]
        rate = self.rate * (lr / self.start if self.start else 0.0)
        bad = getattr(self, "found_inf", None)
        for weight in self.flipped:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if "average" not in state:
                state["average"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            flip = self._average(state["average"], weight.grad, rate, weight)
            if bad is not None:  # pragma: cuda only
                flip = flip & (bad == 0)
            weight.copy_(torch.where(flip, -weight, weight))
            weight.grad = None
        return super().step()

    def _average(self, average: Tensor, gradient: Tensor, rate: float | Tensor, weight: Tensor) -> Tensor:
        """Takes the gradient into its moving average; which weights flip."""
        average.add_((gradient - average) * rate)
        return (average.abs() > self.threshold) & (average * weight > 0)
