"""Batch norm's statistics, measured again when training is over.

While a network trains, a batch norm's running mean and variance follow batch by batch, and what they hold at
the end is the mean over the last few tens of batches, of weights that still moved. In a binary network the
mean decides where the sign falls, and weights that flip until the end keep it unsteady, so the numbers are
worth measuring with the weights at rest, in float32, over many batches.

paper: Nagel et al. 2022, "Overcoming Oscillations in Quantization-Aware Training",
https://arxiv.org/abs/2203.11086 (batch-norm re-estimation)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from xnorpp.nn.controls import evaluating
from xnorpp.training.accuracy import exact_float32

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def measure_statistics(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Replace every running mean and variance by the mean over `batches`; the number of images seen.

    The arithmetic is float32, without TF32. Dropout is off meanwhile, as in evaluation; the network is left
    in the mode it was in. An error if there is no batch, because the old numbers are gone by then.
    """
    norms = [
        module for module in model.modules() if isinstance(module, _NORMS) and module.running_mean is not None
    ]
    momenta = {norm: norm.momentum for norm in norms}
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise ValueError("`batches` must hold at least one batch")
    seen = 0
    try:
        with evaluating(model), exact_float32():
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the plain mean over all batches
                norm.train()
            images: Tensor | None = first
            while images is not None:
                model(images)
                seen += len(images)
                images = next(iterator, None)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    return seen
