"""The network that a recipe describes: the one place where its strings become a network."""

from __future__ import annotations

from torch import nn

from xnorpp.models import create_model
from xnorpp.training.recipe.config import ModelPart


def network_of(
    part: ModelPart, *, input_size: int | tuple[int, int] | None, num_classes: int | None, in_channels: int
) -> nn.Module:
    """The network of a recipe's `model` section, for data of this shape.

    Args:
        part: The section.
        input_size: The side of an image or (height, width); None: the network's usual one.
        num_classes: None: the network's usual number.
        in_channels: Channels of an image.

    Raises:
        ValueError: A name or an option does not exist.
    """
    return create_model(
        part.name,
        method=part.method,
        scale=None if part.scale == "default" else part.scale,
        input_size=input_size,
        num_classes=num_classes,
        in_channels=in_channels,
        **part.options,
    )
