"""Ends a run at the first loss that is not finite, before the update that would spread it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor


class LossGuard:
    """Looks at every step's loss; `end(loss, step)` is called at the first that is not finite, and raises.

    On the CPU the loss is looked at in every step. With `lazy` (on a GPU), that would make the host wait for
    the device, so the flag stays on the device, the fused optimiser skips updates from the bad step on, and
    the host looks now and then, in `check`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        lazy: bool,
        end: Callable[[float, int], NoReturn],
    ) -> None:
        self.lazy, self.end = lazy, end
        if lazy:  # pragma: cuda only
            self.flag = torch.zeros((), device=device)
            self.step = torch.full((), -1, device=device, dtype=torch.int64)
            optimizer.found_inf = self.flag  # type: ignore[attr-defined]

    def see(self, loss: Tensor, step: int | Tensor) -> None:
        if self.lazy:  # pragma: cuda only
            bad = ~torch.isfinite(loss)
            self.step.copy_(torch.where(bad & (self.step < 0), step, self.step))
            self.flag.copy_(torch.maximum(self.flag, bad.float()))
        elif not math.isfinite(float(loss)):
            self.end(float(loss), int(step))

    def check(self) -> None:
        if self.lazy and int(self.step) >= 0:  # pragma: cuda only
            self.end(math.nan, int(self.step))
