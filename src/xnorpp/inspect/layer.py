"""One row per layer: what it is, what it stores, what it computes, and what it could gain by the paper.

The paper's theoretical speed-ups (its section "Efficiency analysis") assume that 64 binary operations cost as
much as one multiplication. A layer with a `kh x kw` kernel and `o` filters needs `N` binary operations a real
one would need `N` multiplications for, and beside them

    XNOR-Net      2 multiplications and kh*kw additions per input channel and output pixel (alpha and K)
    XNOR-Net++    1 multiplication (the merged factor)

which gives `S_XNOR` and `S_OURS` below. With groups an input meets only `o / groups` filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from xnorpp.inspect.stopwatch import Spread

State = Literal["binary", "one-bit weights", "real"]
WORD = 64  # binary operations for one multiplication in the paper's estimate
CHANNEL_WORD = 32  # the CPU engine rounds the channels of a pixel up to this many bits


@dataclass(frozen=True)
class Geometry:
    """The shape of a convolution; a linear layer is a 1x1 convolution of a 1x1 image.

    Example:
        >>> from xnorpp.inspect import Geometry
        >>> shape = Geometry(64, 128, (56, 56), (28, 28), kernel=(3, 3), stride=(2, 2), padding=(1, 1))
        >>> shape.describe(), shape.weights, shape.packed_bytes
        ('conv 3x3 /2', 73728, 9216)
    """

    inputs: int
    outputs: int
    input_size: tuple[int, int]
    output_size: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    pad_value: int = 0
    linear: bool = False

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def fan_in(self) -> int:
        """Input channels one filter sees."""
        return self.inputs // self.groups

    @property
    def weights(self) -> int:
        return self.outputs * self.fan_in * self.taps

    @property
    def pixels(self) -> int:
        return self.output_size[0] * self.output_size[1]

    @property
    def multiply_adds(self) -> int:
        return self.weights * self.pixels

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights at one bit each, every tap's channels in whole bytes, as the file has them."""
        return self.outputs * self.taps * ((self.fan_in + 7) // 8)

    @property
    def wasted_bits(self) -> int:
        """Bits after the last channel in `packed_bytes`."""
        return 8 * self.packed_bytes - self.weights

    @property
    def word_waste(self) -> float:
        """The share of a layer's work that is tail bits when channels are taken in 32-bit words."""
        words = (self.fan_in + CHANNEL_WORD - 1) // CHANNEL_WORD
        return 1 - self.fan_in / (CHANNEL_WORD * words)

    def describe(self) -> str:
        if self.linear:
            return "linear"
        text = f"conv {self.kernel[0]}x{self.kernel[1]}"
        if self.stride != (1, 1):
            text += f" /{self.stride[0]}" if self.stride[0] == self.stride[1] else f" /{self.stride}"
        if self.dilation != (1, 1):
            text += f" dilation {self.dilation[0]}x{self.dilation[1]}"
        return text + (f" groups {self.groups}" if self.groups > 1 else "")


def speedup_xnor(geometry: Geometry) -> float:
    """The paper's theoretical speed-up of XNOR-Net: `S_XNOR = 64*w*h*o / (w*h*o + 2 + h*w)`.

    Args:
        geometry: The layer; with groups, `o / groups` takes the place of `o`.

    Example:
        >>> round(speedup_xnor(Geometry(256, 256, (14, 14), (14, 14), kernel=(3, 3))), 2)
        63.7
    """
    work = geometry.taps * geometry.outputs / geometry.groups
    return WORD * work / (work + 2 + geometry.taps)


def speedup_ours(geometry: Geometry) -> float:
    """The paper's theoretical speed-up of XNOR-Net++: `S_OURS = 64*w*h*o / (w*h*o + 1)`.

    Args:
        geometry: The layer; with groups, `o / groups` takes the place of `o`.

    Example:
        >>> round(speedup_ours(Geometry(256, 256, (14, 14), (14, 14), kernel=(3, 3))), 2)
        63.97
    """
    work = geometry.taps * geometry.outputs / geometry.groups
    return WORD * work / (work + 1)


@dataclass(frozen=True)
class Measured:
    """One layer timed: packed against real, at batch 1."""

    packed: Spread
    real: Spread

    @property
    def speedup(self) -> float:
        return self.real.median / self.packed.median


@dataclass(frozen=True)
class Layer:
    """A layer with weights. `bytes` is what it takes packed (weights, and its scales, norms and slopes),
    `float_bytes` its weights in float32. `real_operations` counts multiply-adds of real numbers: all of a
    real layer, the scale (and K) of a binary one.

    Example:
        >>> from xnorpp.inspect import inspect_file
        >>> from xnorpp.shipped import shipped_path
        >>> layer = inspect_file(shipped_path("cifar10-resnet20")).layers[0]
        >>> layer.state, layer.weight_bits
        ('real', 32)
    """

    name: str
    state: State
    why: str
    geometry: Geometry
    weight_bits: int
    input_bits: int
    bytes: int
    binary_operations: int
    real_operations: int
    measured: Measured | None = None

    @property
    def float_bytes(self) -> int:
        return 4 * self.geometry.weights

    @property
    def wasted_bits(self) -> int:
        return self.geometry.wasted_bits if self.weight_bits == 1 else 0

    @property
    def theory(self) -> tuple[float, float] | None:
        """(S_XNOR, S_OURS) of a binary layer; None of another, which gains nothing."""
        if self.state != "binary":
            return None
        return speedup_xnor(self.geometry), speedup_ours(self.geometry)

    def to_dict(self) -> dict[str, Any]:
        theory = self.theory
        geometry = self.geometry
        row: dict[str, Any] = {
            "name": self.name,
            "kind": geometry.describe(),
            "state": self.state,
            "why": self.why,
            "geometry": asdict(geometry),
            "weights": geometry.weights,
            "weight_bits": self.weight_bits,
            "input_bits": self.input_bits,
            "bytes": self.bytes,
            "float_bytes": self.float_bytes,
            "binary_operations": self.binary_operations,
            "real_operations": self.real_operations,
            "wasted_bits": self.wasted_bits,
            "word_waste": geometry.word_waste if self.weight_bits == 1 else 0.0,
            "theoretical_speedup_xnor": theory[0] if theory else None,
            "theoretical_speedup": theory[1] if theory else None,
        }
        if self.measured:
            row["measured_speedup"] = self.measured.speedup
            row["seconds"] = {
                "packed": self.measured.packed.to_dict(),
                "real": self.measured.real.to_dict(),
            }
        return row


@dataclass(frozen=True)
class Inspection:
    """All layers in running order. `other_*` is what belongs to no layer; `total_bytes` is the file's size
    where there is a file, else an estimate without the header.

    Example:
        >>> from xnorpp.inspect import inspect_file
        >>> from xnorpp.shipped import shipped_path
        >>> report = inspect_file(shipped_path("cifar10-resnet20"))
        >>> len(report.layers), sum(layer.state == "binary" for layer in report.layers)
        (22, 18)
    """

    title: str
    layers: tuple[Layer, ...]
    warnings: tuple[str, ...] = ()
    other_bytes: int = 0
    other_operations: int = 0
    file_bytes: int | None = None
    timed: str | None = None  # a description of what was timed

    @property
    def total_bytes(self) -> int:
        if self.file_bytes is not None:
            return self.file_bytes
        return sum(layer.bytes for layer in self.layers) + self.other_bytes

    @property
    def float_bytes(self) -> int:
        """The weights alone in float32."""
        return sum(layer.float_bytes for layer in self.layers)

    def count(self, state: State) -> int:
        return sum(layer.state == state for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.title,
            "layers": [layer.to_dict() for layer in self.layers],
            "warnings": list(self.warnings),
            "total": {
                "bytes": self.total_bytes,
                "float_bytes": self.float_bytes,
                "other_bytes": self.other_bytes,
                "binary_operations": sum(layer.binary_operations for layer in self.layers),
                "real_operations": sum(layer.real_operations for layer in self.layers)
                + self.other_operations,
                "wasted_bits": sum(layer.wasted_bits for layer in self.layers),
            },
            "timed": self.timed,
        }


def place_in_network(index: int, count: int) -> str | None:
    """Why the outermost layers are real, in the words of the paper."""
    if index == 0:
        return "first layer, real-valued as in the paper"
    if index == count - 1:
        return "last layer, real-valued as in the paper"
    return None


def real_shortcut(name: str) -> str | None:
    """Why the 1x1 convolution of a shortcut in one of our networks is real."""
    if name.endswith("downsample.conv"):
        return "shortcut that changes the shape, real by its option `downsample`"
    return None


def two_valued(rows: Sequence[tuple[float, float]]) -> bool:
    """Whether each filter's weights, given as (smallest, largest) magnitude, are plus or minus a constant."""
    return bool(rows) and all(low > 0 and high <= low * (1 + 1e-6) for low, high in rows)
