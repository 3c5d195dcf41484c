"""The weights of a fused layer: their signs in the dtypes of its products, and the gradient that comes back.

The gradient of a sign is passed on where |W| <= 1. ReCU's clamp with standardized filters, which takes some
25 small operations one by one, is computed here in the same launches: the forward pass standardizes filter by
filter and leaves a table of their means, factors and sums of |x|; the backward pass finds the clamp's bound
from those sums, and from the progress that the table has, and goes back through the standardization.
Everything is float32, sums have a fixed order, and nothing is read by the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xnorpp.nn.fused import sum_kernels
from xnorpp.nn.layers import VARIANCE_FLOOR, BinaryConv2d, BinaryLayer
from xnorpp.nn.quantizers import RectifiedClampSign

SUM_BLOCKS = {"BLOCK_R": 512, "BLOCK_C": 16, "BLOCK_W": 2048, "num_warps": 8}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def clamp_of(conv: BinaryConv2d) -> RectifiedClampSign | None:
    """ReCU's clamp, where the layer has it with standardized filters that lie in memory one after the other;
    any other quantizer's gradient is left to autograd."""
    config, weight = conv.binarization, conv.weight
    one_by_one = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
    own = type(conv).latent_weight is BinaryLayer.latent_weight
    if type(config.weights) is RectifiedClampSign and config.standardize_weights and one_by_one and own:
        return config.weights
    return None


@dataclass(frozen=True)
class Latent:
    """A weight whose signs are taken: `weight` itself, or with `clamp` its standardized filters. `progress`
    is read when the signs are taken."""

    weight: Tensor
    clamp: RectifiedClampSign | None = None
    progress: Tensor | None = None


@dataclass(frozen=True)
class WeightSigns:
    """sign(W) for the forward product and for gradients, in W's memory order, and the table of its filters
    where they are standardized."""

    half: Tensor
    wide: Tensor
    table: Tensor | None


@dataclass(frozen=True)
class SignJob:
    """The part of a launch that takes the signs of a weight."""

    signs: WeightSigns | None
    arguments: tuple[Any, ...]
    programs: int
    switches: dict[str, Any]


def _block(size: int) -> int:
    """Weights of a filter that a program takes at a time."""
    return min(SUM_BLOCKS["BLOCK_W"], max(32, 1 << (size - 1).bit_length()))


def sign_job(latent: Latent | None, dtypes: Sequence[torch.dtype], unused: Tensor) -> SignJob:
    """What a kernel needs to take the signs of `latent`; `unused` stands where a pointer is not read."""
    if latent is None:
        return SignJob(None, (*(unused,) * 5, 0.0, 0, 0, 0), 0, {"STANDARDIZED": False})
    weight = latent.weight
    half, wide = (torch.empty_like(weight, dtype=dtype) for dtype in dtypes)
    count = weight.numel()
    arguments: tuple[Any, ...]
    if latent.clamp is None:
        arguments = (weight, half, wide, unused, unused, 0.0, 0, 0, count)
        programs = ceil_div(count, SUM_BLOCKS["BLOCK_W"])
        return SignJob(WeightSigns(half, wide, None), arguments, programs, {"STANDARDIZED": False})
    filters = weight.shape[0]
    size = count // filters
    table = torch.empty(3 * filters + 1, dtype=torch.float32, device=weight.device)
    arguments = (weight, half, wide, table, latent.progress, VARIANCE_FLOOR, filters, size, count)
    switches = {"STANDARDIZED": True, "BLOCK_W": _block(size)}
    return SignJob(WeightSigns(half, wide, table), arguments, filters, switches)


def weight_signs(latent: Latent, dtypes: Sequence[torch.dtype]) -> WeightSigns:
    """sign(W) by a launch of its own; a batch norm's `ops.statistics` takes it along."""
    job = sign_job(latent, dtypes, latent.weight)
    assert job.signs is not None
    switches = {"BLOCK_W": SUM_BLOCKS["BLOCK_W"], **job.switches}
    sum_kernels.weight_signs_kernel[(job.programs,)](*job.arguments, **switches, num_warps=8)
    return job.signs


def weight_gradient(grad_signs: Tensor, latent: Latent, table: Tensor | None) -> Tensor:
    """The gradient of a weight from that of its signs, in the weight's memory order: 0 where |W| > 1, or
    through ReCU's clamp and the standardization of the filters in `table`."""
    weight, clamp = latent.weight, latent.clamp
    out = torch.empty_like(weight)
    if grad_signs.stride() != weight.stride():
        grad_signs = torch.empty_like(weight, dtype=grad_signs.dtype).copy_(grad_signs)
    count = weight.numel()
    if clamp is None:
        block = SUM_BLOCKS["BLOCK_W"]
        sum_kernels.weight_gradient_kernel[(ceil_div(count, block),)](
            grad_signs, weight, out, count, BLOCK_W=block, num_warps=8
        )
        return out
    assert table is not None
    filters = weight.shape[0]
    size = count // filters
    sum_kernels.filter_gradient_kernel[(filters,)](
        grad_signs, weight, table, out, filters, size, float(count), clamp.start, clamp.end,
        BLOCK_W=_block(size), num_warps=8,
    )  # fmt: skip
    return out
