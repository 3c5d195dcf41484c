"""Quantizers: sign and its surrogate gradients, as functions and as small objects in a registry.

Every sign here has the same forward pass, Eq. 1 of the paper, and differs only in the gradient:

    sign(x) = +1 if x > 0 else -1          (so sign(0) = -1, and sign(NaN) = -1)

The output is exactly +1 or -1 in every floating dtype. The gradient is written with ordinary differentiable
operations, so `torch.compile`, `torch.export`, `torch.func` and autocast see nothing special: with `slope`
the stated derivative and `c = x * slope`, the value `sign(x) + (c - c.detach())` is `sign(x)` plus an exact
zero, and its derivative is `slope`. Adding `x` itself, `x + (sign(x) - x).detach()`, would round in half
precision and give 0.996 for +1. In eager mode an `autograd.Function` computes the same two formulas in fewer
passes over memory; it is never used under compilation, where functions with a saved mask have been seen to
lose the gradient.

A quantizer of your own is a subclass of `Quantizer` that states its gradient:

    @register_quantizer("triangle")
    class TriangleSign(Quantizer):
        def slope(self, x, progress):
            return (1 - x.abs()).clamp(min=0)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from xnorpp.runtime.registry import Registry, split_call

Progress = float | Tensor


def hard_sign(x: Tensor) -> Tensor:
    """Eq. 1 without any gradient: +1 where x > 0, else -1, in the dtype of `x`.

    As `threshold(torch.sign(x))`, two vectorised passes: a tenth of the time of `torch.where` with two
    constants.

    Example:
        >>> import torch
        >>> from xnorpp.nn import hard_sign
        >>> hard_sign(torch.tensor([-0.5, 0.0, 0.5]))
        tensor([-1., -1.,  1.])
    """
    return torch.threshold(torch.sign(x.detach()), 0.0, -1.0)


def sign(x: Tensor, progress: Progress = 0.0) -> Tensor:
    """Eq. 1 with the straight-through gradient clipped at 1.

    forward:   sign(x) = +1 if x > 0 else -1
    gradient:  d/dx = 1 if |x| <= 1 else 0
    paper:     Courbariaux et al. 2016, "Binarized Neural Networks", https://arxiv.org/abs/1602.02830

    Example:
        >>> import torch
        >>> from xnorpp.nn import sign
        >>> x = torch.tensor([-2.0, -0.5, 0.5], requires_grad=True)
        >>> sign(x).sum().backward()
        >>> x.grad
        tensor([0., 1., 1.])
    """
    if _plain_operations():
        carrier = torch.where(x.abs() <= 1, x, 0.0)
        return hard_sign(x) + (carrier - carrier.detach())
    return _apply_sign(_ClippedSign, x)


def sign_with_slope(x: Tensor, slope: Tensor) -> Tensor:
    """sign(x) with derivative `slope`. Where that is 0 the carrier is 0 too: 0 * inf never appears.

    Example:
        >>> import torch
        >>> from xnorpp.nn import sign_with_slope
        >>> x = torch.tensor([-2.0, 0.5], requires_grad=True)
        >>> sign_with_slope(x, torch.tensor([0.25, 0.75])).sum().backward()
        >>> x.grad
        tensor([0.2500, 0.7500])
    """
    if _plain_operations():
        carrier = torch.where((slope > 0) | (slope < 0), x * slope.detach(), 0.0)  # not where NaN
        return hard_sign(x) + (carrier - carrier.detach())
    return _apply_sign(_SlopedSign, x, slope)


@dataclass(frozen=True)
class Quantizer:
    """How one side of a layer (its input or its weight) becomes binary, and with which gradient.

    A subclass defines `slope`, the derivative that stands for that of the sign, and states it in its
    docstring with the paper it comes from. Parameters are dataclass fields. A quantizer with another forward
    pass overrides `__call__` and sets `encoding`.

    Attributes:
        encoding: What the output is: "sign" is exactly Eq. 1, which packs as one bit; None is the real input.
        anneals: Whether `progress` matters; the training loop then sets it at every step.
        fused: Whether the fused CUDA kernels compute this gradient. They compute that of `Sign`; of a weight,
            they take the signs of any other quantizer and leave its gradient to autograd.

    Example:
        >>> from xnorpp.nn import Binarization
        >>> config = Binarization(inputs=PolynomialSign(), weights=TanhSign(end=20.0))
    """

    encoding: ClassVar[str | None] = "sign"
    anneals: ClassVar[bool] = False
    fused: ClassVar[bool] = False

    def slope(self, x: Tensor, progress: Progress) -> Tensor:
        """The derivative at `x`, in the shape and dtype of `x`; it is not differentiated itself."""
        raise NotImplementedError(f"{type(self).__name__} must define `slope` or `__call__`")

    def __call__(self, x: Tensor, progress: Progress = 0.0) -> Tensor:
        """The quantized tensor.

        Args:
            x: The real tensor.
            progress: The finished fraction of training, 0 to 1.
        """
        return sign_with_slope(x, self.slope(x.detach(), progress))

    def __str__(self) -> str:
        """As a recipe writes it: `ste`, `tanh(end=20.0)`, `package.module:Class`."""
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        name = QUANTIZERS.name_of(type(self))
        return f"{name}({', '.join(changed)})" if changed else name


def _check_quantizer(kind: type[Quantizer]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Quantizer)):
        raise TypeError(f"{kind!r} is not a subclass of xnorpp.nn.Quantizer")


QUANTIZERS: Registry[type[Quantizer]] = Registry("quantizer", _check_quantizer)
"""The quantizers by name; `register_quantizer` adds one.

Example:
    >>> from xnorpp.nn import QUANTIZERS
    >>> QUANTIZERS["ste"].__name__
    'Sign'
"""

Kind = TypeVar("Kind", bound=type[Quantizer])


def register_quantizer(name: str) -> Callable[[Kind], Kind]:
    """A class decorator: the quantizer can be named in recipes, on the command line and in `Binarization`.

    Args:
        name: A new name without colon, space or parenthesis.

    Raises:
        ValueError: The name is taken or not allowed.
        TypeError: The class is not a subclass of `Quantizer`.

    Example:
        >>> @register_quantizer("triangle")
        ... class TriangleSign(Quantizer):
        ...     def slope(self, x, progress):
        ...         return (1 - x.abs()).clamp(min=0)
    """

    def decorate(kind: Kind) -> Kind:
        QUANTIZERS.add(name, kind)
        return kind

    return decorate


def find_quantizer(value: Quantizer | str, argument: str = "quantizer") -> Quantizer:
    """A quantizer, from itself or from `name`, `name(key=value)` or `package.module:Class`.

    Raises:
        ValueError: There is no such quantizer, or it does not take these parameters.
    """
    if isinstance(value, Quantizer):
        return value
    if not isinstance(value, str):
        raise ValueError(f"`{argument}` (={value!r}) must be a Quantizer or the name of one")
    name, parameters = split_call(argument, value)
    kind = QUANTIZERS.find(name, argument)
    try:
        return kind(**parameters)
    except TypeError:
        known = ", ".join(field.name for field in fields(kind)) or "none"
        raise ValueError(f"`{argument}` (={value!r}) has an unknown parameter; {name} has {known}") from None


@register_quantizer("ste")
class Sign(Quantizer):
    """The sign with the straight-through gradient clipped at 1.

    gradient:  d/dx = 1 if |x| <= 1 else 0
    paper:     Courbariaux et al. 2016, "Binarized Neural Networks", https://arxiv.org/abs/1602.02830

    Example:
        >>> import torch
        >>> from xnorpp.nn import Sign
        >>> Sign().slope(torch.tensor([-2.0, 0.5]), progress=0.0)
        tensor([0., 1.])
    """

    fused = True

    def slope(self, x: Tensor, progress: Progress) -> Tensor:
        return (x.abs() <= 1).to(x.dtype)

    def __call__(self, x: Tensor, progress: Progress = 0.0) -> Tensor:
        return sign(x)


@register_quantizer("polynomial")
class PolynomialSign(Quantizer):
    """The sign with the derivative of Bi-Real Net's piecewise polynomial.

    gradient:  d/dx = 2 - 2|x| if |x| <= 1 else 0
    paper:     Liu et al. 2018, "Bi-Real Net", https://arxiv.org/abs/1808.00278

    Example:
        >>> import torch
        >>> from xnorpp.nn import PolynomialSign
        >>> PolynomialSign().slope(torch.tensor([-2.0, 0.5]), progress=0.0)
        tensor([0., 1.])
    """

    def slope(self, x: Tensor, progress: Progress) -> Tensor:
        return torch.clamp(2 - 2 * x.abs(), min=0)


@register_quantizer("tanh")
@dataclass(frozen=True)
class TanhSign(Quantizer):
    """The sign with IR-Net's tanh, which sharpens during training.

    gradient:  d/dx = k * t * (1 - tanh(t x)^2),  t = start * (end/start)^progress,  k = max(1/t, 1)
    paper:     Qin et al. 2020, "Forward and Backward Information Retention ... Binary Neural Networks",
               https://arxiv.org/abs/1909.10788

    Attributes:
        start: t at the start of training.
        end: t at its end.

    Example:
        >>> from xnorpp.nn import BinaryConv2d, TanhSign
        >>> layer = BinaryConv2d(16, 32, 3, config={"inputs": TanhSign(end=20.0)})
        >>> str(layer.binarization.inputs)
        'tanh(end=20.0)'
    """

    anneals = True

    start: float = 0.1
    end: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.start <= self.end:
            raise ValueError(f"`start` (={self.start}) and `end` (={self.end}) must be positive and rising")

    def slope(self, x: Tensor, progress: Progress) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        # A tensor, so that it may change without recompilation.
        fraction = torch.as_tensor(progress, dtype=dtype, device=x.device)
        sharpness = self.start * (self.end / self.start) ** fraction
        height = torch.clamp(1 / sharpness, min=1.0)
        tanh = torch.tanh(sharpness * x.to(dtype))
        return (height * sharpness * (1 - tanh * tanh)).to(x.dtype)


@register_quantizer("window")
@dataclass(frozen=True)
class WindowSign(Quantizer):
    """The sign with a straight-through gradient whose window narrows during training.

    gradient:  d/dx = 1 if |x| <= c else 0,  c = start + (end - start) * progress
    paper:     Zhang et al. 2022, "PokeBNN", https://arxiv.org/abs/2112.00133 (a window of 3)

    Attributes:
        start: The window c at the start of training.
        end: The window at its end; equal to `start` for one that stays.

    Example:
        >>> import torch
        >>> from xnorpp.nn import WindowSign
        >>> quantizer, x = WindowSign(start=3.0, end=1.0), torch.tensor([2.5])
        >>> quantizer.slope(x, progress=0.0), quantizer.slope(x, progress=1.0)
        (tensor([1.]), tensor([0.]))
    """

    anneals = True

    start: float = 3.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if not (self.start > 0 and self.end > 0):
            raise ValueError(f"`start` (={self.start}) and `end` (={self.end}) must be positive")

    def slope(self, x: Tensor, progress: Progress) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        fraction = torch.as_tensor(progress, dtype=dtype, device=x.device)
        return (x.abs() <= self.start + (self.end - self.start) * fraction).to(x.dtype)


@register_quantizer("recu")
@dataclass(frozen=True)
class RectifiedClampSign(Quantizer):
    """The sign with the gradient of ReCU's clamp, for weights with `standardize_weights`.

    Weights beyond a quantile of their distribution, taken as Laplace's, are clamped to it before the sign.
    The clamp changes no sign; its gradient leaves those outliers alone, and the quantile rises during
    training.

    gradient:  d/dx = 1 if |x| <= Q else 0,  Q = -mean|x| * ln(2 - 2 t),
               t = start + (end - start) * (e^progress - 1) / (e - 1)
    paper:     Xu et al. 2021, "ReCU: Reviving the Dead Weights in Binary Neural Networks",
               https://arxiv.org/abs/2103.12369

    Attributes:
        start: The quantile t at the start of training.
        end: The quantile at its end.

    Example:
        >>> from xnorpp.nn import Binarization, RectifiedClampSign
        >>> Binarization(weights=RectifiedClampSign(end=0.95), standardize_weights=True).anneals
        True
    """

    anneals = True

    start: float = 0.85
    end: float = 0.99

    def __post_init__(self) -> None:
        if not 0.5 < self.start <= self.end < 1:
            raise ValueError(
                f"`start` (={self.start}) and `end` (={self.end}) must lie between 0.5 and 1, and rise"
            )

    def slope(self, x: Tensor, progress: Progress) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        fraction = torch.as_tensor(progress, dtype=dtype, device=x.device)
        share = (torch.exp(fraction) - 1) / (math.e - 1)
        quantile = self.start + (self.end - self.start) * share
        bound = -x.to(dtype).abs().mean() * torch.log(2 - 2 * quantile)
        return (x.abs() <= bound).to(x.dtype)


@register_quantizer("real")
class Identity(Quantizer):
    """No quantization: the real tensor, whose gradient is 1.

    Example:
        >>> import torch
        >>> from xnorpp.nn import Identity
        >>> Identity()(torch.tensor([-0.5, 2.0]))
        tensor([-0.5000,  2.0000])
    """

    encoding = None

    def __call__(self, x: Tensor, progress: Progress = 0.0) -> Tensor:
        return x


def polynomial_sign(x: Tensor, progress: Progress = 0.0) -> Tensor:
    """`PolynomialSign` as a function.

    Example:
        >>> import torch
        >>> from xnorpp.nn import polynomial_sign
        >>> polynomial_sign(torch.tensor([-0.5, 0.0, 0.5]))
        tensor([-1., -1.,  1.])
    """
    return PolynomialSign()(x, progress)


def tanh_sign(x: Tensor, progress: Progress = 0.0) -> Tensor:
    """`TanhSign` as a function.

    Example:
        >>> import torch
        >>> from xnorpp.nn import tanh_sign
        >>> tanh_sign(torch.tensor([-0.5, 0.0, 0.5]), progress=0.5)
        tensor([-1., -1.,  1.])
    """
    return TanhSign()(x, progress)


def _plain_operations() -> bool:
    """Whether to write the gradient with differentiable operations: under compilation, and inside of
    `torch.func` transforms (vmap, grad, ...), which do not take an `autograd.Function` of the short form."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _apply_sign(function: type[torch.autograd.Function], *arguments: Tensor) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _ClippedSign(torch.autograd.Function):
    """Eager `sign`: backward is one call of hardtanh's; its open interval (-1-eps, 1+eps) is |x| <= 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return hard_sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        bound = 1 + torch.finfo(x.dtype).eps
        grad: Tensor = torch.ops.aten.hardtanh_backward(grads[0], x, -bound, bound)
        return grad


class _SlopedSign(torch.autograd.Function):
    """Eager sign with a slope that was computed without gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return hard_sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None
