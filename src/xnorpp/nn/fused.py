"""The fused training path: chains of batch norm, sign, binary convolution, scale and activation on CUDA.
 A binary network repeats one unit, v -> batch norm -> sign -> convolution -> Gamma -> activation, and a
residual block adds its input at the end of one or two of them. Done operation by operation, most of the time
goes into reading and writing tensors between the convolutions, and float copies of signs and clip masks fill
the memory. Here a whole chain is one autograd node:

- forward, a unit: one pass for the batch statistics, one that reads the source and writes the signs with
  their bits, and the convolution. Gamma and the activation have no pass of their own inside a chain: whoever
  reads the dot products next applies them on the way.
- kept for the backward pass: the chain's input, the dot products (2 bytes), one bit a sign, one bit a clip
  mask. With `recompute` the dot products are not kept but computed again from the sign bits.
- backward, a unit: the signs unpacked, the two products of the convolution, one pass for batch norm's sums,
  and one that goes through sign, batch norm, activation and Gamma to the dot products before, summing Gamma's
  gradient.
 Precision. The forward product runs in float16: signs are exact, and so is the dot product up to 2048 in
magnitude (up to 4096 where its parity is even, as with any even number of channels); a bfloat16 result would
round above 256. Gradients are bfloat16 with float32 sums, as under autocast. Everything between the dot
product and the next sign is float32, so the values are closer to the float32 reference than the reference
under autocast is.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.choices import check_choice
from xnorpp.nn.layers import BinaryConv2d
from xnorpp.nn.scale import AnalyticScale, LearnedScale

BACKENDS = ("auto", "fused", "reference")
PRODUCT_DTYPE = torch.float16
GRADIENT_DTYPE = torch.bfloat16
# as the kernels number them
ACTIVATIONS: dict[type, int] = {type(None): 0, nn.Identity: 0, nn.ReLU: 1, nn.PReLU: 2}

_state = {"backend": "auto", "recompute": False}


def set_backend(name: str) -> None:
    """Chooses how chains of binary layers train on CUDA.

    `auto`: fused where it is supported, plain PyTorch elsewhere; `fused`: an error says why where it is not
    supported; `reference`: plain PyTorch always.
    """
    check_choice("name", name, BACKENDS)
    _state["backend"] = name


def get_backend() -> str:
    return str(_state["backend"])


def set_recompute(enabled: bool) -> None:
    """Whether fused chains compute their dot products again in the backward pass instead of keeping them."""
    _state["recompute"] = bool(enabled)


@contextlib.contextmanager
def backend(name: str, recompute: bool = False) -> Iterator[None]:
    """`set_backend` and `set_recompute` for the duration of a `with` block."""
    before = dict(_state)
    set_backend(name)
    set_recompute(recompute)
    try:
        yield
    finally:
        _state.update(before)


@dataclass(frozen=True)
class Unit:
    """Batch norm, the binary convolution behind it (which takes the sign itself), and the activation after
    that.

    `before` is what the model puts between batch norm and convolution; only nothing or nn.Identity can be
    fused.
    """

    norm: nn.Module
    conv: nn.Module
    activation: nn.Module | None = None
    before: nn.Module | None = None

    @property
    def layers(self) -> tuple[Any, Any]:
        return self.norm, self.conv

    def __call__(self, x: Tensor) -> Tensor:
        """The plain version, layer by layer."""
        for layer in (self.norm, self.before, self.conv, self.activation):
            x = x if layer is None else layer(x)
        return x


@functools.cache
def _triton_present() -> bool:
    return importlib.util.find_spec("triton") is not None


def why_not_tensor(x: Any) -> str | None:
    """None where a fused node may take this input, else the reason in one sentence."""
    if not isinstance(x, Tensor):
        return "the input is a symbol of a trace, not a tensor"
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the input is on {x.device.type!r}, and the kernels need CUDA"
    if not _triton_present():
        return "Triton is not installed"
    if not torch.is_grad_enabled():
        return "gradients are off, and the fused path is for training"
    working = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    if working != torch.bfloat16:
        return f"the working dtype is {working}, and the fused path trains in bfloat16 (autocast)"
    return None


def why_not_norm(norm: nn.Module) -> str | None:
    """The same for a batch norm."""
    if type(norm) is not nn.BatchNorm2d or not norm.training or not norm.affine or norm.momentum is None:
        return "the batch norm is not an affine nn.BatchNorm2d in training mode with a fixed momentum"
    return None if norm.weight.dtype == torch.float32 else "the parameters are not float32"


def why_not_unit(unit: Unit) -> str | None:
    """The same for a unit of a chain."""
    conv, activation = unit.conv, unit.activation
    if not isinstance(conv, BinaryConv2d) or not conv.binarizes_input or not conv.binarize_weights:
        return "the convolution does not binarize both its input and its weight"
    if conv.surrogate != "ste" or conv.weight_surrogate != "ste":
        return f"the surrogate gradient is {conv.surrogate!r} / {conv.weight_surrogate!r}, not 'ste'"
    if conv.bias is not None:
        return "the convolution has a bias"
    left, right, top, bottom = conv.pads
    if left != right or top != bottom or (conv.padding_value != 0 and any(conv.pads)):
        return "the padding is not symmetric zeros"
    if isinstance(conv.scale, AnalyticScale) and conv.scale.uses_input:
        return "XNOR-Net's K depends on the input"
    if conv.weight.dtype != torch.float32:
        return "the parameters are not float32"
    if not isinstance(unit.before, (nn.Identity, type(None))):
        return f"{type(unit.before).__name__} stands between batch norm and convolution"
    if type(activation) not in ACTIVATIONS:
        return f"the activation is {type(activation).__name__}, not ReLU, PReLU or none"
    return why_not_norm(unit.norm)


def why_not_chain(x: Any, units: Sequence[Unit]) -> str | None:
    """The same for a chain and its input."""
    reason = why_not_tensor(x)
    for unit in units:
        reason = reason or why_not_unit(unit)
    return reason


def wanted(x: Any, why_not: Callable[[], str | None]) -> bool:
    """Whether to fuse, by the backend that was set and the reason against it."""
    if get_backend() == "reference":
        return False
    reason = why_not()
    if reason is not None and get_backend() == "fused" and isinstance(x, Tensor) and torch.is_grad_enabled():
        raise RuntimeError(f"the fused backend was asked for, but {reason}")
    return reason is None


def use_fused(x: Any, units: Sequence[Unit]) -> bool:
    """Whether `run_chain` should be called for this input, by the backend that was set."""
    return wanted(x, lambda: why_not_chain(x, units))


def chain(x: Tensor, units: Sequence[Unit], shortcut: Tensor | None = None) -> Tensor:
    """units[-1](... units[0](x)) + shortcut, fused where possible and wanted; what models call."""
    if use_fused(x, units):
        result: Tensor = run_chain(x, units, shortcut)
        return result
    for unit in units:
        x = unit(x)
    return x if shortcut is None else x + shortcut


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run_chain(x: Tensor, units: Sequence[Unit], shortcut: Tensor | None = None) -> Tensor:
    """`chain` on the fused path; `shortcut` may be `x` itself, whose two gradients are then added up."""
    size = (x.shape[-2], x.shape[-1])
    tensors: list[Tensor | None] = []
    for unit in units:
        norm, conv = unit.layers
        size = conv.output_size_for(size)
        if isinstance(conv.scale, LearnedScale):
            conv.scale.check_size(size)
        slope = unit.activation.weight if isinstance(unit.activation, nn.PReLU) else None
        factors = conv.scale_factors()
        tensors += [
            norm.weight,
            norm.bias,
            conv.latent_weight(),
            slope,
            *factors,
            *(None,) * (3 - len(factors)),
        ]
    result: Tensor = _Chain.apply(  # type: ignore[no-untyped-call]
        tuple(units),
        bool(_state["recompute"]),
        shortcut is x,
        x,
        None if shortcut is x else shortcut,
        *tensors,
    )
    return result


TENSORS_EACH = (
    7  # what a unit differentiates: batch norm's weight and bias, latent weight, slope, three factors
)


class _UnitTensors:
    """The tensors of one unit, by name, and the convolution's two kinds of product."""

    def __init__(self, unit: Unit, tensors: Sequence[Tensor | None]) -> None:
        self.norm, self.conv = unit.layers
        self.norm_weight, self.norm_bias, self.latent, self.slope, *factors = tensors
        self.factors: tuple[Any, ...] = tuple(factor for factor in factors if factor is not None)
        self.activation = ACTIVATIONS[type(unit.activation)]
        self.geometry = (self.conv.stride, (self.conv.pads[2], self.conv.pads[0]), self.conv.dilation)

    def rescale(self, dots: Tensor) -> Any:
        channels, size = dots.shape[1], (dots.shape[2], dots.shape[3])
        slope = self.slope
        if slope is not None and slope.numel() != channels:
            slope = slope.expand(channels).contiguous()
        return ops().Rescale(
            ops().expand_scale(self.factors, channels, size, dots.device), self.activation, slope
        )

    def dots(self, signs: Tensor) -> Tensor:
        stride, padding, dilation = self.geometry
        weight = ops().weight_signs(self.latent, PRODUCT_DTYPE)
        dots = F.conv2d(signs, weight, None, stride, padding, dilation, self.conv.groups)
        return dots.contiguous(memory_format=torch.channels_last)

    def dots_backward(self, grad_dots: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients for the signs and for the latent weight."""
        stride, padding, dilation = self.geometry
        weight = ops().weight_signs(self.latent, GRADIENT_DTYPE)
        grad_signs, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad_dots, signs, weight, None, stride, padding, dilation, False, (0, 0), self.conv.groups,
            (True, True, False),
        )  # fmt: skip
        return ops().channels_last(grad_signs), ops().weight_gradient(grad_weight, self.latent)

    def rescale_gradients(
        self, grad_gamma: Tensor, grad_slope: Tensor | None, dots: Tensor
    ) -> list[Tensor | None]:
        """The gradients of the slope and of the three factors, as `TENSORS_EACH` orders them."""
        if grad_slope is not None and self.slope is not None and self.slope.numel() != grad_slope.numel():
            grad_slope = grad_slope.sum(0, keepdim=True)
        size = (dots.shape[2], dots.shape[3])
        factors = ops().scale_gradient(grad_gamma, self.factors, dots.shape[1], size)
        return [grad_slope, *factors, *(None,) * (3 - len(factors))]


def _split(units: Sequence[Unit], tensors: Sequence[Tensor | None]) -> list[_UnitTensors]:
    return [
        _UnitTensors(unit, tensors[i * TENSORS_EACH : (i + 1) * TENSORS_EACH]) for i, unit in enumerate(units)
    ]


class _Chain(torch.autograd.Function):
    """A chain of units and the shortcut around them as one node; the module's text says what it keeps."""

    @staticmethod
    def forward(
        ctx: Any,
        units: tuple[Unit, ...],
        recompute: bool,
        identity: bool,
        x: Tensor,
        shortcut: Tensor | None,
        *tensors: Tensor | None,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = ops().channels_last(x)
            source, rescale = x, None
            kept: list[Tensor] = []
            shapes = []
            for unit in _split(units, tensors):
                mean, inverse_std = ops().batch_statistics(source, rescale, unit.norm)
                signs, sign_bits, mask_bits = ops().normalize_sign(
                    source, rescale, mean, inverse_std, unit.norm_weight, unit.norm_bias, PRODUCT_DTYPE
                )
                shapes.append(signs.shape)
                source = unit.dots(signs)
                del signs
                rescale = unit.rescale(source)
                kept += [mean, inverse_std, sign_bits, mask_bits, rescale.gamma]
                if not recompute:
                    kept.append(source)
            added = x if identity else shortcut
            out: Tensor = ops().finish(
                source, rescale, None if added is None else ops().channels_last(added), GRADIENT_DTYPE
            )
        ctx.units, ctx.recompute, ctx.identity, ctx.shapes = units, recompute, identity, shapes
        ctx.has_shortcut = shortcut is not None
        ctx.count = len(tensors)
        ctx.save_for_backward(x, *tensors, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, *saved = ctx.saved_tensors
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        units = _split(ctx.units, tensors)
        each = len(kept) // len(units)
        results: list[list[Tensor | None]] = [[] for _ in units]
        with torch.autocast(x.device.type, enabled=False):
            out_grad = ops().channels_last(grads[0].to(GRADIENT_DTYPE))

            def dots_of(index: int) -> tuple[Tensor, Any]:
                """A unit's dot products, kept or computed again, and what they are rescaled by."""
                _, _, sign_bits, _, gamma, *dots = kept[index * each : (index + 1) * each]
                unit = units[index]
                if not dots:
                    dots = [unit.dots(ops().unpack_signs(sign_bits, ctx.shapes[index], PRODUCT_DTYPE))]
                slope = unit.slope
                if slope is not None and slope.numel() != gamma.shape[1]:
                    slope = slope.expand(gamma.shape[1]).contiguous()
                return dots[0], ops().Rescale(gamma, unit.activation, slope)

            dots, rescale = dots_of(len(units) - 1)
            grad, grad_gamma, grad_slope = ops().finish_backward(out_grad, dots, rescale)
            for index in reversed(range(len(units))):
                unit = units[index]
                for_rescale = unit.rescale_gradients(grad_gamma, grad_slope, dots)
                mean, inverse_std, sign_bits, mask_bits = kept[index * each : index * each + 4]
                signs = ops().unpack_signs(sign_bits, ctx.shapes[index], GRADIENT_DTYPE)
                grad, grad_weight = unit.dots_backward(grad, signs)
                del signs
                dots, rescale = dots_of(index - 1) if index else (x, None)
                skip = out_grad if index == 0 and ctx.identity else None
                grad, grad_norm_weight, grad_norm_bias, grad_gamma, grad_slope = ops().norm_backward(
                    grad, mask_bits, dots, rescale, mean, inverse_std, unit.norm_weight, skip
                )
                results[index] = [grad_norm_weight, grad_norm_bias, grad_weight, *for_rescale]
        shortcut_grad = out_grad if ctx.has_shortcut else None
        return (
            None,
            None,
            None,
            grad,
            shortcut_grad,
            *(value for unit_grads in results for value in unit_grads),
        )


@functools.cache
def ops() -> Any:
    """`fused_ops`, imported when first needed: it needs Triton."""
    return importlib.import_module("xnorpp.nn.fused_ops")
