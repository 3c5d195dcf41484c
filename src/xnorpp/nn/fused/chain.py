"""A chain of units and the shortcut around them as one autograd node on CUDA.

- forward, a unit: one pass for the batch statistics (none where the tensor's maker left its moments), one
  that reads the source and writes the signs with their bits, and the convolution. Gamma and the activation
  have no pass of their own inside a chain: whoever reads the dot products next applies them on the way.
- XNOR-Net's K: the pass that takes the signs leaves the mean of |u| per pixel, a box filter makes K of it,
  and who reads the dot products multiplies. Backward, the gradient of K comes back to u the same way.
- saved for the backward pass: the chain's input, the dot products (2 bytes), one bit per sign, one bit per
  clip mask. With `recompute` the dot products are not saved but computed again from the sign bits.
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
from torch import Tensor

from xnorpp.nn.fused import end_ops as pool_ops
from xnorpp.nn.fused import ops
from xnorpp.nn.fused.dispatch import GRADIENT_DTYPE, Side, Unit
from xnorpp.nn.fused.unit import Aside, Kept, UnitTensors, finish, sizes_after, split, tensors_of


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
        parts, _ = split(every, tensors)
        return parts[: len(self.units)], parts[-1] if self.side is not None else None


def run(
    x: Tensor, units: Sequence[Unit], shortcut: Tensor | None, side: Side | None, recompute: bool
) -> Tensor:
    """`fused.run_chain`, with the setting it was called under."""
    size = (x.shape[-2], x.shape[-1])
    tensors: list[Tensor | None] = []
    for unit in units:
        tensors += tensors_of(unit, size)
        size = unit.layers[1].output_size_for(size)
    if side is not None:
        tensors += tensors_of(side.unit, size)
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


class _Chain(torch.autograd.Function):
    """The module's docstring lists what is saved for the backward pass."""

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
        aside = Aside(x)
        with torch.autocast(x.device.type, enabled=False):
            out_grad = ops.channels_last(grads[0].to(GRADIENT_DTYPE))
            pooled_skip, skip = None, out_grad if plan.identity else None
            if side is not None:
                side_source = x if pooled is None else pooled
                dots = side.dots_again(kept[-1], side_source.shape)
                grad, sums = ops.finish_backward(out_grad, dots, side.rescale(dots, kept[-1].k))
                del dots
                side_grad, _, results[-1] = side.backward(kept[-1], grad, sums, side_source, None, aside)
                skip, pooled_skip = (side_grad, None) if pooled is None else (None, side_grad)
            shapes = sizes_after(units, x.shape)
            last = kept[len(units) - 1]
            dots = units[-1].dots_again(last, shapes[-1])
            grad, sums = ops.finish_backward(out_grad, dots, units[-1].rescale(dots, last.k))
            for index in reversed(range(1, len(units))):
                before = units[index - 1]
                dots = before.dots_again(kept[index - 1], shapes[index - 1])
                grad, found, results[index] = units[index].backward(
                    kept[index], grad, sums, dots, before.rescale(dots, kept[index - 1].k), aside
                )
                assert found is not None
                sums = found
            del dots
            grad, _, results[0] = units[0].backward(kept[0], grad, sums, x, None, aside, skip, pooled_skip)
            finish(aside, [*units, *([] if side is None else [side])], results)
        shortcut_grad = out_grad if ctx.has_shortcut else None
        return None, grad, shortcut_grad, *(value for unit_grads in results for value in unit_grads)
