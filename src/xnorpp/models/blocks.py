"""What the networks share: their options, the layers made from them, the block and the initialisation.

The order inside a block follows the paper: batch norm, sign (inside the binary layer), convolution, scale,
activation. Where nothing takes the sign of the input (methods `real` and `binaryconnect`) the activation
stands in the sign's place, batch norm, activation, convolution: with `shortcut="block"` the ordinary
pre-activation ResNet. That is the real-valued baseline: the same convolutions, batch norms and shortcuts,
with the activation where the binary network has its sign.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from xnorpp.nn import (
    Binarization,
    BinaryConv2d,
    BinaryLayer,
    BinaryLinear,
    ChannelHeightWidthScale,
    ChannelShift,
    RPReLU,
)
from xnorpp.nn.binarization import PADDING_VALUES
from xnorpp.nn.fused.dispatch import Unit, residual
from xnorpp.nn.fused.ends import halve, use_halve
from xnorpp.runtime.choices import check_choice, check_flag

Size = tuple[int, int]

ACTIVATIONS = ("prelu", "relu", "hardtanh", "rprelu", "identity")
"""The activations that `Options` takes.

Example:
    >>> from xnorpp.models import ACTIVATIONS
    >>> ACTIVATIONS
    ('prelu', 'relu', 'hardtanh', 'rprelu', 'identity')
"""
SHORTCUTS = ("block", "conv")
DOWNSAMPLES = ("binary", "real")
# The block of the paper's tables, where it differs from the defaults.
PAPER_BLOCK = {"shortcut": "block", "downsample": "binary"}
"""The block of the paper's tables, where it differs from the defaults.

Example:
    >>> from xnorpp.models import PAPER_BLOCK, create_model
    >>> model = create_model("small", input_size=8, in_channels=1, **PAPER_BLOCK)
    >>> model.config["shortcut"], model.config["downsample"]
    ('block', 'binary')
"""
# Our networks know their sizes when they are built, so they use the paper's Case 4 where a lone layer, which
# does not, has one factor per channel.
DEFAULT = Binarization(scale=ChannelHeightWidthScale)


@dataclass(frozen=True)
class Options:
    """How each layer is binarized, and what the paper leaves open.

    Attributes:
        binarization: Of every inner layer; by default xnor++ with Case 4.
        activation: prelu, relu, hardtanh, rprelu or identity; None is prelu with binary inputs, else relu.
        shortcut: "conv" (default; measures better): one shortcut per convolution; "block": one per pair of
            them, as in the paper.
        downsample: "real" (default; measures better) or "binary" (the paper leaves only the first and last
            layers real): the 1x1 convolution of a shortcut that changes the shape, after a 2x2 average
            pooling.
        sign_shift: A learned shift per channel before each sign, as in ReActNet.
        norm_after: A further batch norm after each inner layer, before its activation, as in the public
            network of Bethge et al. Without scales, it is what brings the sums of a binary convolution to the
            size of the shortcut they are added to.

    Example:
        >>> from xnorpp.models import Options
        >>> options = Options.of("xnor", activation="relu")
        >>> options.binarization.method, options.activation, options.shortcut
        ('xnor', 'relu', 'conv')
    """

    binarization: Binarization = DEFAULT
    activation: str | None = None
    shortcut: str = "conv"
    downsample: str = "real"
    sign_shift: bool = False
    norm_after: bool = False

    def __post_init__(self) -> None:
        if self.activation is None:
            object.__setattr__(self, "activation", "prelu" if self.binarizes_input else "relu")
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("shortcut", self.shortcut, SHORTCUTS)
        check_choice("downsample", self.downsample, DOWNSAMPLES)
        check_flag("sign_shift", self.sign_shift)
        check_flag("norm_after", self.norm_after)

    @classmethod
    def of(cls, binarization: Binarization | str | None = None, **options: Any) -> Options:
        """Options from plain values, as recipes and stored networks have them (those of 0.1.0 too).

        Args:
            binarization: A `Binarization`, the name of a preset, or None.
            **options: The attributes above, and the settings of a binarization: `method`, `scale`,
                `surrogate`, `inputs`, `padding_value`, ...

        Raises:
            ValueError: A value is not valid.
        """
        own = {name: options.pop(name) for name in OPTION_NAMES if name in options}
        return cls(_binarization(binarization, options), **own)

    @property
    def binarizes_input(self) -> bool:
        return self.binarization.binarizes_input

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `of` takes."""
        return {**self.binarization.to_dict(), **{name: getattr(self, name) for name in OPTION_NAMES}}


OPTION_NAMES = tuple(field.name for field in fields(Options) if field.name != "binarization")


def _binarization(given: Binarization | str | None, settings: Mapping[str, Any]) -> Binarization:
    if isinstance(given, Binarization):
        return Binarization.of(given, **settings)
    method = given or settings.get("method") or "xnor++"
    if given is not None and settings.get("method") not in (None, given):
        raise ValueError(f"`method` (={settings['method']!r}) must not be given together with a binarization")
    settings = {name: value for name, value in settings.items() if name != "method"}
    if method == "xnor++" and settings.get("scale") is None:
        settings["scale"] = ChannelHeightWidthScale
    # A real-valued baseline is made with the options of the binary network, whose border it does not have.
    plain = Binarization.preset(method, **{k: v for k, v in settings.items() if k != "padding_value"})
    border = settings.get("padding_value", 0)
    check_choice("padding_value", border, PADDING_VALUES)
    return plain.replace(padding_value=border) if plain.binarizes_input else plain


def output_size(size: Size, kernel: int, stride: int, padding: int) -> Size:
    """The size after a convolution or pooling window; an error if nothing is left."""
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in size)
    if min(height, width) < 1:
        raise ValueError(f"`input_size` is too small: a {kernel}x{kernel} window does not fit in {size}")
    return height, width


def activation(options: Options, channels: int, *, spatial: bool = True) -> nn.Module:
    """The activation of the options, for maps (N,C,H,W) or, with `spatial` False, for vectors (N,C)."""
    if options.activation == "rprelu":
        return RPReLU(channels, spatial=spatial)
    if options.activation == "prelu":
        return nn.PReLU(channels)
    if options.activation == "relu":
        return nn.ReLU()
    return nn.Hardtanh() if options.activation == "hardtanh" else nn.Identity()


def before(options: Options, channels: int, *, spatial: bool = True) -> nn.Module:
    """What stands between batch norm and layer: a shift for the sign, or the activation of a real input."""
    if not options.binarizes_input:
        return activation(options, channels, spatial=spatial)
    return ChannelShift(channels, spatial=spatial) if options.sign_shift else nn.Identity()


def after(options: Options, channels: int, *, spatial: bool = True) -> nn.Module:
    """What follows the layer: with `norm_after` a batch norm, then the activation, unless it stands before
    the layer already.
    """
    act = activation(options, channels, spatial=spatial) if options.binarizes_input else nn.Identity()
    if not options.norm_after:
        return act
    norm = nn.BatchNorm2d(channels) if spatial else nn.BatchNorm1d(channels)
    return nn.Sequential(OrderedDict(norm=norm, act=act))


def inner_conv(
    options: Options, inputs: int, outputs: int, kernel: int, size: Size, *, stride: int = 1, padding: int = 0
) -> nn.Conv2d:
    """A convolution inside a network, for an input of `size`, without bias; nn.Conv2d itself if it
    is real."""
    if options.binarization.is_real:
        return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return BinaryConv2d(
        inputs,
        outputs,
        kernel,
        stride,
        padding,
        bias=False,
        config=options.binarization,
        output_size=output_size(size, kernel, stride, padding),
    )


def inner_linear(options: Options, inputs: int, outputs: int) -> nn.Linear:
    """A linear layer inside a network, without bias; nn.Linear itself if it is real."""
    if options.binarization.is_real:
        return nn.Linear(inputs, outputs, bias=False)
    return BinaryLinear(inputs, outputs, bias=False, config=options.binarization.for_linear())


class AveragePool(nn.AvgPool2d):
    """nn.AvgPool2d, which trains by a kernel of its own where that is faster (`fused.ends.halve`)."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = halve(x) if use_halve(x, self) else super().forward(x)
        return result


def downsample(options: Options, inputs: int, outputs: int, stride: int, size: Size) -> nn.Sequential:
    """The shortcut where the shape changes: 2x2 average pooling (for stride 2), then a 1x1 convolution.

    real input (also of binaryconnect):  pool, convolution, batch norm
    binary input:                        pool, batch norm, [shift,] sign, convolution, scale[, batch norm]
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stride != 1:
        layers["pool"] = AveragePool(stride, stride, ceil_mode=any(side % stride for side in size))
        size = (-(-size[0] // stride), -(-size[1] // stride))
    if options.downsample == "real" or not options.binarizes_input:
        real = options.downsample == "real"
        layers["conv"] = (
            nn.Conv2d(inputs, outputs, 1, bias=False)
            if real
            else inner_conv(options, inputs, outputs, 1, size)
        )
        layers["norm"] = nn.BatchNorm2d(outputs)
    else:
        layers["norm"] = nn.BatchNorm2d(inputs)
        if options.sign_shift:
            layers["shift"] = ChannelShift(inputs)
        layers["conv"] = inner_conv(options, inputs, outputs, 1, size)
        if options.norm_after:
            layers["norm_after"] = nn.BatchNorm2d(outputs)
    return nn.Sequential(layers)


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after its batch norm, with one shortcut around both or one around each."""

    fuses_itself = True  # for `fuse_for_training`

    def __init__(self, options: Options, inputs: int, outputs: int, stride: int, size: Size) -> None:
        super().__init__()
        middle = output_size(size, 3, stride, 1)
        self.shortcut_per_conv = options.shortcut == "conv"
        self.bn1 = nn.BatchNorm2d(inputs)
        self.before1 = before(options, inputs)
        self.conv1 = inner_conv(options, inputs, outputs, 3, size, stride=stride, padding=1)
        self.act1 = after(options, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.before2 = before(options, outputs)
        self.conv2 = inner_conv(options, outputs, outputs, 3, middle, padding=1)
        self.act2 = after(options, outputs)
        changes = stride != 1 or inputs != outputs
        self.downsample = downsample(options, inputs, outputs, stride, size) if changes else nn.Identity()
        self.output_size = middle

    def forward(self, x: Tensor) -> Tensor:
        units = (
            Unit(self.bn1, self.conv1, self.act1, self.before1),
            Unit(self.bn2, self.conv2, self.act2, self.before2),
        )
        return residual(x, units, self.downsample, each=self.shortcut_per_conv)


def initialise(model: nn.Module) -> None:
    """He initialisation of all weights, zero biases; then the scales start from those weights."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="linear")
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, BinaryLayer):
            module.reset_scale()
