"""The end of a post-activation block as functions of tensors, each one launch of a kernel; see `ops`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xnorpp.nn.fused import backward_kernels, end_kernels
from xnorpp.nn.fused.ops import (
    GROUP,
    Rescale,
    _rescale_arguments,
    _sizes,
    channels_last,
    shape_of,
    tiling_of,
)
from xnorpp.nn.fused.weights import ceil_div


@dataclass(frozen=True)
class Signs:
    """The signs of a tensor, for the convolution that reads it next: +1/-1, one bit per sign, and one bit
    where the sign's gradient passes."""

    values: Tensor
    sign_bits: Tensor
    mask_bits: Tensor


@dataclass(frozen=True)
class Normalized:
    """A source of a batch norm with what normalizes it; None for a real shortcut, which has no batch norm."""

    source: Tensor
    rescale: Rescale | None
    statistics: tuple[Tensor, Tensor, Tensor, Tensor] | None


def close(
    main: Normalized, side: Normalized | None, relu: bool, signs_dtype: torch.dtype | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Signs | None]:
    """relu(batch norm of `main` + `side`) in `dtype` and the bits where it is positive; its signs too with
    `signs_dtype`."""
    source = main.source
    assert main.statistics is not None
    images, pixels, channels = shape_of(source)
    t = tiling_of(source)
    out = torch.empty_like(source, dtype=dtype, memory_format=torch.channels_last)
    bits = torch.empty(
        (1 if signs_dtype is None else 2, ceil_div(images, GROUP), pixels, channels),
        dtype=torch.uint8,
        device=source.device,
    )
    signs = out
    if signs_dtype is not None:
        signs = torch.empty_like(source, dtype=signs_dtype, memory_format=torch.channels_last)
    unused = main.statistics[0]
    arguments, switches = _rescale_arguments(main.rescale, unused)
    beside, beside_rescale, beside_statistics = unused, None, None
    if side is not None:
        beside, beside_rescale, beside_statistics = side.source, side.rescale, side.statistics
    (channel, rows, columns, _, k), beside_switches = _rescale_arguments(beside_rescale, unused)
    end_kernels.close_kernel[t.grid](
        source, *arguments, *main.statistics,
        beside, channel, rows, columns, k, *(beside_statistics or (unused,) * 4),
        out, signs, bits[0], bits[-1], *_sizes(source, t),
        SIDE=-1 if side is None else beside_switches["KIND"], SIDE_K=beside_switches["K"],
        SIDE_NORM=beside_statistics is not None, RELU=relu, SIGNS=signs_dtype is not None,
        **switches, **t.blocks,
    )  # fmt: skip
    return out, bits[0], None if signs_dtype is None else Signs(signs, bits[0], bits[1])


def mask_gradient(
    grad: Tensor,
    mask_bits: Tensor | None,
    other: Tensor | None = None,
    skip: Tensor | None = None,
    skip_bits: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """(grad + other) where `mask_bits` are set, plus `skip` where `skip_bits` are; no bits: everywhere. It is
    written over `grad` or to `out`."""
    t = tiling_of(grad)
    out = grad if out is None else out
    bits = grad if mask_bits is None else mask_bits
    backward_kernels.mask_kernel[t.grid](
        grad, grad if other is None else channels_last(other), bits,
        grad if skip is None else skip, bits if skip_bits is None else skip_bits, out,
        *_sizes(grad, t), OTHER=other is not None, MASK=mask_bits is not None, SKIP=skip is not None,
        SKIP_MASK=skip_bits is not None, **t.blocks,
    )  # fmt: skip
    return out
