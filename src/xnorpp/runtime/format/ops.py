"""The operations of a packed program: their attributes, tensors, and the kind and shape of what they give.

One row of `OPS` for an operation. `infer` checks one operation against the values it reads and returns the
value it makes; `program.py` calls it for every operation of a file before anything else looks at it, so an
engine may rely on all that is checked here. Shapes leave out the batch axis: `(c, h, w)` or `(c,)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.bits import packed_width, tail_is_zero, window_of

Kind = Literal["f32", "bits", "int"]
Array = npt.NDArray[Any]

MAX_EXTENT = 1 << 24  # channels, height or width
MAX_ELEMENTS = 1 << 27  # one value of one image
MAX_WINDOW = 1024  # kernel, stride, dilation, padding
LARGEST = float(np.finfo(np.float32).max)
MAX_TAPS = 1 << 22  # inputs of one filter; below 2**24, so a dot product is exact in float32


class ProgramError(ValueError):
    """A packed file or program that breaks the format; the message says where and how."""


@dataclass(frozen=True)
class Value:
    """What an operation gives: `f32`, `bits` (-1 or +1 each) or `int` (dot products), and its shape."""

    kind: Kind
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Rule:
    """One operation: the kinds each input may have, its attributes, its required and optional tensors."""

    inputs: tuple[tuple[Kind, ...], ...]
    infer: Callable[[_Site], Value]
    attrs: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    work: Callable[[_Site, Value], int] = lambda site, out: out.elements


@dataclass(frozen=True)
class _Site:
    """One operation in its place: what `infer` sees."""

    where: str
    inputs: tuple[Value, ...]
    attrs: Mapping[str, Any]
    tensors: Mapping[str, Array]

    def fail(self, message: str) -> ProgramError:
        return ProgramError(f"{self.where}: {message}")

    def pair(self, name: str, low: int) -> tuple[int, int]:
        value = self.attrs[name]
        if (
            not isinstance(value, list | tuple)
            or len(value) != 2
            or not all(type(v) is int and low <= v <= MAX_WINDOW for v in value)
        ):
            raise self.fail(f"`{name}` (={_short(value)}) must be two integers from {low} to {MAX_WINDOW}")
        return int(value[0]), int(value[1])

    def flag(self, name: str) -> bool:
        value = self.attrs[name]
        if type(value) is not bool:
            raise self.fail(f"`{name}` (={_short(value)}) must be true or false")
        return value

    def image(self, index: int = 0) -> tuple[int, int, int]:
        shape = self.inputs[index].shape
        if len(shape) != 3:
            raise self.fail(f"input {index} has shape {shape}; a (c, h, w) value is needed")
        return shape[0], shape[1], shape[2]

    def vector(self, index: int = 0) -> int:
        shape = self.inputs[index].shape
        if len(shape) != 1:
            raise self.fail(f"input {index} has shape {shape}; a flat (c,) value is needed")
        return shape[0]

    def real(self, role: str, shape: tuple[int, ...], *, infinite: bool = False) -> None:
        """Check a float32 or float16 tensor: its shape, no NaN, and no infinity unless allowed."""
        tensor = self.tensors[role]
        if tensor.dtype not in (np.float32, np.float16):
            raise self.fail(f"`{role}` is {tensor.dtype}; F32 or F16 is needed")
        if tensor.shape != shape:
            raise self.fail(f"`{role}` has shape {tensor.shape}; {shape} is needed")
        bad = np.isnan(tensor) if infinite else ~np.isfinite(tensor)
        if bad.any():
            raise self.fail(f"`{role}` holds {'NaN' if infinite else 'NaN or infinite'} numbers")

    def bits(self, role: str, shape: tuple[int, ...], count: int) -> None:
        """Check a packed tensor: dtype, shape, and tail bits 0 (contract: tails never differ)."""
        tensor = self.tensors[role]
        if tensor.dtype != np.uint8:
            raise self.fail(f"`{role}` is {tensor.dtype}; U8 is needed")
        if tensor.shape != shape:
            raise self.fail(f"`{role}` has shape {tensor.shape}; {shape} is needed")
        if not tail_is_zero(tensor, count):
            raise self.fail(f"`{role}` has bits set behind its {count} channels; tail bits must be 0")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_float32(value: object) -> bool:
    """A JSON number in the range of float32; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LARGEST <= value <= LARGEST


def window_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """`floor((size + 2*padding - dilation*(kernel-1) - 1) / stride) + 1`: windows that fit; may be < 1."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def pooled_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """As `window_size`; `ceil_mode` rounds up, but drops a last window that would start in the padding."""
    if not ceil_mode:
        return window_size(size, kernel, stride, padding, 1)
    count = -((size + 2 * padding - kernel) // -stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def _window(site: _Site, kernel: tuple[int, int]) -> tuple[int, int]:
    _, h, w = site.image()
    stride, padding, dilation = site.pair("stride", 1), site.pair("padding", 0), site.pair("dilation", 1)
    out = tuple(window_size(n, kernel[i], stride[i], padding[i], dilation[i]) for i, n in enumerate((h, w)))
    if min(out) < 1:
        raise site.fail(f"a {kernel[0]}x{kernel[1]} window does not fit the {h}x{w} input")
    return out[0], out[1]


def _conv(site: _Site) -> Value:
    c, _, _ = site.image()
    weight, groups = site.tensors["weight"], site.attrs["groups"]
    if type(groups) is not int or not 1 <= groups <= c or c % groups:
        raise site.fail(f"`groups` (={_short(groups)}) must divide the {c} input channels")
    if weight.ndim != 4:
        raise site.fail(f"`weight` has shape {weight.shape}; 4 axes are needed")
    packed = "bias" not in site.tensors and weight.dtype == np.uint8
    kernel = (weight.shape[1], weight.shape[2]) if packed else (weight.shape[2], weight.shape[3])
    o, fan = weight.shape[0], c // groups
    if o < 1 or o % groups:
        raise site.fail(f"`weight` has {o} filters; a positive multiple of `groups` (={groups}) is needed")
    if not all(1 <= k <= MAX_WINDOW for k in kernel):
        raise site.fail(f"a {kernel[0]}x{kernel[1]} kernel is out of range; 1 to {MAX_WINDOW} are allowed")
    if fan * kernel[0] * kernel[1] > MAX_TAPS:
        raise site.fail(
            f"a {kernel[0]}x{kernel[1]} kernel over {fan} channels has more than {MAX_TAPS} inputs, "
            "which a dot product may not have"
        )
    h, w = _window(site, kernel)
    return Value("f32", (o, h, w))


def _conv2d(site: _Site) -> Value:
    if site.tensors["weight"].dtype == np.uint8:
        raise site.fail("`weight` is uint8; F32 or F16 is needed")
    out = _conv(site)
    weight = site.tensors["weight"]
    site.real("weight", (out.shape[0], site.inputs[0].shape[0] // site.attrs["groups"], *weight.shape[2:]))
    _bias(site, out)
    return out


def _bias(site: _Site, out: Value) -> None:
    if "bias" in site.tensors:
        site.real("bias", out.shape[:1])


def _bit_conv(kind: Kind) -> Callable[[_Site], Value]:
    def infer(site: _Site) -> Value:
        weight = site.tensors["weight"]
        if weight.dtype != np.uint8:
            raise site.fail(f"`weight` is {weight.dtype}; U8 is needed")
        out = _conv(site)
        fan = site.inputs[0].shape[0] // site.attrs["groups"]
        site.bits("weight", (*weight.shape[:3], packed_width(fan)), fan)
        pad = site.attrs.get("pad_value", 0)
        if type(pad) is not int or pad not in (-1, 0, 1):
            raise site.fail(f"`pad_value` (={_short(pad)}) must be -1, 0 or 1")
        return Value(kind, out.shape)

    return infer


def _linear(site: _Site) -> Value:
    i, weight = site.vector(), site.tensors["weight"]
    if weight.ndim != 2 or weight.shape[0] < 1:
        raise site.fail(f"`weight` has shape {weight.shape}; (o, {i}) is needed")
    site.real("weight", (weight.shape[0], i))
    out = Value("f32", weight.shape[:1])
    _bias(site, out)
    return out


def _bit_linear(kind: Kind) -> Callable[[_Site], Value]:
    def infer(site: _Site) -> Value:
        i, weight = site.vector(), site.tensors["weight"]
        if i > MAX_TAPS:
            raise site.fail(f"the input has {i} channels; a dot product has at most {MAX_TAPS}")
        if weight.ndim != 2 or weight.shape[0] < 1:
            raise site.fail(f"`weight` has shape {weight.shape}; (o, {packed_width(i)}) is needed")
        site.bits("weight", (weight.shape[0], packed_width(i)), i)
        return Value(kind, weight.shape[:1])

    return infer


def _spatial(site: _Site) -> None:
    """The spatial factor: nothing, `row` and `col`, `map`, or `full`."""
    roles = {role for role in ("row", "col", "map", "full") if role in site.tensors}
    if not roles:
        return
    c, h, w = site.image()
    if roles == {"row", "col"}:
        site.real("row", (h,))
        site.real("col", (w,))
    elif roles == {"map"}:
        site.real("map", (h, w))
    elif roles == {"full"}:
        site.real("full", (c, h, w))
    else:
        raise site.fail(f"the spatial tensors {sorted(roles)} must be `row` and `col`, or `map`, or `full`")


def _sign(site: _Site) -> Value:
    _spatial(site)
    value = site.inputs[0]
    if "threshold" in site.tensors:
        site.real("threshold", value.shape[:1], infinite=True)
    if "flip" in site.tensors:
        flip = site.tensors["flip"]
        if flip.dtype != np.uint8 or flip.shape != value.shape[:1] or bool((flip > 1).any()):
            raise site.fail(f"`flip` must be U8 0 or 1 of shape {value.shape[:1]}")
    return Value("bits", value.shape)


def _affine(site: _Site) -> Value:
    _spatial(site)
    value = site.inputs[0]
    for role in ("mult", "add"):
        if role in site.tensors:
            site.real(role, value.shape[:1])
    return Value("f32", value.shape)


def _prelu(site: _Site) -> Value:
    value = site.inputs[0]
    one = site.tensors["slope"].shape == (1,)
    site.real("slope", (1,) if one else value.shape[:1])
    return value


def _hardtanh(site: _Site) -> Value:
    low, high = site.attrs["min"], site.attrs["max"]
    if not (_is_float32(low) and _is_float32(high)) or low > high:
        raise site.fail(f"`min` (={_short(low)}) and `max` (={_short(high)}) must be numbers, min <= max")
    return site.inputs[0]


def _same(site: _Site) -> Value:
    return site.inputs[0]


def _add(site: _Site) -> Value:
    a, b = site.inputs
    if a.shape != b.shape:
        raise site.fail(f"the inputs have shapes {a.shape} and {b.shape}; equal ones are needed")
    return a


def _mul(site: _Site) -> Value:
    a, b = site.inputs
    if b.shape not in (a.shape, (1, *a.shape[1:])):
        raise site.fail(f"the inputs have shapes {a.shape} and {b.shape}; equal, or one channel, is needed")
    return Value("f32", a.shape)


def _softmax(site: _Site) -> Value:
    site.vector()
    return site.inputs[0]


def _flatten(site: _Site) -> Value:
    return Value("f32", (site.inputs[0].elements,))


def _pool(site: _Site) -> Value:
    c, h, w = site.image()
    kernel, stride, padding = site.pair("kernel", 1), site.pair("stride", 1), site.pair("padding", 0)
    ceil_mode = site.flag("ceil_mode")
    if "count_include_pad" in site.attrs:
        site.flag("count_include_pad")
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise site.fail(f"`padding` (={padding}) must be at most half of `kernel` (={kernel})")
    out = [pooled_size(n, kernel[i], stride[i], padding[i], ceil_mode) for i, n in enumerate((h, w))]
    if min(out) < 1 or any(n + 2 * p < k for n, p, k in zip((h, w), padding, kernel, strict=True)):
        raise site.fail(f"a {kernel[0]}x{kernel[1]} window does not fit the {h}x{w} input")
    return Value("f32", (c, out[0], out[1]))


def _global_avg_pool(site: _Site) -> Value:
    return Value("f32", (site.image()[0], 1, 1))


def _abs_mean(site: _Site) -> Value:
    return Value("f32", (1, *site.inputs[0].shape[1:]))


def _box_filter(site: _Site) -> Value:
    c, _, _ = site.image()
    return Value("f32", (c, *_window(site, site.pair("kernel", 1))))


def _pad(site: _Site) -> Value:
    c, h, w = site.image()
    edges, value = site.attrs["padding"], site.attrs["value"]
    if (
        not isinstance(edges, list | tuple)
        or len(edges) != 6
        or not all(type(e) is int and 0 <= e <= MAX_EXTENT for e in edges)
    ):
        raise site.fail(f"`padding` (={_short(edges)}) must be six integers, before and after c, h and w")
    if not _is_float32(value):
        raise site.fail(f"`value` (={_short(value)}) must be a number")
    return Value("f32", (c + edges[0] + edges[1], h + edges[2] + edges[3], w + edges[4] + edges[5]))


def _float_of_bits(site: _Site) -> Value:
    return Value("f32", site.inputs[0].shape)


def _filter_work(site: _Site, out: Value) -> int:
    return filter_products(site.inputs[0], out.elements, site.tensors["weight"], site.attrs)


def filter_products(source: Value, outputs: int, weight: npt.NDArray[Any], attrs: Mapping[str, Any]) -> int:
    """Multiply-adds of a convolution or linear layer that makes so many `outputs`."""
    if len(source.shape) == 1:
        return source.elements * outputs
    fan = source.shape[0] // int(attrs["groups"])
    return outputs * fan * math.prod(window_of(weight))


def _window_work(site: _Site, out: Value) -> int:
    kernel = site.pair("kernel", 1)
    return out.elements * kernel[0] * kernel[1]


def _input_work(site: _Site, out: Value) -> int:
    return site.inputs[0].elements


_F: tuple[Kind, ...] = ("f32",)
_B: tuple[Kind, ...] = ("bits",)
_N: tuple[Kind, ...] = ("f32", "int")
_CONV = ("stride", "padding", "dilation", "groups")
_SPATIAL = ("row", "col", "map", "full")
_POOL = ("kernel", "stride", "padding", "ceil_mode")

OPS: dict[str, Rule] = {
    "conv2d": Rule((_F,), _conv2d, _CONV, ("weight",), ("bias",), _filter_work),
    "linear": Rule((_F,), _linear, (), ("weight",), ("bias",), _filter_work),
    "binary_conv2d": Rule((_B,), _bit_conv("int"), (*_CONV, "pad_value"), ("weight",), (), _filter_work),
    "binary_linear": Rule((_B,), _bit_linear("int"), (), ("weight",), (), _filter_work),
    "bitweight_conv2d": Rule((_F,), _bit_conv("f32"), _CONV, ("weight",), (), _filter_work),
    "bitweight_linear": Rule((_F,), _bit_linear("f32"), (), ("weight",), (), _filter_work),
    "sign": Rule((_N,), _sign, (), (), ("threshold", "flip", *_SPATIAL)),
    "affine": Rule((_N,), _affine, (), (), ("mult", "add", *_SPATIAL)),
    "relu": Rule((_F,), _same),
    "prelu": Rule((_F,), _prelu, (), ("slope",)),
    "hardtanh": Rule((_F,), _hardtanh, ("min", "max")),
    "add": Rule((_F, _F), _add),
    "mul": Rule((_N, _F), _mul),
    "softmax": Rule((_F,), _softmax),
    "flatten": Rule((_F,), _flatten),
    "max_pool2d": Rule((_F,), _pool, _POOL, work=_window_work),
    "avg_pool2d": Rule((_F,), _pool, (*_POOL, "count_include_pad"), work=_window_work),
    "global_avg_pool": Rule((_F,), _global_avg_pool, work=_input_work),
    "abs_mean": Rule((_F,), _abs_mean, work=_input_work),
    "box_filter": Rule((_F,), _box_filter, ("kernel", "stride", "padding", "dilation"), work=_window_work),
    "pad2d": Rule((_F,), _pad, ("padding", "value")),
    "signs": Rule((_B,), _float_of_bits),
}


def infer(
    op: str, where: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any], tensors: Mapping[str, Array]
) -> tuple[Value, int]:
    """Check one operation; returns the value it makes and its work (multiply-adds or elements touched)."""
    rule = OPS.get(op)
    if rule is None:
        raise ProgramError(f"{where}: operation {_short(op)} is unknown to format version 1")
    site = _Site(where, inputs, attrs, tensors)
    if len(inputs) != len(rule.inputs):
        raise site.fail(f"{len(inputs)} inputs given; {len(rule.inputs)} needed")
    for index, (value, kinds) in enumerate(zip(inputs, rule.inputs, strict=True)):
        if value.kind not in kinds:
            raise site.fail(f"input {index} is {value.kind}; {' or '.join(kinds)} is needed")
    if set(attrs) != set(rule.attrs):
        raise site.fail(f"attributes {_short(sorted(attrs))} given; {sorted(rule.attrs)} needed")
    missing = set(rule.required) - set(tensors)
    unknown = set(tensors) - set(rule.required) - set(rule.optional)
    if missing or unknown:
        roles = f"{[*rule.required]} needed, {[*rule.optional]} allowed"
        raise site.fail(f"tensors {_short(sorted(tensors))} given; {roles}")
    out = rule.infer(site)
    if any(not 1 <= n <= MAX_EXTENT for n in out.shape) or out.elements > MAX_ELEMENTS:
        raise site.fail(f"its output of shape {out.shape} is out of range")
    return out, rule.work(site, out)
