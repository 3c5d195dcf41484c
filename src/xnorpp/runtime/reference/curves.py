"""Functions of one number in float32, operation by operation as every engine does them.

`runtime/cuda/kernels/curves.cuh` is the same in C, for the CPU kernels and the GPU. A multiply-add written as
`fma` is rounded once, everything else by itself, so all engines give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.reference.arithmetic import multiply_add
from xnorpp.runtime.reference.arrays import F32

_f = np.float32
I32 = npt.NDArray[np.int32]


def fma(a: Any, b: Any, c: Any) -> F32:
    """`a*b + c` in float32, rounded once."""
    a, b, c = (np.asarray(v, _f) for v in (a, b, c))
    return np.asarray(multiply_add(*np.broadcast_arrays(a, b, c)), _f)


def _chain(coefficients: Sequence[float], x: F32) -> F32:
    value: Any = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        value = fma(value, x, _f(coefficient))
    return np.asarray(value, _f)


def _power_of_two(n: I32) -> F32:
    return np.asarray(((n + np.int32(127)) << np.int32(23)).view(_f))


def _reduce(x: F32) -> tuple[F32, I32]:
    shifted = fma(x, _f(1.44269504088896341), _f(12582912))
    n = shifted - _f(12582912)
    rest = fma(n, _f(2.12194440054690583e-4), fma(n, _f(-0.693359375), x))
    return rest, shifted.view(np.int32) - np.int32(0x4B400000)


def _tail(r: F32) -> F32:
    row = (0.0013951719738543034, 0.008369598537683487, 0.0416661873459816, 0.16666512191295624, 0.5)
    return _chain(row, r)


def exp(x: F32) -> F32:
    bounded = np.where(x < _f(-104), _f(-104), x)
    bounded = np.where(bounded > _f(89), _f(89), bounded)
    rest, whole = _reduce(bounded)
    p = fma(fma(_tail(rest), rest, _f(1)), rest, _f(1))
    half = whole >> np.int32(1)
    return np.asarray(p * _power_of_two(half) * _power_of_two(whole - half))


def expm1(x: F32) -> F32:
    """`exp(x) - 1` for x <= 0."""
    rest, whole = _reduce(np.where(x < _f(-30), _f(-30), x))
    scale = _power_of_two(whole)
    return fma(scale, fma(rest * rest, _tail(rest), rest), scale - _f(1))


def _log_of_normal(x: F32) -> F32:
    bits = np.ascontiguousarray(x).view(np.int32)
    n = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = (bits - (n << np.int32(23))).view(_f) - _f(1)
    whole, square = n.astype(_f), f * f
    row = (
        0.06746640801429749, -0.11675652116537094, 0.11888162046670914, -0.1240558922290802,
        0.14219552278518677, -0.1666799634695053, 0.2000211924314499, -0.25000008940696716,
        0.3333331346511841,
    )  # fmt: skip
    tail = fma(square * f, _chain(row, f), whole * _f(-2.12194440054690583e-4))
    return fma(whole, _f(0.693359375), fma(square, _f(-0.5), tail) + f)


def log(x: F32) -> F32:
    small = x < _f(1.17549435e-38)
    y = _log_of_normal(np.where(small, x * _f(8388608), x))
    found = np.where(small, y - _f(15.9423847), y)
    upper = np.where(x < _f(np.inf), found, x)
    lower = np.where(x < 0, _f(np.nan), x)
    return np.where(x > 0, upper, np.where(x == 0, _f(-np.inf), lower))


def _log_of_one_more(u: F32) -> F32:
    y = _f(1) + u
    return np.asarray(_log_of_normal(y) + (u - (y - _f(1))) / y)


def sigmoid(x: F32) -> F32:
    return np.asarray(_f(1) / (_f(1) + exp(-x)))


def silu(x: F32) -> F32:
    return np.asarray(x / (_f(1) + exp(-x)))


def tanh(x: F32) -> F32:
    size, s = np.abs(x), x * x
    row = (
        -0.005717045161873102, 0.02065058797597885, -0.05374349653720856, 0.13331490755081177,
        -0.3333328366279602,
    )  # fmt: skip
    inner = fma(x * s, _chain(row, s), x)
    outer = _f(1) - _f(2) / (exp(size + size) + _f(1))
    return np.where(size < _f(0.625), inner, np.copysign(outer, x))


def erf(x: F32) -> F32:
    size, s = np.abs(x), x * x
    t = np.where(size > _f(4), _f(4), size)
    small = (
        -0.0005976896500214934, 0.004990980960428715, -0.026765568181872368, 0.11281802505254745,
        -0.37612494826316833, 0.12837915122509003,
    )  # fmt: skip
    large = (
        -2.116182258760091e-05, 0.0004352179530542344, -0.004174638539552689, 0.025128614157438278,
        -0.10829392820596695, -0.6333346366882324, -1.1295207738876343, 0.0001758733269525692,
    )  # fmt: skip
    inner = fma(x, _chain(small, s), x)
    outer = _f(1) - exp(_chain(large, t))
    return np.where(size < _f(0.925), inner, np.copysign(outer, x))


def gelu(x: F32) -> F32:
    return np.asarray(_f(0.5) * x * (_f(1) + erf(x * _f(0.70710678118654752))))


def gelu_tanh(x: F32) -> F32:
    inner = fma(x * x * _f(0.044715), x, x)
    return np.asarray(_f(0.5) * x * (_f(1) + tanh(_f(0.79788456080286536) * inner)))


def elu(x: F32, alpha: float) -> F32:
    return np.where(x < 0, _f(alpha) * expm1(np.where(x < 0, x, _f(0))), x)


def softplus(x: F32) -> F32:
    return np.asarray(np.where(x < 0, _f(0), x) + _log_of_one_more(exp(-np.abs(x))))


def mish(x: F32) -> F32:
    e = exp(np.where(x > _f(20), _f(20), x))
    n = e * (e + _f(2))
    return np.where(x > _f(20), x, x * (n / (n + _f(2))))


def hardswish(x: F32) -> F32:
    shifted = x + _f(3)
    part = np.where(shifted < 0, _f(0), shifted)
    return np.asarray(x * np.where(part > _f(6), _f(6), part) / _f(6))


# In the order of XN_EACH_CURVE in curves.cuh; `elu` also takes its `alpha`.
CURVES: dict[str, Callable[..., F32]] = {
    "sigmoid": sigmoid,
    "silu": silu,
    "tanh": tanh,
    "elu": elu,
    "softplus": softplus,
    "mish": mish,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "hardswish": hardswish,
    "exp": exp,
    "log": log,
    "erf": erf,
    "sqrt": lambda x: np.sqrt(x),
    "reciprocal": lambda x: _f(1) / x,
}
