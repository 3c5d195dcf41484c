"""Programs of every operation of set 2, with tails of channels and odd sizes, for tests on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cuda_host.cases import Writer, window

from xnorpp.runtime.format.ops import operations
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference import ROWS
from xnorpp.runtime.reference.curves import CURVES

Case = tuple[Program, np.ndarray]
Make = Callable[[], Case]

CASES: dict[str, Make] = {}  # the same bits as on the CPU
SUMS: dict[str, Make] = {}  # sums of products in another order


def _of(cases: dict[str, Make], name: str, make: Make) -> None:
    assert name not in cases
    cases[name] = make


WHOLE: list[tuple[tuple[int, int, int], tuple[int, int, int], dict[str, Any]]] = [
    ((64, 7, 9), (40, 1, 1), {}),
    ((17, 6, 5), (33, 1, 1), {"bias": False}),
    ((5, 9, 11), (7, 3, 3), {"padding": [1, 1], "stride": [2, 2]}),
    ((3, 12, 8), (65, 2, 5), {"padding": [0, 3], "stride": [1, 3], "dilation": [2, 1]}),
    ((300, 3, 3), (32, 1, 1), {"stride": [2, 1], "bias": False, "limit": 100}),
    ((40, 6, 7), (96, 1, 1), {}),
    ((48, 9, 7), (64, 1, 1), {"limit": 127, "steps": 40.0}),
    ((21, 5, 8), (35, 1, 1), {"limit": 127, "steps": 40.0, "bias": False}),
    ((6, 10, 9), (40, 3, 3), {"limit": 90, "steps": 30.0, "padding": [2, 1], "stride": [1, 2]}),
]


def whole_program(
    shape: tuple[int, int, int], filters: tuple[int, int, int], *, bias: bool = True, **attrs: Any
) -> Program:
    """PReLU, a convolution of whole numbers (o, kh, kw), and an affine."""
    rng = np.random.default_rng(0)
    o, kh, kw = filters
    tensors = {
        "w": rng.integers(-127, 128, (o, shape[0], kh, kw)).astype(np.int8),
        "w.scale": rng.uniform(0.001, 0.01, o).astype(np.float16),
        "bias": rng.standard_normal(o).astype(np.float32),
        "mult": rng.standard_normal(o).astype(np.float32),
    }
    most = int(np.abs(tensors["w"].astype(np.int64)).reshape(o, -1).sum(1).max())
    defaults = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "steps": 5000.0}
    given = {**defaults, "limit": min(32767, (2**31 - 1) // most), **attrs}
    roles = {"weight": "w", **({"bias": "bias"} if bias else {})}
    ops = (
        Op("prelu", "first", ("input",), "x", {}, {"slope": "slope"}),
        Op("int_conv2d", "conv", ("x",), "sum", given, roles),
        Op("affine", "scale", ("sum",), "out", {}, {"mult": "mult"}),
    )
    tensors["slope"] = np.full(1, 0.5, np.float32)
    if not bias:
        del tensors["bias"]
    return Program(shape, ops, "out", tensors, scales={"w": "w.scale"})


def _curve(name: str) -> Case:
    w = Writer((21, 9, 7), seed=1)
    source = w.op("affine", "input", mult=w.normal(21), add=w.normal(21))
    if name in ("log", "sqrt"):
        source = w.op("prelu", source, slope=np.full(1, -1, np.float32))
    program = w.program(w.op(name, source, attrs={"alpha": 0.7} if name == "elu" else {}))
    return program, 6 * w.normal(5, 21, 9, 7)


def _whole(shape: tuple[int, int, int], filters: tuple[int, int, int], attrs: dict[str, Any]) -> Case:
    x = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    x.reshape(-1)[:4] = 1e30, -1e30, np.float32(1e-40), 0.5 / 5000  # beyond the limit, and halfway
    return whole_program(shape, filters, **attrs), x


def _spread(name: str, swap: bool) -> Case:
    attrs = {"broadcast": True} if name in ("add", "mul") else {}
    w = Writer((20, 5, 3), seed=2)
    pooled = {"stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    total = w.op("relu", "input")
    for kernel, one in (([5, 3], False), ([1, 1], True), ([5, 3], True), ([5, 1], False), ([1, 3], True)):
        small = w.op("max_pool2d", "input", attrs={"kernel": kernel, **pooled})
        small = w.op("abs_mean", small) if one else small
        large = w.op("affine", "input", mult=w.normal(20))
        value = w.op(name, *((small, large) if swap else (large, small)), attrs=attrs)
        total = w.op("add", total, value)
    return w.program(w.op("offset", total, value=w.normal(20, 5, 1))), 3 + w.normal(4, 20, 5, 3)


def _offset(sizes: tuple[int, int, int]) -> Case:
    w = Writer((37, 5, 3), seed=8)
    value = w.op("offset", w.op("relu", "input"), value=w.normal(*sizes))
    return w.program(w.op("silu", value)), w.normal(3, 37, 5, 3)


def _permute(shape: tuple[int, int, int], axes: list[int], then: list[int]) -> Case:
    w = Writer(shape, seed=3)
    value = w.op("permute", w.op("relu", "input"), attrs={"axes": axes})
    return w.program(w.op("silu", w.op("reshape", value, attrs={"shape": then}))), w.normal(3, *shape)


def _moved(name: str, attrs: Mapping[str, Any], shape: tuple[int, int, int]) -> Case:
    w = Writer(shape, seed=4)
    value = w.op(name, w.op("affine", "input", mult=w.normal(shape[0])), attrs=dict(attrs))
    return w.program(w.op("relu", value)), w.normal(5, *shape)


def _resize(size: list[int] | None, scale: list[float] | None, mode: str, aligned: bool) -> Case:
    attrs = {"size": size, "scale": scale, "mode": mode, "align_corners": aligned}
    return _moved("upsample2d", attrs, (21, 6, 9))


def _sized(name: str, attrs: Mapping[str, Any]) -> Case:
    """An image with the size of another."""
    w = Writer((21, 9, 11), seed=13)
    pool = {"kernel": [2, 3], "stride": [2, 2], "padding": [0, 1], "ceil_mode": False}
    small = w.op("affine", w.op("max_pool2d", "input", attrs=pool), mult=w.normal(21))
    return w.program(w.op("relu", w.op(name, small, "input", attrs=dict(attrs)))), w.normal(3, 21, 9, 11)


def _reshaped() -> Case:
    """Rows and columns as tokens, and back."""
    w = Writer((21, 9, 11), seed=14)
    tokens = w.op("reshape_to", w.op("relu", "input"), "input", attrs={"shape": [21, -1]})
    turned = w.op("silu", w.op("permute", tokens, attrs={"axes": [1, 0]}))
    image = w.op("reshape_to", turned, "input", attrs={"shape": [[1, 0, 3, 1, 0], 3, [2, 0, 1, 1, 0], -1]})
    return w.program(w.op("sigmoid", image)), w.normal(3, 21, 9, 11)


def _mean(w: Writer, value: str) -> str:
    """Of all pixels, with the same bits in every engine."""
    return w.op("reduce", value, attrs={"function": "mean", "axes": [1, 2]})


def _joined() -> Case:
    w = Writer((24, 4, 5), seed=5)
    relu, token = w.op("relu", "input"), w.op("constant", "input", value=w.normal(24, 2, 5))
    rows = w.op("concat", relu, token, "input", attrs={"axis": 1})
    mean = w.op("expand", _mean(w, rows), attrs={"shape": [24, 10, 5]})
    joined = w.op("concat", rows, mean, attrs={"axis": 0})
    again = w.op("concat", joined, rows, w.op("relu", mean), attrs={"axis": 0})
    bits = w.op("sign", again, threshold=w.normal(96))
    pool = {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    pooled = w.op("max_pool2d", again, attrs=pool)
    return w.program(w.op("add", w.op("signs", bits), pooled)), w.normal(3, 24, 4, 5)


def _many_parts(axis: int) -> Case:
    """More parts than one launch takes."""
    w = Writer((7, 3, 5), seed=9)
    parts = [w.op("affine", "input", mult=w.normal(7)) for _ in range(7)]
    return w.program(w.op("concat", *parts, attrs={"axis": axis})), w.normal(3, 7, 3, 5)


def _reduce(function: str, axes: list[int]) -> Case:
    w = Writer((21, 5, 7), seed=4)
    attrs = {"function": function, "axes": axes}
    return w.program(w.op("reduce", w.op("relu", "input"), attrs=attrs)), w.normal(3, 21, 5, 7)


def _norm(groups: int, pixels: bool) -> Case:
    w = Writer((24, 9, 7), seed=5)
    attrs = {"groups": groups, "pixels": pixels, "centre": groups != 3, "eps": 1e-5}
    return w.program(w.op("norm", w.op("relu", "input"), attrs=attrs)), w.normal(3, 24, 9, 7)


def _soft(name: str, axis: int) -> Case:
    w = Writer((21, 5, 7), seed=6)
    return w.program(w.op(name, w.op("relu", "input"), attrs={"axis": axis})), 4 * w.normal(3, 21, 5, 7)


def _after_bits(curve: str) -> Case:
    """A binary convolution whose epilogue ends in an operation of set 2, and the next one's signs."""
    w = Writer((70, 7, 5), seed=10)
    dot = w.op(
        "binary_conv2d", w.bits("input", 70), attrs=window(1, 1, pad_value=-1), weight=w.signs(75, 70, 3, 3)
    )
    value = w.op(curve, w.op("affine", dot, mult=w.normal(75) / 20, add=w.normal(75)))
    gate = w.op("sigmoid", _mean(w, value))
    value = w.op("mul", value, gate, attrs={"broadcast": True})
    dot = w.op(
        "binary_conv2d", w.bits(value, 75), attrs=window(2, 1, pad_value=0), weight=w.signs(33, 75, 3, 3)
    )
    return w.program(w.op("affine", dot, mult=w.normal(33))), w.normal(3, 70, 7, 5)


def _attention(heads: int, tokens: int) -> Case:
    w = Writer((24, 1, tokens), seed=7)
    scaled = [w.op("affine", "input", mult=w.normal(24)) for _ in range(3)]
    flat = [w.op("reshape", value, attrs={"shape": [24, tokens]}) for value in scaled]
    value = w.op("attention", *flat, attrs={"heads": heads, "scale": 0.4})
    turned = w.op("permute", value, attrs={"axes": [1, 0]})
    return w.program(w.op("matmul", value, turned)), w.normal(4, 24, 1, tokens)


def _matmul(shape: tuple[int, ...]) -> Case:
    total = int(np.prod(shape))
    w = Writer((total, 1, 1), seed=11)
    value = w.op("reshape", w.op("affine", "input", mult=w.normal(total)), attrs={"shape": list(shape)})
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = w.op("permute", value, attrs={"axes": order})
    return w.program(w.op("relu", w.op("matmul", value, turned))), w.normal(3, total, 1, 1)


_WIDE = (76, 6, 9)
_MOVES: dict[str, tuple[str, dict[str, Any], tuple[int, int, int]]] = {
    "slice": ("slice", {"start": [1, 0, 2], "stop": [-1, None, None], "step": [2, 1, 1]}, _WIDE),
    "flip of rows": ("flip", {"axis": 1}, _WIDE),
    "flip of columns": ("flip", {"axis": 2}, _WIDE),
    "flip of channels": ("flip", {"axis": 0}, _WIDE),
    "expand": ("expand", {"shape": [33, 5, 3]}, (1, 5, 1)),
    "pixel_shuffle": ("pixel_shuffle", {"factor": 2}, _WIDE),
    "pixel_unshuffle": ("pixel_unshuffle", {"factor": 3}, _WIDE),
    "channel_shuffle": ("channel_shuffle", {"groups": 4}, _WIDE),
    **{
        f"edge_pad2d {mode}": ("edge_pad2d", {"padding": [2, 0, 1, 3], "mode": mode}, (19, 5, 7))
        for mode in ("reflect", "replicate", "circular")
    },
    "adaptive_avg_pool2d": ("adaptive_avg_pool2d", {"size": [4, 2]}, _WIDE),
    "adaptive_max_pool2d": ("adaptive_max_pool2d", {"size": [5, 7]}, _WIDE),
    "dilated_max_pool2d": (
        "dilated_max_pool2d",
        {"kernel": [2, 3], "stride": [2, 1], "padding": [1, 1], "dilation": [2, 1], "ceil_mode": True},
        _WIDE,
    ),
}


def _as_listed(name: str) -> Case:
    """An operation with the example of its row, its inputs values in memory, and something after it."""
    rule, example = operations()[name], ROWS[name].example or {}
    w = Writer((20, 6, 9), seed=12)
    scaled = [w.op("affine", "input", mult=w.normal(20)) for _ in rule.inputs]
    inputs = [value if "f32" in kinds else w.bits(value, 20) for value, kinds in zip(scaled, rule.inputs)]
    attrs = {key: value for key, value in example.items() if key not in (*rule.required, *rule.optional)}
    tensors = {key: value for key, value in example.items() if key not in attrs}
    return w.program(w.op("relu", w.op(name, *inputs, attrs=attrs, **tensors))), w.normal(3, 20, 6, 9)


def _fill() -> None:
    for name in CURVES:
        _of(CASES, name, lambda name=name: _curve(name))
    for name in ("add", "sub", "mul", "div"):
        for swap in (False, True):
            _of(CASES, f"{name} {'swapped ' * swap}spread", lambda name=name, swap=swap: _spread(name, swap))
    for sizes in ((37, 5, 3), (37, 1, 1), (1, 5, 1), (1, 1, 3)):
        _of(CASES, f"offset {sizes}", lambda sizes=sizes: _offset(sizes))
    for shape, axes, then in (
        ((12, 7, 3), [2, 0, 1], [4, 9, 7]), ((35, 3, 5), [1, 2, 0], [15, 35]),
        ((9, 4, 7), [0, 2, 1], [2, 9, 7, 2]),
    ):  # fmt: skip
        _of(CASES, f"permute {axes}", lambda shape=shape, axes=axes, then=then: _permute(shape, axes, then))
    for name, move in _MOVES.items():
        _of(CASES, name, lambda move=move: _moved(*move))
    for resize in (
        (None, [1.7, 2.0], "bilinear", False), ([11, 4], None, "bilinear", True),
        ([1, 8], None, "bilinear", True), (None, [2.0, 1.4], "bicubic", False),
        ([3, 11], None, "bicubic", True),
        (None, [1.7, 0.6], "nearest", False), ([13, 5], None, "nearest-exact", False),
    ):  # fmt: skip
        _of(CASES, f"upsample2d {resize}", lambda resize=resize: _resize(*resize))
    same = [[0, 1, 1, 0], [1, 2, 2, -1]]
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "mean", "max"):
        attrs = {"size": same, "mode": mode, "align_corners": mode == "bilinear"}
        _of(CASES, f"resize2d {mode}", lambda attrs=attrs: _sized("resize2d", attrs))
    for mode, place in (("constant", "half"), ("reflect", "half_up"), ("replicate", "all"), ("circular", 1)):
        fit = {"size": [[3, 4, 2, 0], None], "before": [place, 0], "mode": mode, "value": 0.5}
        _of(CASES, f"fit2d {mode}", lambda fit=fit: _sized("fit2d", fit))
    _of(CASES, "reshape_to", _reshaped)
    for form in WHOLE:
        _of(CASES, f"int_conv2d {form[0]}", lambda form=form: _whole(*form))
    _of(CASES, "joined and repeated", _joined)
    for axis in (0, 1, 2):
        _of(CASES, f"seven parts along {axis}", lambda axis=axis: _many_parts(axis))
    for function in ("mean", "sum", "max", "min", "l2"):
        for axes in ([1, 2], [0], [2], [0, 1, 2]):
            _of(CASES, f"reduce {function} {axes}", lambda f=function, axes=axes: _reduce(f, axes))
    for groups in (1, 3, 24):
        for pixels in (False, True):
            _of(CASES, f"norm {groups} {pixels}", lambda g=groups, pixels=pixels: _norm(g, pixels))
    for name in ("softmax", "log_softmax"):
        for axis in (0, 1, 2):
            _of(CASES, f"{name} {axis}", lambda name=name, axis=axis: _soft(name, axis))
    for name in ("silu", "gelu", "hardswish"):
        _of(CASES, f"{name} after bits", lambda name=name: _after_bits(name))
    for heads, tokens in ((3, 19), (1, 33), (24, 2)):
        _of(SUMS, f"attention {heads} {tokens}", lambda h=heads, t=tokens: _attention(h, t))
    for shape in ((5, 7), (33, 17), (3, 5, 7), (2, 3, 4, 5)):
        _of(SUMS, f"matmul {shape}", lambda shape=shape: _matmul(shape))


def _has_case() -> set[str]:
    return {op.op for make in (*CASES.values(), *SUMS.values()) for op in make()[0].ops}


_fill()
# Operations of new sets: those without a case, and those whose row has an example.
NEW = {name for name, rule in operations().items() if rule.since > 1}
LISTED = sorted(NEW - _has_case() | {name for name in NEW if ROWS[name].example is not None})
for _name in LISTED:
    _of(CASES, f"{_name} as listed", lambda name=_name: _as_listed(name))
