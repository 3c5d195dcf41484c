"""Binarization: every choice about how a layer is made binary, in one frozen object.

Layers, `binarize`, the networks and recipes all take it. The methods of the paper are presets of it:

    Binarization.preset("xnor++", scale="channel_height_width")

Strings stand for quantizers and scales in recipes and on the command line; here they are objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from xnorpp.nn.methods import METHODS
from xnorpp.nn.quantizers import QUANTIZERS, Identity, Quantizer, find_quantizer
from xnorpp.nn.scales import SCALE_INITS, SCALES, AnalyticScale, ChannelScale, LearnedScale, Scale
from xnorpp.runtime.choices import check_choice, check_flag, nearest_first

PADDING_VALUES = (0, -1, 1)

# Keys of 0.1.0, which recipes and stored networks have: the gradients of the two signs.
_SURROGATES = {"surrogate": "inputs", "weight_surrogate": "weights"}


@dataclass(frozen=True, init=False, repr=False)
class Binarization:
    """How a layer is made binary.

    Args:
        inputs: Quantizer of the layer's input: an object, its name, or `package.module:Class`. "real" leaves
            the input real.
        weights: Quantizer of the weight, in the same forms.
        scale: What multiplies the output: a scale class, its name, `package.module:Class`, or None.
        scale_init: How a learned scale starts: "analytic", 0.8 times the mean |W| of each filter, or "ones".
        padding_value: What surrounds the signs at the border of a convolution: 0, -1 or +1.
        clip_weights: Whether `clip_latent_weights_` clips the latent weights to [-1, 1].
        center_weights: Whether each filter's mean is subtracted before its sign is taken.
        standardize_weights: Whether each filter is centred and divided by its deviation / (2 sqrt 2) before
            its sign is taken, as in ReCU; a gradient then does not depend on the size of the weights.
        adaptive_sets: Whether inputs and weights are two values chosen by the layer instead of -1 and +1, as
            in AdaBin (`nn/sets.py`): learned ones for the input, mean plus or minus deviation for each
            filter. Each filter is centred then. It needs a learned scale or none.

    Raises:
        ValueError: A name is unknown, or the values do not fit together.

    Example:
        >>> Binarization(inputs="polynomial", scale="channel_spatial").scale_name
        'channel_spatial'
        >>> Binarization.preset("xnor").scale_name
        'alpha'
    """

    inputs: Quantizer
    weights: Quantizer
    scale: type[Scale] | None
    scale_init: str
    padding_value: int
    clip_weights: bool
    center_weights: bool
    standardize_weights: bool
    adaptive_sets: bool

    def __init__(
        self,
        *,
        inputs: Quantizer | str = "ste",
        weights: Quantizer | str = "ste",
        scale: type[Scale] | str | None = ChannelScale,
        scale_init: str = "analytic",
        padding_value: int = 0,
        clip_weights: bool = False,
        center_weights: bool = False,
        standardize_weights: bool = False,
        adaptive_sets: bool = False,
    ) -> None:
        flags = {
            "clip_weights": clip_weights,
            "center_weights": center_weights,
            "standardize_weights": standardize_weights,
            "adaptive_sets": adaptive_sets,
        }
        for flag, given in flags.items():
            check_flag(flag, given)
        values = {
            "inputs": find_quantizer(inputs, "inputs"),
            "weights": find_quantizer(weights, "weights"),
            "scale": find_scale(scale),
            "scale_init": scale_init,
            "padding_value": padding_value,
            **{flag: bool(given) for flag, given in flags.items()},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_choice("scale_init", scale_init, SCALE_INITS)
        check_choice("padding_value", padding_value, PADDING_VALUES)
        if padding_value and not self.binarizes_input:
            raise ValueError(
                f"`padding_value` (={padding_value}) must be 0 for method {self.method!r}, whose input stays "
                "real"
            )
        if self.is_real and self.scale is not None:
            raise ValueError(
                f"`scale` (={self.scale_name!r}) must be None for method 'real', which has no scale"
            )
        if self.adaptive_sets and not self.is_real and self.method not in ("bnn", "xnor++"):
            raise ValueError(
                f"`adaptive_sets` (=True) must be False for method {self.method!r}; they are for 'bnn' and "
                "'xnor++', which binarize inputs and weights and have no analytic scale"
            )

    @classmethod
    def preset(cls, method: str, **settings: Any) -> Binarization:
        """A method of the paper: real, binaryconnect, bnn, xnor or xnor++.

        Args:
            method: Its name.
            **settings: Fields that differ from the preset; also `surrogate` and `weight_surrogate`, the names
                of the two signs' gradients in recipes.

        Raises:
            ValueError: The name is unknown, or the method does not have the scale that is asked for.

        Example:
            >>> Binarization.preset("xnor++", scale="dense").scale_name
            'dense'
        """
        check_choice("method", method, METHODS)
        base = _PRESETS[method]
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known and name not in _SURROGATES:
                listed = ", ".join(nearest_first(name, [*known, *_SURROGATES]))
                raise ValueError(f"`{name}` is not a setting of a binarization; its settings are {listed}")
        changes = {name: value for name, value in settings.items() if name in known}
        for name, side in _SURROGATES.items():
            if name in settings and side not in changes:
                quantizer = _surrogate(name, settings[name])
                if getattr(base, side).encoding is not None:
                    changes[side] = quantizer
        if changes.get("scale") is None:
            changes.pop("scale", None)
        elif "inputs" not in settings and "weights" not in settings:
            changes["scale"] = _scale_of(method, changes["scale"])
        result = base.replace(**changes)
        if result.method != method:
            raise ValueError(
                f"`method` (={method!r}) must agree with inputs={str(result.inputs)!r}, "
                f"weights={str(result.weights)!r} and scale={result.scale_name!r}: that is {result.method!r}"
            )
        return result

    @classmethod
    def of(
        cls, config: Binarization | str | Mapping[str, Any] | None = None, **settings: Any
    ) -> Binarization:
        """A binarization from whatever stands for one, with some settings changed.

        Args:
            config: A `Binarization`, the name of a preset, a dictionary as `to_dict` gives it, or None for
                the default (`xnor++` with one factor per channel).
            **settings: What differs, as for `preset`; `method` is also allowed when `config` is None.

        Raises:
            ValueError: `config` or a setting is not valid.
        """
        if isinstance(config, Mapping):
            return cls.of(None, **{**config, **settings})
        method = settings.pop("method", None)
        if config is not None and method is not None:
            raise ValueError(f"`method` (={method!r}) must not be given together with a binarization")
        if method is not None or isinstance(config, str):
            return cls.preset(str(method or config), **settings)
        config = _PRESETS["xnor++"] if config is None else config
        if not isinstance(config, Binarization):
            raise ValueError(f"`config` (={config!r}) must be a Binarization or the name of a preset")
        for name, side in _SURROGATES.items():
            if name in settings:
                settings[side] = _surrogate(name, settings.pop(name))
        unknown = set(settings) - {field.name for field in fields(cls)}
        if unknown:
            return cls.preset("xnor++", **settings)  # raises with the list of settings
        return config.replace(**settings)

    def replace(self, **changes: Any) -> Binarization:
        """The same with some fields changed."""
        return dataclasses.replace(self, **changes) if changes else self

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Binarization:
        """The inverse of `to_dict`; also reads what 0.1.0 stored (`method`, `surrogate`,
        `weight_surrogate`)."""
        return cls.of(values)

    def to_dict(self) -> dict[str, Any]:
        """All choices as plain strings, numbers and None, which JSON and TOML can hold.

        `method` names the nearest preset, for readers; quantizers and scale decide.
        """
        return {
            "method": self.method,
            "inputs": str(self.inputs),
            "weights": str(self.weights),
            "scale": self.scale_name,
            "scale_init": self.scale_init,
            "padding_value": self.padding_value,
            "clip_weights": self.clip_weights,
            "center_weights": self.center_weights,
            "standardize_weights": self.standardize_weights,
            "adaptive_sets": self.adaptive_sets,
        }

    @property
    def method(self) -> str:
        """The paper's method that this is, by what is binary and how it is scaled."""
        if self.is_real:
            return "real"
        if not self.binarizes_input:
            return "binaryconnect"
        if self.scale is None:
            return "bnn"
        return "xnor" if issubclass(self.scale, AnalyticScale) else "xnor++"

    @property
    def scale_name(self) -> str | None:
        """The name of the scale in recipes, or None."""
        return None if self.scale is None else SCALES.name_of(self.scale)

    @property
    def is_real(self) -> bool:
        """Whether nothing is binary."""
        return self.inputs.encoding is None and self.weights.encoding is None

    @property
    def binarizes_input(self) -> bool:
        return self.inputs.encoding is not None

    @property
    def binarizes_weights(self) -> bool:
        return self.weights.encoding is not None

    @property
    def anneals(self) -> bool:
        """Whether a quantizer changes with the progress of training (`set_progress`)."""
        return self.inputs.anneals or self.weights.anneals

    def for_linear(self) -> Binarization:
        """The same for a linear layer, whose output has no rows and columns: a spatial scale becomes one
        factor per channel, and there is no border."""
        spatial = self.scale is not None and self.scale.spatial
        changes: dict[str, Any] = {"scale": ChannelScale} if spatial else {}
        return self.replace(**changes, **({"padding_value": 0} if self.padding_value else {}))

    def __repr__(self) -> str:
        values = self.to_dict()
        del values["method"]
        return f"Binarization({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def find_scale(value: type[Scale] | str | None, argument: str = "scale") -> type[Scale] | None:
    """A scale class, from itself or from its name or `package.module:Class`.

    Raises:
        ValueError: There is no such scale.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return SCALES.find(value, argument)
    if not (isinstance(value, type) and issubclass(value, (LearnedScale, AnalyticScale))):
        raise ValueError(f"`{argument}` (={value!r}) must be a scale class, the name of one, or None")
    return value


def _surrogate(argument: str, value: Quantizer | str) -> Quantizer:
    quantizer = value if isinstance(value, Quantizer) else None
    if isinstance(value, str) and ":" not in value and "(" not in value:
        check_choice(argument, value, [n for n in QUANTIZERS if QUANTIZERS[n].encoding is not None])
    quantizer = quantizer or find_quantizer(value, argument)
    if quantizer.encoding is None:
        raise ValueError(f"`{argument}` (={str(quantizer)!r}) must be the gradient of a sign")
    return quantizer


def scales_of(method: str) -> tuple[str, ...]:
    """The registered scales that a method of the paper knows."""
    kind = {"xnor": AnalyticScale, "xnor++": LearnedScale}.get(method)
    return () if kind is None else tuple(name for name in SCALES if issubclass(SCALES[name], kind))


def _scale_of(method: str, value: type[Scale] | str) -> type[Scale]:
    allowed = scales_of(method)
    shown = value if isinstance(value, str) else SCALES.name_of(value)
    if not allowed:
        raise ValueError(f"`scale` (={shown!r}) must be None for method {method!r}, which has no scale")
    if isinstance(value, str) and ":" not in value:
        check_choice("scale", value, allowed)
    scale = find_scale(value)
    assert scale is not None
    if issubclass(scale, AnalyticScale) != (method == "xnor"):
        check_choice("scale", shown, allowed)
    return scale


_PRESETS = {
    "real": Binarization(inputs=Identity(), weights=Identity(), scale=None),
    "binaryconnect": Binarization(inputs=Identity(), scale=None),
    "bnn": Binarization(scale=None),
    "xnor": Binarization(scale="alpha"),
    "xnor++": Binarization(),
}
# The built-in scales of each method, its default first.
METHOD_SCALES: dict[str, tuple[str, ...]] = {method: scales_of(method) for method in METHODS}
"""The names of the scales that each method can use, its default first.

Example:
    >>> from xnorpp.nn import METHOD_SCALES
    >>> METHOD_SCALES["xnor"]
    ('alpha', 'alpha_k')
"""
