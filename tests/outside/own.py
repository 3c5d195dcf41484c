"""Scales and quantizers as a user writes them, outside of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from xnorpp.models import register_model
from xnorpp.models.blocks import Options
from xnorpp.nn import BinaryConv2d, LearnedScale, Quantizer, register_quantizer, register_scale


@register_scale("own_width")
class ChannelWidthScale(LearnedScale):
    """One factor per channel times one factor per column."""

    spans: ClassVar = {"alpha": "c", "gamma": "w"}


class ScalarScale(LearnedScale):
    """One number, positive whatever the optimiser does; not registered."""

    spans: ClassVar = {"logarithm": ""}

    def factors(self) -> tuple[Tensor, ...]:
        return (self.logarithm.exp(),)

    @torch.no_grad()
    def start_(self, alpha: Tensor | None = None) -> None:
        self.logarithm.fill_(0.0 if alpha is None else float(alpha.mean().log()))


class EveryScale(LearnedScale):
    """One factor of each kind, two of one."""

    spans: ClassVar = {
        "a": "",
        "b": "c",
        "c": "h",
        "d": "w",
        "e": "hw",
        "f": "ch",
        "g": "cw",
        "h": "chw",
        "i": "h",
    }


@register_quantizer("own_triangle")
@dataclass(frozen=True)
class TriangleSign(Quantizer):
    """gradient: d/dx = max(0, height - |x|)."""

    height: float = 1.0

    def slope(self, x: Tensor, progress: float | Tensor) -> Tensor:
        return (self.height - x.abs()).clamp(min=0)


class ShiftedSign(Quantizer):
    """Declares to be a sign and is not."""

    def __call__(self, x: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        return torch.where(x > 0.1, 1.0, -1.0)


class TernaryWeights(Quantizer):
    encoding = "ternary"

    def __call__(self, x: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        return x + (x.sign() * (x.abs() > 0.05) - x).detach()


@register_model("own-tiny", input_size=6, num_classes=3)
def tiny(options: Options, num_classes: int, in_channels: int, width: int = 4) -> nn.Module:
    """A network of someone else."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3),
        nn.BatchNorm2d(width),
        BinaryConv2d(width, width, 3, config=options.binarization),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, num_classes),
    )


def mlp(num_classes: int, hidden: int = 5) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, hidden), nn.Linear(hidden, num_classes))


NOT_A_NETWORK = 3


def no_module() -> int:
    return 3
