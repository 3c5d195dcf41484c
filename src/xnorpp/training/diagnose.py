"""A loss that is not finite: which layer it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.runtime.errors import FAILED, XnorppError


class NonFiniteLoss(XnorppError, RuntimeError):
    """The loss is not finite; the message gives the step, the layer and the last good checkpoint.

    Example:
        >>> from xnorpp.training import NonFiniteLoss
        >>> error = NonFiniteLoss(float("nan"), 7, 1, "it appeared first in the layer `conv1`", None)
        >>> error.step, error.epoch
        (7, 1)
    """

    exit_code = FAILED

    def __init__(self, loss: float, step: int, epoch: int, where: str, checkpoint: Path | None) -> None:
        saved = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written yet"
        super().__init__(f"The loss is {loss} at step {step} (epoch {epoch}): {where}; {saved}.")
        self.step, self.epoch, self.where, self.checkpoint = step, epoch, where, checkpoint


def first_bad_layer(model: nn.Module, images: Tensor, run: Any) -> str:
    """Run `run(images)` with a hook on every layer and describe the first whose output is not finite.

    The layer's own parameters and its input show whether it is the cause or received bad values.
    """
    if not torch.isfinite(images).all():
        return "the images of the batch are not finite"
    found: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if found or not isinstance(output, Tensor) or torch.isfinite(output).all():
                return
            weights = [key for key, value in module.named_parameters() if not torch.isfinite(value).all()]
            why = f", whose parameter `{weights[0]}` is not finite" if weights else ""
            found.append(f"it appeared first in the layer `{name}` ({type(module).__name__}{why})")

        return look

    leaves = [
        (name, module) for name, module in model.named_modules() if name and not list(module.children())
    ]
    binary = [(name, module) for name, module in model.named_modules() if hasattr(module, "binary_weight")]
    handles = [module.register_forward_hook(hook(name)) for name, module in dict([*leaves, *binary]).items()]
    try:
        with torch.no_grad():
            run(images)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "every layer's output is finite, so it arose in the loss itself"
