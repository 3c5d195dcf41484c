"""The output layer fitted again, by itself, when training is over.

Training on random resized crops shows objects larger, and often in part only. What the network computes of a
whole image then differs a little from what its last layer has learned to classify. A few passes of that layer
alone over the features of whole training images, the rest of the network at rest, make up for it.

paper: Touvron et al. 2019, "Fixing the train-test resolution discrepancy", https://arxiv.org/abs/1906.06423
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from xnorpp.nn.controls import evaluating
from xnorpp.training.accuracy import exact_float32
from xnorpp.training.recipe.config import RecipeError
from xnorpp.training.teacher.loss import training_loss

PASSES = 3
BATCH = 256
RATE = 0.01
MOMENTUM = 0.9


def fit_output_layer(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], seed: int = 0) -> nn.Linear:
    """Minimise the cross-entropy of `batches` (images, labels) over weight and bias of the output layer, and
    return that layer.

    The features are computed once, in evaluation mode and float32, and held in memory. Then SGD with momentum
    takes three passes over them, in an order that follows from `seed`. The network is left in the mode it was
    in.

    Raises:
        RecipeError: The network's scores are not the output of a linear layer.
        ValueError: There is no batch.
    """
    features: list[Tensor] = []
    labels: list[Tensor] = []
    layer: nn.Linear | None = None
    with torch.no_grad(), evaluating(model), exact_float32():
        for images, targets in batches:
            found, taken = _last_layer(model, images)
            if layer not in (None, found):
                raise RecipeError("`schedule.output_batches` needs a network with one output layer.")
            layer = found
            features.append(taken.float())
            labels.append(targets)
    if layer is None:
        raise ValueError("`batches` must hold at least one batch")
    with exact_float32():
        _fit(layer, torch.cat(features), torch.cat(labels), seed)
    return layer


def _last_layer(model: nn.Module, images: Tensor) -> tuple[nn.Linear, Tensor]:
    """The linear layer whose output the scores are, and what it was given."""
    seen: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def look(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        seen.append((layer, inputs[0], output))

    hooks = [one.register_forward_hook(look) for one in model.modules() if type(one) is nn.Linear]
    try:
        scores = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, taken, output in reversed(seen):
        if output is scores and taken.ndim == 2:
            return layer, taken
    raise RecipeError(
        "`schedule.output_batches` fits the output layer again, and the scores of this network are not the "
        "output of a linear layer; set it to 0."
    )


def _fit(layer: nn.Linear, features: Tensor, labels: Tensor, seed: int) -> None:
    parameters = [one.detach().clone().float().requires_grad_() for one in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, nesterov=True)
    order = torch.Generator().manual_seed(seed)
    steps = PASSES * math.ceil(len(features) / BATCH)
    step = 0
    for _ in range(PASSES):
        for chosen in torch.split(torch.randperm(len(features), generator=order), BATCH):
            chosen = chosen.to(features.device)
            optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
            loss = training_loss(functional.linear(features[chosen], *parameters), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
    with torch.no_grad():
        for one, fitted in zip(layer.parameters(), parameters, strict=True):
            one.copy_(fitted)
