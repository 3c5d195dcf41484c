"""Small random programs that use every operation: what engines are tested with and files are fuzzed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.ops import ProgramError, Value, infer
from xnorpp.runtime.format.program import INPUT, Op, Program

Array = npt.NDArray[Any]


class Builder:
    """Builds a program one operation at a time; `emit` checks each and names its value and tensors."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.values: dict[str, Value] = {INPUT: Value("f32", shape)}
        self.ops: list[Op] = []
        self.tensors: dict[str, Array] = {}

    def emit(
        self,
        op: str,
        *inputs: str,
        attrs: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Array] | None = None,
    ) -> str:
        """Add an operation and return its value's name; after a `ProgramError` nothing has changed."""
        name = f"v{len(self.ops)}"
        given = tuple(self.values[value] for value in inputs)
        value, _ = infer(op, name, given, attrs or {}, tensors or {})
        names = {role: f"{name}.{role}" for role in tensors or {}}
        self.values[name] = value
        self.tensors.update({names[role]: tensor for role, tensor in (tensors or {}).items()})
        self.ops.append(Op(op, name, inputs, name, dict(attrs or {}), names))
        return name

    def program(self, output: str, **options: Any) -> Program:
        return Program(self.shape, tuple(self.ops), output, self.tensors, **options)


def random_program(seed: int, length: int = 12, largest: int = 40) -> Program:
    """A program of about `length` operations on an image of some pixels, with up to `largest` channels."""
    rng = np.random.default_rng(seed)
    c, h, w = int(rng.integers(1, 9)), int(rng.integers(1, 12)), int(rng.integers(1, 12))
    mean, std = rng.uniform(0, 1, c), rng.uniform(0.1, 1, c)
    builder = Builder((c, h, w))
    tail = INPUT
    older = [INPUT]
    while len(builder.ops) < length:
        makers = _ON_IMAGES if len(builder.values[tail].shape) == 3 else _ON_VECTORS
        maker = makers[int(rng.integers(len(makers)))]
        try:
            tail = maker(builder, rng, tail, older, largest)
        except ProgramError:
            continue  # a window that does not fit, shapes that do not match: draw again
        older.append(tail)
    if len(builder.values[tail].shape) == 1 and rng.random() < 0.3:
        tail = builder.emit("softmax", tail)
    return builder.program(tail, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def _real(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float16 if rng.random() < 0.15 else np.float32)


def _spatial(rng: np.random.Generator, value: Value) -> dict[str, Array]:
    if len(value.shape) != 3:
        return {}
    c, h, w = value.shape
    kinds: list[dict[str, Array]] = [
        {},
        {"row": _real(rng, h), "col": _real(rng, w)},
        {"map": _real(rng, h, w)},
        {"full": _real(rng, c, h, w)},
    ]
    return kinds[int(rng.integers(4))]


def _affine(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    value = builder.values[tail]
    tensors = _spatial(rng, value)
    if rng.random() < 0.7:
        tensors["mult"] = _real(rng, value.shape[0])
    if rng.random() < 0.7:
        tensors["add"] = _real(rng, value.shape[0])
    return builder.emit("affine", tail, tensors=tensors)


def _sign(builder: Builder, rng: np.random.Generator, tail: str) -> str:
    value = builder.values[tail]
    c = value.shape[0]
    tensors = _spatial(rng, value)
    if rng.random() < 0.7:
        threshold = (rng.standard_normal(c) * (4 if value.kind == "int" else 0.5)).astype(np.float32)
        if rng.random() < 0.3:
            threshold[int(rng.integers(c))] = np.inf if rng.random() < 0.5 else -np.inf
        tensors["threshold"] = threshold
    if rng.random() < 0.5:
        tensors["flip"] = rng.integers(0, 2, c).astype(np.uint8)
    return builder.emit("sign", tail, tensors=tensors)


def _geometry(rng: np.random.Generator, c: int) -> dict[str, Any]:
    divisors = [g for g in range(1, c + 1) if c % g == 0]
    return {
        "stride": rng.integers(1, 3, 2).tolist(),
        "padding": rng.integers(0, 3, 2).tolist(),
        "dilation": rng.integers(1, 3, 2).tolist(),
        "groups": divisors[int(rng.integers(len(divisors)))] if rng.random() < 0.4 else 1,
    }


def _conv_shape(rng: np.random.Generator, c: int, groups: int, largest: int) -> tuple[int, int, int, int]:
    kh, kw = rng.integers(1, 4, 2)
    return groups * int(rng.integers(1, max(1, largest // groups) + 1)), c // groups, int(kh), int(kw)


def _binary_conv(
    builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int
) -> str:
    c = builder.values[tail].shape[0]
    attrs = {**_geometry(rng, c), "pad_value": int(rng.integers(-1, 2))}
    weight = pack_conv_weight(rng.standard_normal(_conv_shape(rng, c, attrs["groups"], largest)))
    dot = builder.emit("binary_conv2d", _sign(builder, rng, tail), attrs=attrs, tensors={"weight": weight})
    if rng.random() < 0.3:
        return builder.emit("signs", _sign(builder, rng, dot))
    return _affine(builder, rng, dot, older, largest)


def _conv(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    c = builder.values[tail].shape[0]
    attrs = _geometry(rng, c)
    shape = _conv_shape(rng, c, attrs["groups"], largest)
    if rng.random() < 0.5:
        weight = pack_conv_weight(rng.standard_normal(shape))
        return builder.emit("bitweight_conv2d", tail, attrs=attrs, tensors={"weight": weight})
    tensors = {"weight": _real(rng, *shape)}
    if rng.random() < 0.5:
        tensors["bias"] = _real(rng, shape[0])
    return builder.emit("conv2d", tail, attrs=attrs, tensors=tensors)


def _linear(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    shape = (int(rng.integers(1, largest + 1)), builder.values[tail].shape[0])
    choice = int(rng.integers(3))
    if choice == 0:
        tensors = {"weight": _real(rng, *shape)}
        if rng.random() < 0.5:
            tensors["bias"] = _real(rng, shape[0])
        return builder.emit("linear", tail, tensors=tensors)
    packed = {"weight": pack_linear_weight(rng.standard_normal(shape))}
    if choice == 1:
        return builder.emit("bitweight_linear", tail, tensors=packed)
    dot = builder.emit("binary_linear", _sign(builder, rng, tail), tensors=packed)
    return _affine(builder, rng, dot, older, largest)


def _activation(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    choice = int(rng.integers(3))
    if choice == 0:
        return builder.emit("relu", tail)
    if choice == 1:
        slope = _real(rng, builder.values[tail].shape[0] if rng.random() < 0.7 else 1)
        return builder.emit("prelu", tail, tensors={"slope": slope})
    return builder.emit("hardtanh", tail, attrs={"min": -0.75, "max": 1.5})


def _join(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    fitting = [name for name in older if builder.values[name].shape == builder.values[tail].shape]
    other = fitting[int(rng.integers(len(fitting)))] if fitting else tail
    return builder.emit("add" if rng.random() < 0.7 else "mul", tail, other)


def _pool(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    kernel = rng.integers(1, 4, 2)
    attrs: dict[str, Any] = {
        "kernel": kernel.tolist(),
        "stride": rng.integers(1, 4, 2).tolist(),
        "padding": [int(rng.integers(0, k // 2 + 1)) for k in kernel],
        "ceil_mode": bool(rng.random() < 0.5),
    }
    if rng.random() < 0.5:
        return builder.emit("max_pool2d", tail, attrs=attrs)
    return builder.emit("avg_pool2d", tail, attrs={**attrs, "count_include_pad": bool(rng.random() < 0.5)})


def _input_scale(
    builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int
) -> str:
    """XNOR-Net's K: the sign's convolution times the box-filtered mean of magnitudes."""
    c = builder.values[tail].shape[0]
    attrs = {**_geometry(rng, c), "groups": 1}
    shape = _conv_shape(rng, c, 1, largest)
    window = {key: attrs[key] for key in ("stride", "padding", "dilation")}
    mean = builder.emit("abs_mean", tail)
    k = builder.emit("box_filter", mean, attrs={"kernel": list(shape[2:]), **window})
    weight = {"weight": pack_conv_weight(rng.standard_normal(shape))}
    bits = _sign(builder, rng, tail)
    dot = builder.emit("binary_conv2d", bits, attrs={**attrs, "pad_value": 0}, tensors=weight)
    return builder.emit("mul", dot, k)


def _pad(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    attrs = {"padding": rng.integers(0, 3, 6).tolist(), "value": float(rng.integers(-1, 2))}
    return builder.emit("pad2d", tail, attrs=attrs)


def _flatten(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    return builder.emit("flatten", tail)


def _global(builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int) -> str:
    return builder.emit("global_avg_pool", tail)


def _vector_scale(
    builder: Builder, rng: np.random.Generator, tail: str, older: list[str], largest: int
) -> str:
    return builder.emit("mul", tail, builder.emit("abs_mean", tail))


Maker = Callable[[Builder, np.random.Generator, str, list[str], int], str]

_ON_IMAGES: tuple[Maker, ...] = (
    *(_binary_conv, _binary_conv, _binary_conv, _conv, _affine, _activation, _join, _join),
    *(_pool, _input_scale, _pad, _flatten, _global),
)
_ON_VECTORS: tuple[Maker, ...] = (_linear, _linear, _affine, _activation, _join, _vector_scale)


def random_program_2(seed: int, length: int = 10) -> Program:
    """A program of about `length` operations of set 2 on values of any rank."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 25)), int(rng.integers(1, 7)), int(rng.integers(1, 7)))
    builder = Builder(shape)
    tail = builder.emit("relu", INPUT)
    while len(builder.ops) < length:
        name = _SET_2[int(rng.integers(len(_SET_2)))]
        try:
            tail = _of_set_2(builder, rng, tail, name)
        except ProgramError:
            continue
        tail = builder.emit("hardtanh", tail, attrs={"min": -3.0, "max": 3.0})
    return builder.program(tail)


_CURVES = ("sigmoid", "silu", "tanh", "elu", "softplus", "mish", "gelu", "gelu_tanh", "hardswish", "exp")
_SET_2 = (
    *("curve", "curve", "spread", "spread", "offset", "reduce", "norm", "softmax", "log_softmax", "permute"),
    *("reshape", "slice", "concat", "matmul", "attention"),
)


def _of_set_2(builder: Builder, rng: np.random.Generator, tail: str, name: str) -> str:
    shape = builder.values[tail].shape
    rank = len(shape)
    axis = int(rng.integers(rank))

    def one_of(*names: str) -> str:
        return names[int(rng.integers(len(names)))]

    def some_axes() -> list[int]:
        return sorted({axis, int(rng.integers(rank))})

    if name == "curve":
        curve = one_of(*_CURVES)
        return builder.emit(curve, tail, attrs={"alpha": 0.8} if curve == "elu" else {})
    if name == "spread":
        small = builder.emit("reduce", tail, attrs={"function": one_of("mean", "max"), "axes": some_axes()})
        function = one_of("add", "sub", "mul", "div")
        if function == "div":
            small = builder.emit("exp", small)
        pair = (small, tail) if function != "div" and rng.random() < 0.4 else (tail, small)
        attrs = {"broadcast": True} if function in ("add", "mul") else {}
        return builder.emit(function, *pair, attrs=attrs)
    if name == "offset":
        sizes = [n if rng.random() < 0.6 else 1 for n in shape]
        return builder.emit("offset", tail, tensors={"value": _real(rng, *sizes)})
    if name == "reduce":
        function = one_of("mean", "sum", "max", "min", "l2")
        return builder.emit("reduce", tail, attrs={"function": function, "axes": [axis]})
    if name == "norm":
        groups = [g for g in range(1, shape[0] + 1) if shape[0] % g == 0]
        attrs: dict[str, Any] = {"groups": groups[int(rng.integers(len(groups)))], "eps": 0.1}
        attrs |= {"pixels": bool(rng.random() < 0.5), "centre": bool(rng.random() < 0.5)}
        return builder.emit("norm", tail, attrs=attrs)
    if name in ("softmax", "log_softmax"):
        return builder.emit(name, tail, attrs={"axis": axis})
    if name == "permute":
        return builder.emit("permute", tail, attrs={"axes": rng.permutation(rank).tolist()})
    if name == "reshape":
        flat = int(np.prod(shape))
        sizes = [n for n in range(1, flat + 1) if flat % n == 0]
        first = sizes[int(rng.integers(len(sizes)))]
        return builder.emit("reshape", tail, attrs={"shape": [first, flat // first]})
    if name == "slice":
        attrs = {"start": [0] * rank, "stop": [None] * rank, "step": [1] * rank}
        attrs["start"][axis], attrs["step"][axis] = int(rng.integers(shape[axis])), int(rng.integers(1, 3))
        return builder.emit("slice", tail, attrs=attrs)
    if name == "concat":
        if builder.values[tail].elements > 4000:
            raise ProgramError("large enough")
        return builder.emit("concat", tail, tail, attrs={"axis": axis})
    if name == "matmul":
        order = [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else [0]
        return builder.emit("matmul", tail, builder.emit("permute", tail, attrs={"axes": order}))
    heads = [h for h in range(1, shape[0] + 1) if shape[0] % h == 0]
    attrs = {"heads": heads[int(rng.integers(len(heads)))], "scale": 0.5}
    return builder.emit("attention", tail, tail, tail, attrs=attrs)
