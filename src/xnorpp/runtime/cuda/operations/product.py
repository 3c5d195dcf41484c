"""Products of two values, convolutions of whole numbers, softmax along an axis, and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xnorpp.runtime.cuda.launch import Array
from xnorpp.runtime.cuda.operations.producer import Keeper, Producer
from xnorpp.runtime.plan import Step


def _matmul(keeper: Keeper, step: Step) -> dict[str, Any]:
    left, right = (keeper.program.values[name].shape for name in (step.source, step.operands[0]))
    return {"number": (int(len(left) == 2), left[-1], right[-1], left[-2])}


def _soft(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    shape, axis = keeper.program.values[step.source].shape, step.op.attrs["axis"]
    between = math.prod(shape[axis + 1 :]) if axis else 0
    return {"number": (shape[axis], between, int(step.kind == "log_softmax"))}


def _attention(keeper: Keeper, step: Step) -> dict[str, Any]:
    assert step.op is not None
    return {"number": (step.op.attrs["heads"],), "real": (float(step.op.attrs["scale"]),)}


def _whole(keeper: Keeper, step: Step) -> dict[str, Any]:
    op, program = step.op, keeper.program
    assert op is not None
    (kh, kw), attrs = program.window(op), op.attrs

    def factors() -> Array:
        """The factor of each filter's sum, then its bias."""
        scale = program.tensors[program.scales[op.tensors["weight"]]].astype(np.float32)
        bias = program.real(op, "bias")
        rows = [scale / np.float32(attrs["steps"]), np.zeros_like(scale) if bias is None else bias]
        return np.stack(rows)

    def filters() -> Array:
        return np.ascontiguousarray(program.tensors[op.tensors["weight"]].astype(np.int32))

    weight = keeper.keep(f"{step.index}.whole", filters)
    geometry = (kh, kw, *attrs["stride"], *attrs["padding"], attrs["dilation"][0])
    return {
        "number": (*geometry, int("bias" in op.tensors)),
        "real": (float(attrs["steps"]), float(attrs["limit"])),
        "constant": (weight, keeper.keep(f"{step.index}.factors", factors)),
    }


PRODUCERS = {
    "int_conv2d": Producer("product.cu", "whole_conv", _whole),
    "matmul": Producer("product.cu", "matmul", _matmul),
    "softmax": Producer("product.cu", "soft_axis", _soft),
    "log_softmax": Producer("product.cu", "soft_axis", _soft),
    "attention": Producer("product.cu", "attention", _attention),
}
