"""A chain of units and the shortcut around them as one autograd node on CUDA.

- forward, a unit: one pass for the batch statistics (none where the tensor's maker left its moments), one
  that reads the source and writes the signs with their bits, and the convolution. Gamma and the activation
  have no pass of their own inside a chain: whoever reads the dot products next applies them on the way.
- XNOR-Net's K: the pass that takes the signs leaves the mean of |u| a pixel, a box filter makes K of it, and
  who reads the dot products multiplies. Backward, the gradient of K comes back to u the same way.
- kept for the backward pass: the chain's input, the dot products (2 bytes), one bit a sign, one bit a clip
  mask. With `recompute` the dot products are not kept but computed again from the sign bits.
- backward, a unit: the signs unpacked, the two products of the convolution, one pass for batch norm's sums,
  and one that goes through sign, batch norm, activation and Gamma to the dot products before.

Precision. The forward product runs in float16: signs are exact, and so is the dot product up to 2048 in
magnitude (up to 4096 where its parity is even, as with any even number of channels); a bfloat16 result would
round above 256. Gradients are bfloat16 with float32 sums, as under autocast. Everything between the dot
product and the next sign is float32, so the values are closer to the float32 reference than the reference
under autocast is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.fused import end_ops as pool_ops
from xnorpp.nn.fused import ops
from xnorpp.nn.fused.dispatch import ACTIVATIONS, GRADIENT_DTYPE, PRODUCT_DTYPE, Side, Unit

# What a unit differentiates: batch norm's weight and bias, latent weight, slope, three factors.
TENSORS_EACH = 7
DTYPES = (PRODUCT_DTYPE, GRADIENT_DTYPE)


@dataclass
class Plan:
    """What a chain is, besides tensors that have gradients; `made` receives the moments of its output."""

    units: tuple[Unit, ...]
    side: Side | None
    recompute: bool
    identity: bool
    moments: ops.Moments | None
    made: list[ops.Moments] = field(default_factory=list)

    def split(self, tensors: Sequence[Tensor | None]) -> tuple[list[UnitTensors], UnitTensors | None]:
        """The units and the side's, each with its own part of `tensors`."""
        every = [*self.units, *([] if self.side is None else [self.side.unit])]
        parts = [
            UnitTensors(unit, tensors[i * TENSORS_EACH : (i + 1) * TENSORS_EACH])
            for i, unit in enumerate(every)
        ]
        return parts[: len(self.units)], parts[-1] if self.side is not None else None


def run(
    x: Tensor, units: Sequence[Unit], shortcut: Tensor | None, side: Side | None, recompute: bool
) -> Tensor:
    """`fused.run_chain`, with the setting it was called under."""
    size = (x.shape[-2], x.shape[-1])
    tensors: list[Tensor | None] = []
    for unit in units:
        tensors += _tensors(unit, size)
        size = unit.layers[1].output_size_for(size)
    if side is not None:
        tensors += _tensors(side.unit, size)
    plan = Plan(tuple(units), side, recompute, shortcut is x, moments_left_on(x))
    result: Tensor = _Chain.apply(  # type: ignore[no-untyped-call]
        plan, x, None if shortcut is x else shortcut, *tensors
    )
    leave_moments_on(result, plan.made[0])
    return result


def leave_moments_on(x: Tensor, moments: ops.Moments) -> None:
    """For the batch norm that reads `x` next; void once x is changed in place."""
    x._xnorpp_moments = (moments, x._version)  # type: ignore[attr-defined]


def moments_left_on(x: Tensor) -> ops.Moments | None:
    moments, version = getattr(x, "_xnorpp_moments", (None, -1))
    return moments if version == x._version else None


def _tensors(unit: Unit, input_size: tuple[int, int]) -> list[Tensor | None]:
    norm, conv = unit.layers
    conv.fit_scale(input_size)
    slope = unit.activation.weight if isinstance(unit.activation, nn.PReLU) else None
    factors = conv.scale_factors()
    of_norm = (None, None) if norm is None else (norm.weight, norm.bias)
    return [*of_norm, conv.latent_weight(), slope, *factors, *(None,) * (3 - len(factors))]


def _same_order(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape lie in memory alike."""
    return all(n == 1 or i == j for n, i, j in zip(a.shape, a.stride(), b.stride(), strict=True))


@dataclass
class Kept:
    """What the backward pass of a unit needs; dots and weight are None when they are to be computed again, k
    where the layer has none."""

    mean: Tensor
    inverse_std: Tensor
    sign_bits: Tensor
    mask_bits: Tensor
    k: Tensor | None
    dots: Tensor | None
    weight: Tensor | None

    FIELDS = ("mean", "inverse_std", "sign_bits", "mask_bits", "k", "dots", "weight")

    def tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, name) for name in self.FIELDS)


class UnitTensors:
    """The tensors of one unit, by name, and its steps in both directions."""

    def __init__(self, unit: Unit, tensors: Sequence[Tensor | None]) -> None:
        self.norm, self.conv = unit.layers
        norm_weight, norm_bias, latent, self.slope, *factors = tensors
        assert latent is not None
        self.norm_weight, self.norm_bias, self.latent = norm_weight, norm_bias, latent
        self.factors = tuple(factor for factor in factors if factor is not None)
        self.activation = ACTIVATIONS[type(unit.activation)]
        self.relu = isinstance(unit.before, nn.ReLU)
        self.geometry = (self.conv.stride, (self.conv.pads[2], self.conv.pads[0]), self.conv.dilation)

    def rescale(self, dots: Tensor, k: Tensor | None) -> ops.Rescale:
        slope = self.slope
        if slope is not None and slope.numel() != dots.shape[1]:
            slope = slope.expand(dots.shape[1]).contiguous()
        kernel = self.conv.scale.kernel if self.conv.scale is not None else None
        kind = ops.scale_kind(kernel, (dots.shape[2], dots.shape[3]))
        return ops.Rescale(self.factors, kind, self.activation, slope, k)

    @property
    def uses_k(self) -> bool:
        return self.conv.scale is not None and bool(self.conv.scale.uses_input)

    @property
    def window(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Kernel, stride and padding of K's box filter."""
        return self.conv.kernel_size, self.conv.stride, (self.conv.pads[2], self.conv.pads[0])

    def input_scale(self, sizes: Tensor, source: Tensor) -> Tensor:
        """K, (images, pixels of the output), from the mean of |u| over the channels."""
        return F.avg_pool2d(sizes.reshape(-1, 1, *source.shape[2:]), *self.window).flatten(1)

    def sizes_gradient(self, sums: ops.RescaleSums, source: Tensor, sign_bits: Tensor) -> ops.SizesGradient:
        """The gradient of K, on its way back through the box filter and the mean over the channels."""
        images, channels, height, width = source.shape
        grad_k = sums.for_k.sum(0).reshape(images, 1, *sums.size)
        like = grad_k.new_empty(images, 1, height, width)
        grad = torch.ops.aten.avg_pool2d_backward(grad_k, like, *self.window, False, True, None)
        return ops.SizesGradient(grad.flatten(1) / channels, sign_bits)

    def dots(self, signs: Tensor, weight: Tensor) -> Tensor:
        stride, padding, dilation = self.geometry
        return ops.channels_last(F.conv2d(signs, weight, None, stride, padding, dilation, self.conv.groups))

    def forward(
        self, source: Tensor, rescale: ops.Rescale | None, moments: ops.Moments | None, recompute: bool
    ) -> tuple[Tensor, Kept]:
        """The unit's dot products, and what its backward pass needs."""
        norm_weight, norm_bias = self.norm_weight, self.norm_bias
        if norm_weight is None or norm_bias is None:  # no batch norm: one that changes nothing
            weights = ops.weight_signs(self.latent, DTYPES)
            mean = norm_bias = torch.zeros(source.shape[1], dtype=torch.float32, device=source.device)
            inverse_std = norm_weight = torch.ones_like(mean)
        else:
            mean, inverse_std, weights = ops.statistics(
                moments or ops.moments(source, rescale), self.norm, self.latent, DTYPES
            )
        signs, sign_bits, mask_bits, sizes = ops.normalize_sign(
            source, rescale, mean, inverse_std, norm_weight, norm_bias, PRODUCT_DTYPE, self.uses_k, self.relu
        )
        k = None if sizes is None else self.input_scale(sizes, source)
        dots = self.dots(signs, weights[0])
        kept = (None, None) if recompute else (dots, weights[1])
        return dots, Kept(mean, inverse_std, sign_bits, mask_bits, k, *kept)

    def dots_again(self, kept: Kept, shape: torch.Size) -> Tensor:
        """The dot products, kept or computed again from the sign bits."""
        if kept.dots is not None:
            return kept.dots
        half, kept.weight = ops.weight_signs(self.latent, DTYPES)
        return self.dots(ops.unpack_signs(kept.sign_bits, shape, PRODUCT_DTYPE), half)

    def backward(
        self,
        kept: Kept,
        grad_dots: Tensor,
        sums: ops.RescaleSums,
        source: Tensor,
        rescale: ops.Rescale | None,
        skip: Tensor | None = None,
        pooled_skip: Tensor | None = None,
    ) -> tuple[Tensor, ops.RescaleSums | None, list[Tensor | None]]:
        """The gradient of the source with the sums for its rescaling, and this unit's own gradients."""
        stride, padding, dilation = self.geometry
        weight = kept.weight if kept.weight is not None else ops.weight_signs(self.latent, DTYPES)[1]
        signs = ops.unpack_signs(kept.sign_bits, source.shape, GRADIENT_DTYPE)
        grad, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad_dots, signs, weight, None, stride, padding, dilation, False, (0, 0), self.conv.groups,
            (True, True, False),
        )  # fmt: skip
        del signs
        grad = ops.channels_last(grad)
        if not _same_order(grad_weight, self.latent):
            grad_weight = torch.empty_like(self.latent, dtype=grad_weight.dtype).copy_(grad_weight)
        sizes = None if kept.k is None else self.sizes_gradient(sums, source, kept.sign_bits)
        norm_weight = self.norm_weight
        if norm_weight is None:  # nothing is subtracted, so that the gradient passes as it is
            partial, norm_weight = kept.mean.new_zeros((2, 1, source.shape[1])), kept.inverse_std
        else:
            partial = ops.norm_backward_sums(
                grad, kept.mask_bits, source, rescale, kept.mean, kept.inverse_std, sizes
            )
        found = ops.collect(partial, sums, grad_weight, self.latent)
        grad, source_sums = ops.norm_backward(
            grad, kept.mask_bits, source, rescale, kept.mean, kept.inverse_std, norm_weight, found.norm,
            skip, pooled_skip, sizes,
        )  # fmt: skip
        slope = found.slope
        if slope is not None and self.slope is not None and self.slope.numel() != slope.numel():
            slope = slope.sum(0, keepdim=True)
        fill = (None,) * (3 - len(found.factors))
        of_norm = (None, None) if self.norm_weight is None else (found.norm[1], found.norm[0])
        return grad, source_sums, [*of_norm, found.weight, slope, *found.factors, *fill]


class _Chain(torch.autograd.Function):
    """The module's text says what it keeps."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, shortcut: Tensor | None, *tensors: Tensor | None) -> Tensor:
        units, side = plan.split(tensors)
        kept: list[Kept] = []
        with torch.autocast(x.device.type, enabled=False):
            x = ops.channels_last(x)
            source, rescale, moments = x, None, plan.moments
            for unit in units:
                source, found = unit.forward(source, rescale, moments, plan.recompute)
                rescale, moments = unit.rescale(source, found.k), None
                kept.append(found)
            added, side_rescale, pooled = x if plan.identity else shortcut, None, None
            if side is not None and plan.side is not None:
                side_source, side_moments = x, plan.moments
                if plan.side.pool:
                    side_source, side_moments = pool_ops.average_pool(x)
                    pooled = side_source
                added, found = side.forward(side_source, None, side_moments, plan.recompute)
                side_rescale = side.rescale(added, found.k)
                kept.append(found)
            assert rescale is not None
            out, made = ops.finish(
                source, rescale, None if added is None else ops.channels_last(added), side_rescale,
                GRADIENT_DTYPE,
            )  # fmt: skip
        plan.made.append(made)
        ctx.plan, ctx.count, ctx.has_shortcut = plan, len(tensors), shortcut is not None
        ctx.save_for_backward(x, pooled, *tensors, *(t for found in kept for t in found.tensors()))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, pooled, *saved = ctx.saved_tensors
        plan: Plan = ctx.plan
        units, side = plan.split(saved[: ctx.count])
        rest, each = saved[ctx.count :], len(Kept.FIELDS)
        kept = [Kept(*rest[i : i + each]) for i in range(0, len(rest), each)]
        del rest, saved
        results: list[list[Tensor | None]] = [[] for _ in kept]
        with torch.autocast(x.device.type, enabled=False):
            out_grad = ops.channels_last(grads[0].to(GRADIENT_DTYPE))
            pooled_skip, skip = None, out_grad if plan.identity else None
            if side is not None:
                side_source = x if pooled is None else pooled
                dots = side.dots_again(kept[-1], side_source.shape)
                grad, sums = ops.finish_backward(out_grad, dots, side.rescale(dots, kept[-1].k))
                del dots
                side_grad, _, results[-1] = side.backward(kept[-1], grad, sums, side_source, None)
                skip, pooled_skip = (side_grad, None) if pooled is None else (None, side_grad)
            shapes = [x.shape]
            for unit in units[:-1]:
                size = unit.conv.output_size_for((shapes[-1][2], shapes[-1][3]))
                shapes.append(torch.Size((x.shape[0], unit.conv.out_channels, *size)))
            last = kept[len(units) - 1]
            dots = units[-1].dots_again(last, shapes[-1])
            grad, sums = ops.finish_backward(out_grad, dots, units[-1].rescale(dots, last.k))
            for index in reversed(range(1, len(units))):
                before = units[index - 1]
                dots = before.dots_again(kept[index - 1], shapes[index - 1])
                grad, found, results[index] = units[index].backward(
                    kept[index], grad, sums, dots, before.rescale(dots, kept[index - 1].k)
                )
                assert found is not None
                sums = found
            del dots
            grad, _, results[0] = units[0].backward(kept[0], grad, sums, x, None, skip, pooled_skip)
        shortcut_grad = out_grad if ctx.has_shortcut else None
        return None, grad, shortcut_grad, *(value for unit_grads in results for value in unit_grads)
