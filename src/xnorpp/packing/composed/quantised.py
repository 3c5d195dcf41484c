"""The simulated quantisation of torch.ao.quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _per_tensor(input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    steps: Tensor = (input * (1.0 / scale) + zero_point).clamp(quant_min, quant_max)
    whole: Tensor = (torch.round(steps) - zero_point) * scale
    return whole


def _per_channel(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    shape = [-1 if i == axis else 1 for i in range(input.dim())]
    return _per_tensor(input, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


def _observed(
    input: Tensor, observer_on: Tensor, fake_quant_on: Tensor, running_min: Any, running_max: Any,
    scale: Tensor, zero_point: Tensor, averaging_const: float, quant_min: int, quant_max: int, ch_axis: int,
    per_row_fake_quant: bool = False, symmetric_quant: bool = False,
) -> Tensor:  # fmt: skip
    if bool(observer_on.any()):
        raise ValueError("its observer is on, so that it depends on the batch")
    if not bool(fake_quant_on.any()):
        return input * 1.0
    if per_row_fake_quant:
        return _per_channel(input, scale, zero_point, ch_axis, quant_min, quant_max)
    return _per_tensor(input, scale, zero_point, quant_min, quant_max)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fake_quantize_per_tensor_affine": _per_tensor,
    "fake_quantize_per_channel_affine": _per_channel,
    "fused_moving_avg_obs_fake_quant": _observed,
}
