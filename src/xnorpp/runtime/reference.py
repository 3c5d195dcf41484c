"""Every operation in plain numpy: the definition that all engines are tested against.

Values carry the batch axis in front: `f32` is float32, `int` is int32, and `bits` are int8 -1 or +1 (packing
them is an engine's affair). Real arithmetic is IEEE float32: each operation below rounds once a step, an
affine one's multiply and add together are one step, and engines may sum in another order. Integer dot
products are exact everywhere.

NaN and infinities: a NaN goes through every real operation, max pooling included, and is -1 to `sign`
(`NaN > t` and `NaN < t` are both false). Infinities follow IEEE arithmetic. A tap outside the picture adds
nothing, whatever its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.ops import pooled_size, window_size
from xnorpp.runtime.format.preprocess import normalise as normalise_images
from xnorpp.runtime.format.program import INPUT, Op, Program

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


def check_input(program: Program, x: Array) -> Array:
    """A batch this program takes: uint8 `(n, h, w, c)` or float32 `(n, c, h, w)`; the rest is an error."""
    c, *rest = program.input_shape
    x = np.asarray(x)
    if x.dtype == np.uint8:
        wanted, axes = (*rest, c), "(n, h, w, c) uint8" if rest else "(n, c) uint8"
    elif x.dtype.kind == "f":
        wanted, axes = (c, *rest), "(n, c, h, w) float32" if rest else "(n, c) float32"
        x = x.astype(np.float32, copy=False)
    else:
        raise ValueError(f"`x` has dtype {x.dtype}; uint8 pictures or normalised float32 are needed")
    if x.shape[1:] != wanted and not _fits(program, x):
        free = ", of which height and width may be others," if program.variable else ""
        raise ValueError(
            f"`x` has shape {x.shape}; {axes} with {wanted}{free} after the batch axis is needed"
        )
    return x


def _fits(program: Program, x: Array) -> bool:
    """Whether a batch differs from the program's input in free axes alone."""
    if x.ndim != len(program.input_shape) + 1 or 0 in x.shape[1:]:
        return False
    sizes = enumerate(zip(shape_of_batch(x), program.input_shape, strict=True))
    return all(n == m or axis in program.free_axes for axis, (n, m) in sizes)


def shape_of_batch(x: Array) -> tuple[int, ...]:
    """The shape of one input of a batch that was checked: channels first, without the batch axis."""
    return (x.shape[-1], *x.shape[1:-1]) if x.dtype == np.uint8 else x.shape[1:]


def normalise(program: Program, x: Array) -> F32:
    """uint8 `(n, h, w, c)` -> `(x/255 - mean)/std` as float32 `(n, c, h, w)`; float32 passes unchanged."""
    if x.dtype != np.uint8:
        return x.astype(np.float32, copy=False)
    return normalise_images(x, program.mean, program.std)


def byte_values(program: Program) -> F32:
    """What `normalise` makes of each byte: `(256, c)`, or `(256, 1)` where all channels are alike."""
    one = len(set(program.mean)) == len(set(program.std)) == 1
    mean, std = (np.asarray(row[:1] if one else row, np.float32) for row in (program.mean, program.std))
    table: F32 = (np.arange(256, dtype=np.float32) / np.float32(255))[:, None] - mean
    table /= std
    return table


def run(program: Program, x: Array, keep: Iterable[str] | None = None) -> Any:
    """The output for a batch, a dict by name where there are several; with `keep` (value names), the output
    and a dict of those values."""
    wanted = set(keep) if keep is not None else set()
    last = {name: index for index, op in enumerate(program.ops) for name in op.inputs}
    given = check_input(program, x)
    if program.variable:
        program = program.for_input(shape_of_batch(given))
    outputs = program.outputs
    values: dict[str, Array] = {INPUT: normalise(program, given)}
    kept = {INPUT: values[INPUT]} if INPUT in wanted else {}
    for index, op in enumerate(program.ops):
        if "byte_weight" in op.tensors and given.dtype == np.uint8:
            values[op.output] = _byte_conv(program, op, given)
        else:
            values[op.output] = apply(program, op, *(values[name] for name in op.inputs))
        if op.output in wanted:
            kept[op.output] = values[op.output]
        for name in set(op.inputs):
            if last[name] == index and name not in outputs.values():
                del values[name]
    found = {name: values[value] for name, value in outputs.items()}
    result = found if len(found) > 1 else values[program.output]
    return (result, kept) if keep is not None else result


def apply(program: Program, op: Op, *inputs: Array) -> Array:
    """One operation on a batch of its inputs."""
    with np.errstate(all="ignore"):  # infinities and NaN are values here, not accidents
        return APPLY[op.op](program, op, *inputs)


def _columns(x: Array, kernel: Any, stride: Any, dilation: Any, out: tuple[int, int]) -> Array:
    """Windows of a padded picture `(c, h, w)` as columns `(c, kh*kw, oh*ow)`."""
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    oh, ow = out
    taps = [
        x[:, i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    return np.stack(taps, axis=1).reshape(x.shape[0], kh * kw, oh * ow)


def _pad_picture(x: Array, padding: Any, value: Any) -> Array:
    ph, pw = padding
    edges = [(0, 0)] * (x.ndim - 2) + [(ph, ph), (pw, pw)]
    return np.pad(x, edges, constant_values=value) if ph or pw else x


def convolve(op: Op, x: Array, weight: Array, pad_value: int, dtype: Any = np.float32) -> Array:
    """`out[n,o,y,x] = sum over c,i,j of in[n,c,y*s+i*d-p,...] * weight[o,c,i,j]`, in float32 or `dtype`."""
    stride, padding, dilation, groups = (op.attrs[k] for k in ("stride", "padding", "dilation", "groups"))
    o, fan, *kernel = weight.shape
    sizes = enumerate(x.shape[2:])
    out = tuple(window_size(n, kernel[i], stride[i], padding[i], dilation[i]) for i, n in sizes)
    result = np.empty((x.shape[0], o, *out), dtype)
    rows: Array = weight.astype(dtype).reshape(groups, o // groups, -1)
    for n, picture in enumerate(_pad_picture(x, padding, pad_value)):
        columns = _columns(picture.astype(dtype), kernel, stride, dilation, (out[0], out[1]))
        blocks = columns.reshape(groups, fan * kernel[0] * kernel[1], -1)
        result[n] = np.matmul(rows, blocks).reshape(o, *out)
    return result


def _with_bias(program: Program, op: Op, y: Array) -> Array:
    bias = program.real(op, "bias")
    return y if bias is None else y + per_channel(bias, y.ndim)


def per_channel(vector: Array, ndim: int) -> Array:
    """`(c,)` shaped to broadcast along axis 1 of an `ndim`-axis batch."""
    return vector.reshape(1, -1, *[1] * (ndim - 2))


def _conv2d(program: Program, op: Op, x: Array) -> Array:
    weight = program.real(op, "weight")
    assert weight is not None
    return _with_bias(program, op, convolve(op, x, weight, 0))


def _byte_conv(program: Program, op: Op, x: Array) -> Array:
    """A convolution on the bytes of an image with whole-numbered filters (docs/format.md): the sum is exact,
    then its conversion, its product with the scale, and the bias are rounded to float32 in turn."""
    weight, mean, rest = (program.stored(op, f"byte_{role}") for role in ("weight", "mean", "rest"))
    scale, bias = program.real(op, "byte_scale"), program.real(op, "bias")
    assert weight is not None
    assert mean is not None
    assert rest is not None
    assert scale is not None
    # The mean is a further channel whose bytes are all 255 inside the image.
    filters = np.concatenate([weight, mean[:, None]], axis=1).astype(np.float64)
    images = np.moveaxis(x, 3, 1).astype(np.float64)
    images = np.concatenate([images, np.full_like(images[:, :1], 255.0)], axis=1)
    sums = convolve(op, images, filters, 0, np.float64) + per_channel(rest, 4)
    y = sums.astype(np.float32) * per_channel(scale, 4)
    return y if bias is None else y + per_channel(bias, 4)


def _linear(program: Program, op: Op, x: Array) -> Array:
    weight = program.real(op, "weight")
    assert weight is not None
    return _with_bias(program, op, x @ weight.T)


def _signs(program: Program, op: Op, x: Array) -> Array:
    """The one-bit weight of an operation as int8 -1 and +1."""
    packed = program.tensors[op.tensors["weight"]]
    if packed.ndim == 2:
        return unpack_bits(packed, x.shape[1])
    return unpack_conv_weight(packed, x.shape[1] // op.attrs["groups"])


def _binary_conv2d(program: Program, op: Op, x: Array) -> Array:
    # Sums of -1, 0 and +1 below 2**24 are exact in float32 in any order: the float product is the dot.
    return convolve(op, x, _signs(program, op, x), op.attrs["pad_value"]).astype(np.int32)


def _binary_linear(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(x.astype(np.float32) @ _signs(program, op, x).astype(np.float32).T).astype(np.int32)


def _bitweight_conv2d(program: Program, op: Op, x: Array) -> Array:
    return convolve(op, x, _signs(program, op, x), 0)


def _bitweight_linear(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(x @ _signs(program, op, x).astype(np.float32).T)


def spatial_factor(program: Program, op: Op) -> F32 | None:
    """The spatial factor, `(h, w)` or `(c, h, w)`: `row[h]*col[w]` in float32, or `map`, or `full`."""
    row, col = program.real(op, "row"), program.real(op, "col")
    if row is not None and col is not None:
        return row[:, None] * col[None, :]
    tensor = program.real(op, "map")
    return program.real(op, "full") if tensor is None else tensor


def _scaled(program: Program, op: Op, x: Array) -> Array:
    factor = spatial_factor(program, op)
    x = x.astype(np.float32, copy=False)
    return x if factor is None else x * factor


def _sign(program: Program, op: Op, x: Array) -> Array:
    v = _scaled(program, op, x)
    threshold, flip = program.real(op, "threshold"), program.stored(op, "flip")
    t = np.float32(0) if threshold is None else per_channel(threshold, v.ndim)
    positive = v > t
    if flip is not None:
        positive = np.where(per_channel(flip, v.ndim) != 0, v < t, positive)
    return np.asarray(np.where(positive, np.int8(1), np.int8(-1)))


def multiply_add(x: Array, mult: Array, add: Array) -> Array:
    """A fused multiply-add, `x*mult + add` rounded once, as batch norm does it in PyTorch.

    In float64 the product is exact and the sum is rounded to odd: where it lost something, its last bit is 1.
    So it is the middle of two float32 numbers only where that is exact, and rounding it again does no harm.
    """
    product, summand = x.astype(np.float64) * mult.astype(np.float64), add.astype(np.float64)
    total = product + summand
    back = total - product
    lost = (product - (total - back)) + (summand - back)  # exactly what the sum lost; NaN at infinities
    even = np.isfinite(lost) & (lost != 0) & (total.view(np.int64) & 1 == 0)
    return np.where(even, np.nextafter(total, np.copysign(np.inf, lost)), total).astype(np.float32)


def affine(x: Array, mult: F32 | None, add: F32 | None) -> Array:
    """`x*mult[c] + add[c]`, absent parts left out."""
    if mult is None:
        return x if add is None else x + per_channel(add, x.ndim)
    if add is None:
        return x * per_channel(mult, x.ndim)
    return multiply_add(x, per_channel(mult, x.ndim), per_channel(add, x.ndim))


def _affine(program: Program, op: Op, x: Array) -> Array:
    return affine(_scaled(program, op, x), program.real(op, "mult"), program.real(op, "add"))


def _prelu(program: Program, op: Op, x: Array) -> Array:
    slope = program.real(op, "slope")
    assert slope is not None
    return np.where(x > 0, x, x * per_channel(slope, x.ndim))


def _softmax(program: Program, op: Op, x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _pool_columns(op: Op, x: Array, fill: float) -> Array:
    """Windows `(n, c, kh*kw, oh*ow)`; the padding and what `ceil_mode` reads beyond it are `fill`."""
    kernel, stride, padding = op.attrs["kernel"], op.attrs["stride"], op.attrs["padding"]
    n, c, h, w = x.shape
    oh, ow = (
        pooled_size(s, kernel[i], stride[i], padding[i], op.attrs["ceil_mode"]) for i, s in enumerate((h, w))
    )
    needed = [(o - 1) * stride[i] + kernel[i] for i, o in enumerate((oh, ow))]
    edges = [(p, max(p, m - s - p)) for p, m, s in zip(padding, needed, (h, w), strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *edges], constant_values=fill)
    flat = padded.reshape(n * c, *padded.shape[2:])
    return _columns(flat, kernel, stride, (1, 1), (oh, ow)).reshape(n, c, kernel[0] * kernel[1], oh, ow)


def _max_pool2d(program: Program, op: Op, x: Array) -> Array:
    return np.asarray(_pool_columns(op, x, -np.inf).max(axis=2))


def _avg_pool2d(program: Program, op: Op, x: Array) -> Array:
    """Sum over the window / its size. The size counts the padding with `count_include_pad`, never more."""
    total = _pool_columns(op, x, 0.0).sum(axis=2, dtype=np.float32)
    inside = np.ones((1, 1, *x.shape[2:]), np.float32)
    if op.attrs["count_include_pad"]:
        inside = _pad_picture(inside, op.attrs["padding"], 1.0)
        plain = Op(op.op, op.name, op.inputs, op.output, {**op.attrs, "padding": [0, 0]})
        count = _pool_columns(plain, inside, 0.0).sum(axis=2)[..., : total.shape[2], : total.shape[3]]
    else:
        count = _pool_columns(op, inside, 0.0).sum(axis=2)
    return np.asarray(total / count.astype(np.float32))


def _abs_mean(program: Program, op: Op, x: Array) -> Array:
    """Mean of |x| over the channels, summed in float64 and rounded once: the same in whatever order."""
    return np.asarray(np.abs(x).mean(axis=1, keepdims=True, dtype=np.float64), np.float32)


def _box_filter(program: Program, op: Op, x: Array) -> Array:
    """Mean over the window with zeros outside: divisor `kh*kw` everywhere (XNOR-Net's filter k).

    Summed in float64 and rounded once, as `_abs_mean`.
    """
    kernel, stride, padding, dilation = (op.attrs[k] for k in ("kernel", "stride", "padding", "dilation"))
    out = [window_size(n, kernel[i], stride[i], padding[i], dilation[i]) for i, n in enumerate(x.shape[2:])]
    padded = _pad_picture(x, padding, 0.0)
    padded = padded.reshape(math.prod(x.shape[:2]), *padded.shape[2:])
    columns = _columns(padded, kernel, stride, dilation, (out[0], out[1]))
    mean = columns.sum(axis=1, dtype=np.float64) / (kernel[0] * kernel[1])
    return np.asarray(mean.reshape(*x.shape[:2], *out).astype(np.float32))


def _pad2d(program: Program, op: Op, x: Array) -> Array:
    front, back, top, bottom, left, right = op.attrs["padding"]
    edges = [(0, 0), (front, back), (top, bottom), (left, right)]
    return np.pad(x, edges, constant_values=np.float32(op.attrs["value"]))


APPLY: dict[str, Callable[..., Array]] = {
    "conv2d": _conv2d,
    "linear": _linear,
    "binary_conv2d": _binary_conv2d,
    "binary_linear": _binary_linear,
    "bitweight_conv2d": _bitweight_conv2d,
    "bitweight_linear": _bitweight_linear,
    "sign": _sign,
    "affine": _affine,
    "relu": lambda program, op, x: np.maximum(x, np.float32(0)),
    "prelu": _prelu,
    "hardtanh": lambda program, op, x: np.clip(x, np.float32(op.attrs["min"]), np.float32(op.attrs["max"])),
    "add": lambda program, op, a, b: a + b,
    "mul": lambda program, op, a, b: a.astype(np.float32, copy=False) * b,
    "softmax": _softmax,
    "flatten": lambda program, op, x: x.reshape(x.shape[0], math.prod(x.shape[1:])),
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "global_avg_pool": lambda program, op, x: x.mean(axis=(2, 3), keepdims=True, dtype=np.float32),
    "abs_mean": _abs_mean,
    "box_filter": _box_filter,
    "pad2d": _pad2d,
    "signs": lambda program, op, x: x.astype(np.float32),
}
