"""Top-1 and top-5 accuracy and mean cross-entropy over a loader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from xnorpp.training.distributed import World, sum_over_world

AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def autocast(amp: str, device: torch.device, *, cache: bool = True) -> Iterator[None]:
    """Autocast to `amp` (off, bf16 or fp16). Without `cache` a weight is cast anew at each use, as a step
    that is recorded needs it.
    """
    if amp == "off":
        yield
        return
    with torch.autocast(device.type, dtype=AMP_TYPES[amp], cache_enabled=cache):
        yield


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Float32 without TF32, in convolutions and in matrix products: a number near zero that is rounded to ten
    bits may get another sign.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def evaluate(
    model: nn.Module, loader: Any, *, amp: str = "off", world: World | None = None
) -> dict[str, float]:
    """Accuracy in per cent and mean loss over `loader`'s epoch, summed over all processes of `world`.

    The network is put in evaluation mode and back in the mode it was in. With `amp` off, which is how a run
    is evaluated, all arithmetic is float32, without TF32; the fused training path needs gradients and is not
    used here.
    """
    was_training = model.training
    model.eval()
    totals: torch.Tensor | None = None
    try:
        with torch.no_grad(), exact_float32():
            for images, labels in loader.epoch(0):
                with autocast(amp, images.device):
                    logits = model(images)
                logits = logits.float()
                if totals is None:
                    totals = torch.zeros(4, dtype=torch.float64, device=logits.device)
                totals += _count(logits, labels)
    finally:
        model.train(was_training)
    device = world.device if world else torch.device("cpu")
    if totals is None:
        totals = torch.zeros(4, dtype=torch.float64, device=device)
    if world:
        totals = sum_over_world(totals, world)
    right, right5, loss, count = totals.tolist()
    if not count:
        raise ValueError("`loader` gave no pictures to evaluate on.")
    return {"top1": 100 * right / count, "top5": 100 * right5 / count, "loss": loss / count, "images": count}


def _count(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Right at the first guess, right within five, summed loss, number of pictures."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    count = torch.tensor(len(labels), device=logits.device)
    return torch.stack([hits[:, 0].sum().double(), hits.sum().double(), loss.double(), count.double()])
