"""The table of networks, and the two functions that read it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch import nn

from xnorpp.models.alexnet import alexnet
from xnorpp.models.blocks import Options
from xnorpp.models.resnet import resnet
from xnorpp.models.small import small
from xnorpp.runtime.choices import check_choice, nearest_first


@dataclass(frozen=True)
class Network:
    """A row of the table: how to build the network, what it is for, and the sizes it is usually used with."""

    build: Callable[..., tuple[nn.Module, dict[str, object]]]
    input_size: int
    num_classes: int
    summary: str

    def own_options(self) -> tuple[str, ...]:
        """The options that only this network has."""
        fixed = self.build.keywords if isinstance(self.build, partial) else {}
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed)


_WIDTHS = (64, 128, 256, 512)

NETWORKS: dict[str, Network] = {
    "resnet18": Network(
        partial(resnet, blocks=(2, 2, 2, 2), widths=_WIDTHS), 224, 1000, "ResNet-18, pre-activation"
    ),
    "resnet34": Network(
        partial(resnet, blocks=(3, 4, 6, 3), widths=_WIDTHS), 224, 1000, "ResNet-34, pre-activation"
    ),
    "resnet20": Network(
        partial(resnet, blocks=(3, 3, 3), widths=(16, 32, 64)), 32, 10, "ResNet-20 for CIFAR"
    ),
    "alexnet": Network(alexnet, 227, 1000, "AlexNet with batch norm, without groups"),
    "small": Network(small, 28, 10, "three residual blocks for digits and Fashion-MNIST"),
}


def list_models() -> tuple[str, ...]:
    """The names `create_model` knows."""
    return tuple(NETWORKS)


def create_model(
    name: str,
    *,
    method: str = "xnor++",
    scale: str | None = None,
    input_size: int | tuple[int, int] | list[int] | None = None,
    num_classes: int | None = None,
    in_channels: int = 3,
    **options: Any,
) -> nn.Module:
    """A network by name, with He initialisation; first and last layers are always real.

    `input_size` is the side of a picture or (height, width); it and `num_classes` default to the network's
    usual ones. The further options are those of `xnorpp.models.Options` and the network's own: `stem`
    ("auto", "7x7", "3x3") and `stem_pool` of the ResNets, `dropout` and `hidden` of alexnet, `width` of
    small.

    The result's `config` is a plain dictionary that JSON can hold, and `create_model(**config)` builds the
    same again.
    """
    check_choice("name", name, NETWORKS)
    network = NETWORKS[name]
    own_names = network.own_options()
    shared_names = tuple(field.name for field in fields(Options) if field.name not in ("method", "scale"))
    for option in options:
        if option not in own_names + shared_names:
            listed = ", ".join(str(known) for known in nearest_first(option, own_names + shared_names))
            raise ValueError(f"`{option}` is not an option of {name!r}; its options are {listed}")
    side = network.input_size if input_size is None else input_size
    sides = (side, side) if isinstance(side, int) else tuple(side) if isinstance(side, (tuple, list)) else ()
    if len(sides) != 2 or not all(isinstance(one, int) for one in sides):
        raise ValueError(f"`input_size` (={input_size}) must be a side or (height, width) in whole pixels")
    height, width = sides
    if min(height, width) < 1:
        raise ValueError(f"`input_size` (={input_size}) must be at least 1")
    classes = network.num_classes if num_classes is None else num_classes
    for argument, value in (("num_classes", classes), ("in_channels", in_channels)):
        if value < 1:
            raise ValueError(f"`{argument}` (={value}) must be at least 1")
    shared = Options(method=method, scale=scale, **{k: v for k, v in options.items() if k in shared_names})
    own_given = {k: v for k, v in options.items() if k in own_names}
    model, own = network.build(shared, (height, width), classes, in_channels, **own_given)
    model.config = {  # type: ignore[assignment]
        "name": name,
        "input_size": [height, width],
        "num_classes": classes,
        "in_channels": in_channels,
        **shared.to_dict(),
        **own,
    }
    return model
