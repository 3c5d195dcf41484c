"""One unit of a fused chain: its tensors, and its steps in both directions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.fused import ops
from xnorpp.nn.fused.close_ops import Signs
from xnorpp.nn.fused.dispatch import (
    ACTIVATIONS,
    GRADIENT_DTYPE,
    PRODUCT_DTYPE,
    Unit,
    joins_late,
    runs_aside,
    runs_branch,
)
from xnorpp.nn.fused.weights import Latent, clamp_of, weight_gradient, weight_signs

# What a unit differentiates: batch norm's weight and bias, latent weight, slope, three factors.
TENSORS_EACH = 7
LATENT = 2  # the latent weight's place among them
DTYPES = (PRODUCT_DTYPE, GRADIENT_DTYPE)


def tensors_of(unit: Unit, input_size: tuple[int, int]) -> list[Tensor | None]:
    norm, conv = unit.layers
    conv.fit_scale(input_size)
    slope = unit.activation.weight if isinstance(unit.activation, nn.PReLU) else None
    factors = conv.scale_factors()
    of_norm = (None, None) if norm is None else (norm.weight, norm.bias)
    weights = conv.binarization.weights
    if clamp_of(conv) is not None:
        latent = conv.weight
    elif weights.fused:
        latent = conv.latent_weight()
    else:
        # The kernels pass a gradient on where |w| <= 1, so everywhere to signs, and autograd does the rest.
        latent = weights(conv.latent_weight(), conv.progress)
    return [*of_norm, latent, slope, *factors, *(None,) * (3 - len(factors))]


def _same_order(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape lie in memory alike."""
    return all(n == 1 or i == j for n, i, j in zip(a.shape, a.stride(), b.stride(), strict=True))


@functools.cache
def _side_stream(device: torch.device, name: str) -> Any:  # pragma: cuda only
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


Made = TypeVar("Made")


class Aside:
    """Runs work that nothing needs for a while on a stream of its own.

    The gradients of the weights are such work: they keep the tensor cores busy while the main stream's passes
    over activations wait for memory. So is the convolution of a shortcut ("branch"). `join` makes the stream
    that calls it wait, before it reads a result and at the latest at the end of the node.
    """

    def __init__(self, x: Tensor, name: str = "weights") -> None:
        wanted = runs_branch() if name == "branch" else runs_aside()
        self.device = x.device
        self.stream = _side_stream(x.device, name) if x.is_cuda and wanted else None
        self.held: list[Any] = []
        self.used = False

    def __call__(self, work: Callable[[], Made], *reads: Any) -> Made:
        """`work`, which reads these tensors of the main stream; they live until `join`."""
        if self.stream is None:
            return work()
        self.used = True  # pragma: cuda only
        self.held += reads  # pragma: cuda only
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))  # pragma: cuda only
        with torch.cuda.stream(self.stream):  # pragma: cuda only
            return work()

    def join(self) -> None:
        # A stream that took no part in a recording must not be waited for in it.
        if self.stream is not None and self.used:  # pragma: cuda only
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        self.held.clear()
        self.used = False


@dataclass
class _Late:
    """The gradients of weights that a backward pass has not waited for yet."""

    task: int
    asides: list[Aside] = field(default_factory=list)
    gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def settle(self) -> None:
        """Waits for them, and adds them to `.grad`: the last act of the backward pass, on the stream that
        called it."""
        for aside in self.asides:
            aside.join()
        for weight, gradient in self.gradients:
            if weight.grad is None:
                weight.grad = gradient
            else:
                weight.grad.add_(gradient)
        self.asides.clear()
        self.gradients.clear()


_late: dict[torch.device, _Late] = {}


def finish(aside: Aside, units: Sequence[UnitTensors], results: Sequence[list[Tensor | None]]) -> None:
    """The end of a node's backward pass: waits for what ran aside.

    With `joins_late` it does not wait for gradients of weights that are parameters without hooks. Autograd
    must not touch those before they are ready, so they are taken out of `results`, and the end of the whole
    backward pass puts them into `.grad`.
    """
    if not units or not joins_late() or not all(unit.weight_is_parameter for unit in units):
        aside.join()
        return
    device, task = aside.device, torch._C._current_graph_task_id()
    late = _late.get(device)
    if late is None or late.task != task:  # a backward pass that failed may have left one
        late = _late[device] = _Late(task)
        torch.autograd.Variable._execution_engine.queue_callback(late.settle)
    late.asides.append(aside)
    for unit, found in zip(units, results, strict=True):
        gradient = found[LATENT]
        assert gradient is not None
        late.gradients.append((unit.conv.weight, gradient))
        found[LATENT] = None


@dataclass
class Kept:
    """What the backward pass of a unit needs; dots and weight are None when they are to be computed again, k
    where the layer has none, mean and inverse_std where nothing is normalized, filters where the weight's are
    not standardized."""

    mean: Tensor | None
    inverse_std: Tensor | None
    sign_bits: Tensor
    mask_bits: Tensor
    k: Tensor | None
    dots: Tensor | None
    weight: Tensor | None
    filters: Tensor | None

    FIELDS = ("mean", "inverse_std", "sign_bits", "mask_bits", "k", "dots", "weight", "filters")

    def tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, name) for name in self.FIELDS)

    def without_products(self) -> Kept:
        """The same, less what the backward pass is to compute again."""
        return replace(self, dots=None, weight=None)


class UnitTensors:
    """The tensors of one unit, by name, and its steps in both directions."""

    def __init__(self, unit: Unit, tensors: Sequence[Tensor | None]) -> None:
        self.norm, self.conv = unit.layers
        norm_weight, norm_bias, latent, self.slope, *factors = tensors
        assert latent is not None
        self.norm_weight, self.norm_bias = norm_weight, norm_bias
        self.latent = Latent(latent, clamp_of(self.conv), self.conv.progress)
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
    def weight_is_parameter(self) -> bool:
        """Whether the latent weight is a parameter of the layer whose gradient nobody listens to."""
        weight = self.conv.weight
        listens = weight._backward_hooks or weight._post_accumulate_grad_hooks
        return self.latent.weight is weight and weight.is_leaf and weight.requires_grad and not listens

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

    @property
    def reads_signs(self) -> bool:
        """Whether the signs of the source are all that the unit reads: no batch norm, no K."""
        return self.norm is None and not self.uses_k

    def forward(
        self,
        source: Tensor,
        rescale: ops.Rescale | None,
        moments: ops.Moments | None,
        recompute: bool,
        ready: Signs | None = None,
    ) -> tuple[Tensor, Kept]:
        """The unit's dot products, and what its backward pass needs; `ready` are the signs of the source."""
        norm_weight, norm_bias = self.norm_weight, self.norm_bias
        mean: Tensor | None
        inverse_std: Tensor | None
        if ready is not None and self.reads_signs:
            weights = weight_signs(self.latent, DTYPES)
            dots = self.dots(ready.values, weights.half)
            kept = Kept(None, None, ready.sign_bits, ready.mask_bits, None, dots, weights.wide, weights.table)
            return dots, kept.without_products() if recompute else kept
        if norm_weight is None or norm_bias is None:  # no batch norm: one that changes nothing
            weights = weight_signs(self.latent, DTYPES)
            mean = norm_bias = torch.zeros(source.shape[1], dtype=torch.float32, device=source.device)
            inverse_std = norm_weight = torch.ones_like(mean)
        else:
            mean, inverse_std, found = ops.statistics(
                moments or ops.moments(source, rescale), self.norm, self.latent, DTYPES
            )
            assert found is not None
            weights = found
        signs, sign_bits, mask_bits, sizes = ops.normalize_sign(
            source, rescale, mean, inverse_std, norm_weight, norm_bias, PRODUCT_DTYPE, self.uses_k, self.relu
        )
        k = None if sizes is None else self.input_scale(sizes, source)
        dots = self.dots(signs, weights.half)
        kept = Kept(mean, inverse_std, sign_bits, mask_bits, k, dots, weights.wide, weights.table)
        return dots, kept.without_products() if recompute else kept

    def dots_again(self, kept: Kept, shape: torch.Size) -> Tensor:
        """The dot products, saved or computed again from the sign bits."""
        if kept.dots is not None:
            return kept.dots
        signs = weight_signs(self.latent, DTYPES)
        kept.weight = signs.wide
        return self.dots(ops.unpack_signs(kept.sign_bits, shape, PRODUCT_DTYPE), signs.half)

    def _product(
        self, signs: Tensor, grad_dots: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor]:
        """The gradients of a convolution's input and weight, those that are wanted."""
        stride, padding, dilation = self.geometry
        rest = (None, stride, padding, dilation, False, (0, 0), self.conv.groups)
        grad, grad_weight, _ = torch.ops.aten.convolution_backward(grad_dots, signs, weight, *rest, wanted)
        return grad, grad_weight

    def weight_product(self, kept: Kept, grad_dots: Tensor, shape: torch.Size, aside: Aside) -> Tensor:
        """The gradient of the latent weight, computed aside."""
        if kept.weight is None:
            kept.weight = weight_signs(self.latent, DTYPES).wide
        weight = kept.weight

        def work() -> Tensor:
            signs = ops.unpack_signs(kept.sign_bits, shape, GRADIENT_DTYPE)
            _, grad_weight = self._product(signs, grad_dots, weight, (False, True, False))
            latent = self.latent.weight
            if not _same_order(grad_weight, latent):
                grad_weight = torch.empty_like(latent, dtype=grad_weight.dtype).copy_(grad_weight)
            return weight_gradient(grad_weight, self.latent, kept.filters)

        return aside(work, grad_dots, weight, kept.sign_bits, kept.filters)

    def input_product(self, kept: Kept, grad_dots: Tensor, shape: torch.Size) -> Tensor:
        """The gradient of the signs that the unit read, of `shape`; `weight_product` comes first."""
        assert kept.weight is not None
        # Of what the convolution read, its gradient needs the shape alone.
        like = torch.empty(
            shape, dtype=GRADIENT_DTYPE, device=grad_dots.device, memory_format=torch.channels_last
        )
        return ops.channels_last(self._product(like, grad_dots, kept.weight, (True, False, False))[0])

    def sign_backward(
        self,
        kept: Kept,
        grad_dots: Tensor,
        sums: ops.RescaleSums,
        shape: torch.Size,
        aside: Aside,
        branch: Aside,
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient of the signs alone, and this unit's own gradients, for a unit that reads signs."""
        grad_latent = self.weight_product(kept, grad_dots, shape, aside)
        found = branch(lambda: ops.collect(None, sums), sums)
        return self.input_product(kept, grad_dots, shape), self._gradients(found, grad_latent)

    def backward(
        self,
        kept: Kept,
        grad_dots: Tensor,
        sums: ops.RescaleSums,
        source: Tensor,
        rescale: ops.Rescale | None,
        aside: Aside,
        skip: Tensor | None = None,
        pooled_skip: Tensor | None = None,
    ) -> tuple[Tensor, ops.RescaleSums | None, list[Tensor | None]]:
        """The gradient of the source with the sums for its rescaling, and this unit's own gradients."""
        assert kept.mean is not None
        assert kept.inverse_std is not None
        grad_latent = self.weight_product(kept, grad_dots, source.shape, aside)
        grad = self.input_product(kept, grad_dots, source.shape)
        sizes = None if kept.k is None else self.sizes_gradient(sums, source, kept.sign_bits)
        norm_weight = self.norm_weight
        if norm_weight is None:  # nothing is subtracted, so that the gradient passes as it is
            partial, norm_weight = kept.mean.new_zeros((2, 1, source.shape[1])), kept.inverse_std
        else:
            partial = ops.norm_backward_sums(
                grad, kept.mask_bits, source, rescale, kept.mean, kept.inverse_std, sizes
            )
        found = ops.collect(partial, sums)
        grad, source_sums = ops.norm_backward(
            grad, kept.mask_bits, source, rescale, kept.mean, kept.inverse_std, norm_weight, found.norm,
            skip, pooled_skip, sizes,
        )  # fmt: skip
        return grad, source_sums, self._gradients(found, grad_latent)

    def _gradients(self, found: ops.Collected, grad_latent: Tensor) -> list[Tensor | None]:
        """This unit's gradients in the order of its tensors."""
        slope = found.slope
        if slope is not None and self.slope is not None and self.slope.numel() != slope.numel():
            slope = slope.sum(0, keepdim=True)
        fill = (None,) * (3 - len(found.factors))
        of_norm = (None, None) if self.norm_weight is None else (found.norm[1], found.norm[0])
        return [*of_norm, grad_latent, slope, *found.factors, *fill]


def split(
    units: Sequence[Unit], tensors: Sequence[Tensor | None]
) -> tuple[list[UnitTensors], Sequence[Tensor | None]]:
    """The units, each with its own part of `tensors`, and the tensors that are left."""
    parts = [
        UnitTensors(unit, tensors[i * TENSORS_EACH : (i + 1) * TENSORS_EACH]) for i, unit in enumerate(units)
    ]
    return parts, tensors[len(units) * TENSORS_EACH :]


def sizes_after(units: Sequence[UnitTensors], shape: torch.Size) -> list[torch.Size]:
    """The shape that each unit reads, from that of the first."""
    shapes = [shape]
    for unit in units[:-1]:
        size = unit.conv.output_size_for((shapes[-1][2], shapes[-1][3]))
        shapes.append(torch.Size((shape[0], unit.conv.out_channels, *size)))
    return shapes


def signs_of(x: Tensor) -> Signs:
    """The signs of a real tensor."""
    zero = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
    one = torch.ones_like(zero)
    values, sign_bits, mask_bits, _ = ops.normalize_sign(x, None, zero, one, one, zero, PRODUCT_DTYPE)
    return Signs(values, sign_bits, mask_bits)
