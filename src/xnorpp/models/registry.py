"""The registry of networks: register one, list them, build one by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from torch import nn

from xnorpp.models.blocks import OPTION_NAMES, Options
from xnorpp.nn import Binarization
from xnorpp.runtime.choices import check_flag, check_whole, nearest_first
from xnorpp.runtime.registry import Registry, import_name, imports_allowed, is_reference, origin_of

# What `create_model` passes to a builder that has a parameter of this name.
_PROVIDED = ("options", "input_size", "num_classes", "in_channels")
# The settings of a binarization in recipes; the last two are 0.1.0's names for the quantizers' gradients.
_SETTINGS = (
    *(one.name for one in fields(Binarization) if one.name != "scale"),
    "surrogate",
    "weight_surrogate",
)


@dataclass(frozen=True)
class Network:
    """A registered network.

    Attributes:
        build: Makes it; see `register_model`.
        input_size: The side of the images it is usually used with; 0: there is no usual one.
        num_classes: Its usual number of classes; 0: there is no usual one.
        summary: What it is, in a few words.
        defaults: Those of its options (`Options` and the settings of a binarization) whose default differs
            from the other networks'.

    Example:
        >>> from xnorpp.models import NETWORKS
        >>> network = NETWORKS["small"]
        >>> network.num_classes, network.takes("in_channels"), "width" in network.own_options()
        (10, True, True)
    """

    build: Callable[..., Any]
    input_size: int = 0
    num_classes: int = 0
    summary: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def _parameters(self) -> list[inspect.Parameter]:
        fixed = self.build.keywords if isinstance(self.build, partial) else {}
        return [p for p in inspect.signature(self.build).parameters.values() if p.name not in fixed]

    def takes(self, name: str) -> bool:
        """Whether the builder has a parameter of this name."""
        return any(p.name == name and p.kind is not p.VAR_KEYWORD for p in self._parameters())

    def default_of(self, option: str) -> Any:
        """The default of one of its own options; None where it has none."""
        defaults = {parameter.name: parameter.default for parameter in self._parameters()}
        found = defaults.get(option)
        return None if found is inspect.Parameter.empty else found

    def own_options(self) -> tuple[str, ...]:
        """The options that only this network has."""
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in self._parameters() if p.kind in named and p.name not in _PROVIDED)


def _check_kind(option: str, value: Any, default: Any) -> None:
    """Refuse a value of another kind than the default: `--set model.options.width=wide`."""
    if isinstance(default, bool):
        check_flag(option, value)
    elif isinstance(default, (int, float)) and not isinstance(value, Real):
        raise ValueError(f"`{option}` (={value!r}) must be a number, such as {default}")


def _check_network(network: Network) -> None:
    if not isinstance(network, Network):
        raise TypeError(f"{network!r} is not a function that builds a network")


def _origin(network: Network) -> str:
    build = network.build
    return origin_of(build.func if isinstance(build, partial) else build)


NETWORKS: Registry[Network] = Registry("name", _check_network, _origin)
"""The registered networks by name; `register_model` adds one.

Example:
    >>> from xnorpp.models import NETWORKS
    >>> NETWORKS["resnet18"].input_size
    224
"""

Builder = TypeVar("Builder", bound=Callable[..., Any])


def register_model(
    name: str,
    *,
    input_size: int = 0,
    num_classes: int = 0,
    summary: str = "",
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Builder], Builder]:
    """A decorator for a function or class that builds a network: `create_model` and recipes then know its
    name.

    The builder is called with those of these keyword arguments that it has parameters for: `num_classes`,
    `in_channels`, `input_size` as (height, width), and `options`, an `Options` with the `Binarization` of the
    inner layers. Its further parameters are options of its own. It returns the network, or the network and a
    dictionary of its own options as they were resolved.

    Args:
        name: A new name without colon, space or parenthesis.
        input_size: The usual side of an image.
        num_classes: The usual number of classes.
        summary: What it is; by default the first line of the docstring.
        defaults: Options of `Options`, or settings of a binarization, that have another default here.

    Raises:
        ValueError: The name is taken or not allowed.

    Example:
        >>> @register_model("tiny", input_size=8, num_classes=10)
        ... def tiny(num_classes, in_channels, options, width=16):
        ...     return nn.Sequential(
        ...         nn.Conv2d(in_channels, width, 3),
        ...         nn.BatchNorm2d(width),
        ...         BinaryConv2d(width, num_classes, 3, config=options.binarization),
        ...         nn.AdaptiveAvgPool2d(1),
        ...         nn.Flatten(),
        ...     )
    """

    def decorate(build: Builder) -> Builder:
        text = summary or _first_line(build)
        NETWORKS.add(name, Network(build, input_size, num_classes, text, dict(defaults or {})))
        return build

    return decorate


def _first_line(build: Any) -> str:
    return (inspect.getdoc(build) or "").partition("\n")[0].rstrip(".")


def list_models() -> tuple[str, ...]:
    """The registered names that `create_model` takes.

    Example:
        >>> "resnet18" in list_models()
        True
    """
    return tuple(NETWORKS)


def find_network(name: str) -> Network:
    """The network of a registered name or of `package.module:function`.

    Raises:
        ValueError: There is none.
    """
    if is_reference(name):
        build = import_name("name", name)
        if not callable(build):
            raise ValueError(f"`name` (={name!r}) must be a function or class that builds a network")
        known = next((network for network in NETWORKS.values() if network.build is build), None)
        if known is None and not imports_allowed():
            raise ValueError(
                f"`name` (={name!r}) comes from a file and names a function that is not a registered "
                "network; build the network yourself and load the weights into it, or use `register_model`"
            )
        return known or Network(build, summary=_first_line(build))
    return NETWORKS.find(name)


def create_model(
    name: str,
    *,
    binarization: Binarization | str | None = None,
    method: str | None = None,
    scale: Any = None,
    input_size: int | tuple[int, int] | list[int] | None = None,
    num_classes: int | None = None,
    in_channels: int = 3,
    **options: Any,
) -> nn.Module:
    """A network by name.

    Args:
        name: A registered name (`list_models`) or `package.module:function`, which is called as
            `register_model` describes.
        binarization: How its inner layers are made binary: a `Binarization` or the name of a preset. The
            first and last layers of our networks are always real.
        method: The name of a preset, as in recipes; "xnor++" by default.
        scale: The scale of the inner layers; for xnor++ Case 4 by default.
        input_size: The side of an image or (height, width); by default the network's usual one.
        num_classes: By default the network's usual number.
        in_channels: Channels of an image.
        **options: The other fields of `xnorpp.models.Options` and `xnorpp.Binarization`, and the network's
            own options: `stem` ("auto", "7x7", "3x3") and `stem_pool` of the ResNets, `dropout` and `hidden`
            of alexnet, `width` and `stem_pool` of small, `width` and `reduction` of reactnet-a.

    Returns:
        The network. Its `config` is a plain dictionary that JSON can hold, and `create_model(**config)`
        builds the same network again.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> model = create_model("resnet18", method="xnor++", scale="channel", input_size=64, num_classes=200)
    """
    network = find_network(name)
    own_names = network.own_options()
    shared_names = (*OPTION_NAMES, *_SETTINGS) if network.takes("options") else ()
    for option in options:
        if option not in own_names + shared_names:
            listed = ", ".join(nearest_first(option, own_names + shared_names)) or "none"
            raise ValueError(f"`{option}` is not an option of {name!r}; its options are {listed}")
    arguments: dict[str, Any] = {k: v for k, v in options.items() if k in own_names}
    for option, value in arguments.items():
        _check_kind(option, value, network.default_of(option))
    config: dict[str, Any] = {"name": name}
    sides = _sides(input_size, network.input_size)
    if sides is not None:
        config["input_size"] = list(sides)
        arguments["input_size"] = sides
    elif network.takes("input_size"):
        raise ValueError(f"`input_size` (=None) must be given for {name!r}, which has no usual one")
    classes = num_classes if num_classes is not None else network.num_classes or None
    if classes is None and network.takes("num_classes"):
        raise ValueError(f"`num_classes` (=None) must be given for {name!r}, which has no usual number")
    for argument, value in (("num_classes", classes), ("in_channels", in_channels)):
        if value is not None:
            check_whole(argument, value)
        if value is not None:
            config[argument] = arguments[argument] = value
    if network.takes("options"):
        given = {**network.defaults, **{k: v for k, v in options.items() if k in shared_names}}
        if method is not None:
            given["method"] = method
        if scale is not None:
            given["scale"] = scale
        arguments["options"] = Options.of(binarization, **given)
        config.update(arguments["options"].to_dict())
    elif binarization is not None or scale is not None or method not in (None, "xnor++"):
        raise ValueError(
            f"`method`, `scale` and `binarization` are not options of {name!r}, whose function has no "
            "parameter `options` and chooses the binarization itself"
        )
    built = network.build(**{k: v for k, v in arguments.items() if k in own_names or network.takes(k)})
    model, own = (
        built if isinstance(built, tuple) else (built, {k: arguments[k] for k in own_names if k in arguments})
    )
    if not isinstance(model, nn.Module):
        raise ValueError(f"`name` (={name!r}) must build an nn.Module; it returned {type(model).__name__}")
    model.config = {**config, **own}  # type: ignore[assignment]
    return model


def _sides(given: Any, usual: int) -> tuple[int, int] | None:
    side = usual if given is None else given
    if given is None and not usual:
        return None
    sides = (side, side) if isinstance(side, int) else tuple(side) if isinstance(side, (tuple, list)) else ()
    if len(sides) != 2 or not all(isinstance(one, int) for one in sides):
        raise ValueError(f"`input_size` (={given}) must be a side or (height, width) in whole pixels")
    if min(sides) < 1:
        raise ValueError(f"`input_size` (={given}) must be at least 1")
    return sides[0], sides[1]
