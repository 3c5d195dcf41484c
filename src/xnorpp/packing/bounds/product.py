"""Bounds of convolutions, linear layers and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xnorpp.packing.bounds.rounding import F64, Bound, U, exact, magnitude
from xnorpp.packing.graph import Node
from xnorpp.runtime import reference
from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.program import Op, Program


def _weight(program: Program, op: Op, channels: int) -> Any:
    real = None if program.is_packed(op) else program.real(op, "weight")
    if real is not None:
        return np.abs(real.astype(np.float64))
    stored = program.tensors[op.tensors["weight"]]
    if stored.ndim == 2:
        return np.abs(unpack_bits(stored, channels)).astype(np.float64)
    return np.abs(unpack_conv_weight(stored, channels // op.attrs["groups"])).astype(np.float64)


def _filter(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    weight = _weight(program, op, x[0].shape[1])
    taps = weight[0].size

    def through(v: Any) -> Any:
        if weight.ndim == 2:
            return v @ weight.T
        return reference.convolve(op, v.astype(np.float32), weight, 0).astype(np.float64)

    rounding = (taps + 8) * U * (through(np.abs(x[0])) + magnitude(program, op, node, y.ndim))
    return np.asarray(through(e[0]) * 1.001 + rounding)


def _softmax(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    worst = e[0].max(axis=1, keepdims=True)
    return np.asarray(y * np.expm1(2 * worst) + 32 * U)


BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("conv2d", "linear", "bitweight_conv2d", "bitweight_linear"), _filter),
    **dict.fromkeys(("binary_conv2d", "binary_linear"), exact),
    "softmax": _softmax,
}
