"""A post-activation block as one autograd node on CUDA: units, then batch norm, shortcut and ReLU.

    x -> units -> batch norm -> + shortcut -> ReLU -> out

as in torchvision's and most public CIFAR networks. The shortcut is x itself, a tensor, or a binary
convolution of x with a batch norm of its own (`End.side`). Without units it is a batch norm of a real tensor
with what follows, as at the end of a stem.

The pass that writes `out` also takes its signs, which the convolutions of the next block read, and leaves
them on the tensor (`leave_signs_on`). Backward, the ReLU's gradient is a mask of bits like sign's clip mask,
so that the kernels of a batch norm before a sign serve here as well. Stored for the backward pass are what
`chain` stores, and one bit per output; of x nothing but its shape, where no batch norm reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn.fused import ops
from xnorpp.nn.fused.chain import moments_left_on
from xnorpp.nn.fused.close_ops import Normalized, Signs, close, mask_gradient
from xnorpp.nn.fused.dispatch import GRADIENT_DTYPE, PRODUCT_DTYPE, End, Unit
from xnorpp.nn.fused.unit import Aside, Kept, UnitTensors, finish, signs_of, sizes_after, split, tensors_of


@dataclass
class Plan:
    """What a block is, besides tensors that have gradients; `made` receives the signs of its output."""

    units: tuple[Unit, ...]
    end: End
    recompute: bool
    identity: bool
    moments: ops.Moments | None
    ready: Signs | None
    made: list[Signs] = field(default_factory=list)

    @property
    def relu(self) -> bool:
        return isinstance(self.end.activation, nn.ReLU)

    def split(
        self, tensors: Sequence[Tensor | None]
    ) -> tuple[list[UnitTensors], UnitTensors | None, Sequence[Any]]:
        """The units, the side's, and the batch norms' weights and biases."""
        every = [*self.units, *([] if self.end.side is None else [self.end.side])]
        parts, norms = split(every, tensors)
        return parts[: len(self.units)], parts[-1] if self.end.side is not None else None, norms


def run(x: Tensor, units: Sequence[Unit], end: End, shortcut: Tensor | None, recompute: bool) -> Tensor:
    """`fused.run_closed`, with the setting it was called under."""
    size = first = (x.shape[-2], x.shape[-1])
    tensors: list[Tensor | None] = []
    for unit in units:
        tensors += tensors_of(unit, size)
        size = unit.layers[1].output_size_for(size)
    if end.side is not None:
        tensors += tensors_of(end.side, first)
    for norm in end.norms:
        tensors += [norm.weight, norm.bias]
    plan = Plan(tuple(units), end, recompute, shortcut is x, moments_left_on(x), take_signs_from(x))
    result: Tensor = _Closed.apply(  # type: ignore[no-untyped-call]
        plan, x, None if shortcut is x else shortcut, *tensors
    )
    if plan.made:
        leave_signs_on(result, plan.made.pop())
    return result


def leave_signs_on(x: Tensor, signs: Signs) -> None:
    """For the convolutions that read `x` next; void once x is changed in place."""
    x._xnorpp_signs = (signs, x._version)  # type: ignore[attr-defined]


def take_signs_from(x: Tensor) -> Signs | None:
    """The signs that were left on `x`. They are as large as x, so the tensor gives them up."""
    signs, version = getattr(x, "_xnorpp_signs", (None, -1))
    if signs is not None:
        del x._xnorpp_signs  # type: ignore[attr-defined]
    return signs if version == x._version else None


Statistics = tuple[Tensor, Tensor, Tensor, Tensor]


def _statistics(
    source: Tensor,
    rescale: ops.Rescale | None,
    moments: ops.Moments | None,
    norm: nn.BatchNorm2d,
    affine: Sequence[Tensor],
) -> Statistics:
    """Mean and 1/std of a batch norm's input, and its weight and bias."""
    mean, inverse_std, _ = ops.statistics(moments or ops.moments(source, rescale), norm, None)
    return mean, inverse_std, affine[0], affine[1]


def _norm_backward(
    grad: Tensor,
    bits: Tensor | None,
    source: Tensor,
    rescale: ops.Rescale | None,
    statistics: Sequence[Tensor],
) -> tuple[Tensor, ops.RescaleSums | None, list[Tensor]]:
    """The gradient of the source, the sums for its rescaling, and the gradients of weight and bias."""
    mean, inverse_std, weight = statistics[:3]
    found = ops.collect(ops.norm_backward_sums(grad, bits, source, rescale, mean, inverse_std))
    out = torch.empty_like(grad, memory_format=torch.channels_last)
    result, sums = ops.norm_backward(
        grad, bits, source, rescale, mean, inverse_std, weight, found.norm, out=out
    )
    return result, sums, [found.norm[1], found.norm[0]]


def _side_forward(
    plan: Plan, side: UnitTensors, x: Tensor, ready: Signs | None, norms: Sequence[Tensor]
) -> tuple[Normalized, Kept]:
    """The shortcut's convolution and the statistics of its batch norm."""
    dots, kept = side.forward(x, None, None, plan.recompute, ready)
    rescale = side.rescale(dots, None)
    return Normalized(dots, rescale, _statistics(dots, rescale, None, plan.end.norms[1], norms[2:])), kept


def _side_backward(
    side: UnitTensors,
    kept: Kept,
    grad: Tensor,
    bits: Tensor | None,
    statistics: Sequence[Tensor],
    shape: torch.Size,
    aside: Aside,
    branch: Aside,
) -> tuple[Tensor, list[Tensor | None], list[Tensor]]:
    """The gradients of the signs that the shortcut's convolution read, of its own tensors, and of its batch
    norm's weight and bias."""
    dots = side.dots_again(kept, shape)
    grad, sums, of_norm = _norm_backward(grad, bits, dots, side.rescale(dots, None), statistics)
    assert sums is not None
    other, own = side.sign_backward(kept, grad, sums, shape, aside, branch)
    return other, own, of_norm


class _Closed(torch.autograd.Function):
    """The module's docstring lists what is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, shortcut: Tensor | None, *tensors: Tensor | None) -> Tensor:
        units, side, norms = plan.split(tensors)
        kept: list[Kept] = []
        with torch.autocast(x.device.type, enabled=False):
            x = ops.channels_last(x)
            ready, plan.ready = plan.ready, None
            if ready is None and (side is not None or (units and units[0].reads_signs)):
                ready = signs_of(x)
            branch = Aside(x, "branch")
            beside: Normalized | None = None
            if side is not None:
                beside, of_side = branch(
                    functools.partial(_side_forward, plan, side, x, ready, norms), x, ready
                )
            elif plan.identity or shortcut is not None:
                added = x if shortcut is None else ops.channels_last(shortcut)
                beside = Normalized(added, None, None)
            source, rescale, moments = x, None, plan.moments
            for index, unit in enumerate(units):
                given = ready if index == 0 else None
                source, found = unit.forward(source, rescale, moments, plan.recompute, given)
                rescale, moments = unit.rescale(source, found.k), None
                kept.append(found)
            main = Normalized(
                source, rescale, _statistics(source, rescale, moments, plan.end.norms[0], norms)
            )
            if side is not None:
                kept.append(of_side)
            branch.join()
            dtype = PRODUCT_DTYPE if plan.end.signs else None
            out, positive, signs = close(main, beside, plan.relu, dtype, GRADIENT_DTYPE)
        if signs is not None:
            plan.made.append(signs)
        ctx.plan, ctx.count, ctx.has_shortcut, ctx.shape = plan, len(tensors), shortcut is not None, x.shape
        reads_x = not units or not units[0].reads_signs
        of_norms = [
            part for item in (main, beside) if item and item.statistics for part in item.statistics[:2]
        ]
        ctx.save_for_backward(
            x if reads_x else None,
            positive if plan.relu else None,
            *tensors,
            *of_norms,
            *(t for found in kept for t in found.tensors()),
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, bits, *saved = ctx.saved_tensors
        plan: Plan = ctx.plan
        units, side, norms = plan.split(saved[: ctx.count])
        moments, rest = saved[ctx.count : ctx.count + len(norms)], saved[ctx.count + len(norms) :]
        statistics = [(*moments[i : i + 2], *norms[i : i + 2]) for i in range(0, len(norms), 2)]
        each = len(Kept.FIELDS)
        kept = [Kept(*rest[i : i + each]) for i in range(0, len(rest), each)]
        del rest, saved
        results: list[list[Tensor | None]] = [[] for _ in kept]
        of_norms: list[Tensor] = []
        aside = Aside(grads[0])
        with torch.autocast(grads[0].device.type, enabled=False):
            out_grad = ops.channels_last(grads[0].to(GRADIENT_DTYPE))
            other: Tensor | None = None
            branch = Aside(grads[0], "branch")
            if side is not None:
                work = functools.partial(
                    _side_backward, side, kept[-1], out_grad, bits, statistics[1], ctx.shape, aside, branch
                )
                other, results[-1], of_norms = branch(work, out_grad)
            shapes = sizes_after(units, ctx.shape)
            source, rescale = x, None
            if units:
                last = kept[len(units) - 1]
                source = units[-1].dots_again(last, shapes[-1])
                rescale = units[-1].rescale(source, last.k)
            grad, sums, of_main = _norm_backward(out_grad, bits, source, rescale, statistics[0])
            of_norms = of_main + of_norms
            for index in reversed(range(1, len(units))):
                before = units[index - 1]
                source = before.dots_again(kept[index - 1], shapes[index - 1])
                assert sums is not None
                grad, sums, results[index] = units[index].backward(
                    kept[index], grad, sums, source, before.rescale(source, kept[index - 1].k), aside
                )
            del source
            skip = out_grad if plan.identity else None
            if units and units[0].reads_signs:
                assert sums is not None
                grad, results[0] = units[0].sign_backward(kept[0], grad, sums, ctx.shape, aside, branch)
                branch.join()
                grad = mask_gradient(grad, kept[0].mask_bits, other, skip, bits if plan.identity else None)
            else:
                if skip is not None and bits is not None:
                    skip = mask_gradient(out_grad, bits, out=torch.empty_like(out_grad))
                if units:
                    assert sums is not None
                    grad, _, results[0] = units[0].backward(kept[0], grad, sums, x, None, aside, skip)
                elif skip is not None:
                    grad = grad + skip
            shortcut_grad = None
            if ctx.has_shortcut:
                shortcut_grad = out_grad
                if bits is not None:
                    shortcut_grad = mask_gradient(out_grad, bits, out=torch.empty_like(out_grad))
            finish(aside, [*units, *([] if side is None else [side])], results)
        return None, grad, shortcut_grad, *(value for part in results for value in part), *of_norms
