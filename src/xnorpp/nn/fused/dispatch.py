"""The fused training path: which chains of binary layers train on CUDA in a few passes, and who decides.

A binary network repeats one unit, v -> batch norm -> sign -> convolution -> Gamma -> activation, and a
residual block adds its input at the end of one or two of them. Done operation by operation, most of the time
goes into reading and writing tensors between the convolutions, and float copies of signs and clip masks fill
the memory. `run_chain` makes one autograd node of a whole block (`chain`), `ends` one of a stem's and of a
head's end. Our networks state what they compute (`residual`, `ends.stem`, `ends.mean_head`), and the choice
is made here; `graph.fuse_for_training` finds the same chains in any other module. Otherwise layers run one by
one: on the CPU, in evaluation, while tracing, exporting or compiling, where a hook listens to an inner layer,
and for whatever `why_not_unit` names.
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
from torch import Tensor, nn

from xnorpp.nn.layers import BinaryConv2d
from xnorpp.nn.scales import KERNELS, AnalyticScale, LearnedScale
from xnorpp.runtime.choices import check_choice

BACKENDS = ("auto", "fused", "reference")
"""How chains of binary layers can train on CUDA; see `set_backend`.

Example:
    >>> from xnorpp.nn import BACKENDS
    >>> BACKENDS
    ('auto', 'fused', 'reference')
"""
PRODUCT_DTYPE = torch.float16
GRADIENT_DTYPE = torch.bfloat16
# as the kernels number them
ACTIVATIONS: dict[type, int] = {type(None): 0, nn.Identity: 0, nn.ReLU: 1, nn.PReLU: 2}

# Python starts the kernels of a fused block more slowly than those of plain layers, so outside of a CUDA
# graph fusing pays for large inputs alone. ResNet-18, batch 256, H200, milliseconds per step: at 224 pixels
# (51 million elements into the first block) 22.9 fused against 36.6 plain, at 64 (4 million) 25.8 against
# 13.8; as a graph 11.1 and 4.5. The bound lies between the two inputs.
LARGE_INPUT = 1 << 24

_state = {
    "backend": "auto",
    "recompute": False,
    "graph": False,
    "aside": True,
    "branch": True,
    "late": True,
}


def set_backend(name: str) -> None:
    """Chooses how chains of binary layers train on CUDA.

    `auto`: fused where it is supported and pays (`pays`), plain PyTorch elsewhere; `fused`: raises where
    it is not supported, with the reason; `reference`: plain PyTorch always.

    Example:
        >>> from xnorpp.nn import get_backend, set_backend
        >>> set_backend("reference")
        >>> get_backend()
        'reference'
        >>> set_backend("auto")
    """
    check_choice("name", name, BACKENDS)
    _state["backend"] = name


def get_backend() -> str:
    """The present choice of `set_backend`.

    Example:
        >>> from xnorpp.nn import get_backend
        >>> get_backend()
        'auto'
    """
    return str(_state["backend"])


def set_recompute(enabled: bool) -> None:
    """Whether fused chains compute their dot products again in the backward pass instead of storing them.

    Example:
        >>> from xnorpp.nn import set_recompute
        >>> set_recompute(True)  # less memory, more time
        >>> set_recompute(False)
    """
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


@contextlib.contextmanager
def for_graph() -> Iterator[None]:
    """For steps that are recorded as a CUDA graph, and those that prepare it: launching costs nothing there,
    so `auto` fuses whatever it can."""
    before = _state["graph"]
    _state["graph"] = True
    try:
        yield
    finally:
        _state["graph"] = before


def runs_aside() -> bool:
    """Whether the gradients of weights run on a stream of their own: in CUDA graphs, where starting them is
    free."""
    return bool(_state["graph"] and _state["aside"])


def runs_branch() -> bool:
    """Whether a binary convolution in a shortcut runs on a stream of its own beside the main branch."""
    return bool(runs_aside() and _state["branch"])


def joins_late() -> bool:
    """Whether the gradients of weights are waited for once, at the end of the backward pass, instead of at
    the end of each node."""
    return bool(runs_aside() and _state["late"])


def pays(x: Tensor) -> bool:
    """Whether `auto` fuses what reads `x`: in a CUDA graph, to save memory by `recompute`, or at
    `LARGE_INPUT` elements and more."""
    return bool(_state["graph"] or _state["recompute"]) or x.numel() >= LARGE_INPUT


@dataclass(frozen=True)
class Unit:
    """Batch norm, the binary convolution after it (which takes the sign itself), and the activation after
    that.

    Without `norm` the convolution takes the sign of the input itself. `before` is what the model puts between
    batch norm and convolution; nothing, nn.Identity and nn.ReLU can be fused.
    """

    norm: nn.Module | None
    conv: nn.Module
    activation: nn.Module | None = None
    before: nn.Module | None = None

    @property
    def layers(self) -> tuple[Any, Any]:
        return self.norm, self.conv

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        every = (self.norm, self.before, self.conv, self.activation)
        return tuple(layer for layer in every if layer is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """The plain version, layer by layer."""
        for layer in self.parts:
            x = layer(x)
        return x


@dataclass(frozen=True)
class Side:
    """A unit that stands in the shortcut, after a 2x2 average pooling where `pool` is set."""

    unit: Unit
    pool: bool


@dataclass(frozen=True)
class End:
    """What follows the last convolution of a post-activation block: batch norm, addition, ReLU.

    Attributes:
        norm: The batch norm.
        activation: nn.ReLU, or nothing.
        side: A binary convolution in the shortcut, which reads the chain's own input.
        side_norm: The batch norm that follows it.
        signs: Whether a binary convolution may read the result, so that its signs are worth taking.
    """

    norm: nn.Module
    activation: nn.Module | None = None
    side: Unit | None = None
    side_norm: nn.Module | None = None
    signs: bool = True

    @property
    def norms(self) -> tuple[Any, ...]:
        return (self.norm,) if self.side_norm is None else (self.norm, self.side_norm)

    def __call__(self, y: Tensor, x: Tensor, shortcut: Tensor | None) -> Tensor:
        """The plain version, layer by layer; `y` is what the units made of `x`."""
        y = self.norm(y)
        if self.side is not None and self.side_norm is not None:
            shortcut = self.side_norm(self.side(x))
        if shortcut is not None:
            y = y + shortcut
        return y if self.activation is None else self.activation(y)


@functools.cache
def _triton_present() -> bool:
    return importlib.util.find_spec("triton") is not None


def why_not_kernels(x: Tensor) -> str | None:
    """None where Triton's kernels run on this tensor, else the reason in one sentence."""
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the input is on {x.device.type!r}, and the kernels need CUDA"
    return None if _triton_present() else "Triton is not installed"


def why_not_tensor(x: Any) -> str | None:
    """None where a fused node may take this input, else the reason in one sentence."""
    if not isinstance(x, Tensor):
        return "the input is a symbol of a trace, not a tensor"
    reason = why_not_kernels(x)
    if reason is not None:
        return reason
    if not torch.is_grad_enabled():
        return "gradients are off, and the fused path is for training"
    working = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    if working != torch.bfloat16:
        return f"the working dtype is {working}, and the fused path trains in bfloat16 (autocast)"
    return None


def why_not_norm(norm: nn.Module | None) -> str | None:
    """The same for a batch norm."""
    if norm is None:
        return None
    if type(norm) is not nn.BatchNorm2d or not norm.training or not norm.affine or norm.momentum is None:
        return "the batch norm is not an affine nn.BatchNorm2d in training mode with a fixed momentum"
    return None if norm.weight.dtype == torch.float32 else "the parameters are not float32"


def why_not_unit(unit: Unit) -> str | None:
    """The same for a unit of a chain."""
    conv, activation = unit.conv, unit.activation
    if not isinstance(conv, BinaryConv2d) or not conv.binarizes_input or not conv.weights_are_binary:
        return "the convolution does not binarize both its input and its weight"
    inputs, weights = conv.binarization.inputs, conv.binarization.weights
    if not inputs.fused:
        return f"the gradient of the input's sign is {str(inputs)!r}, not 'ste'"
    if weights.encoding != "sign":
        return f"the weight's quantizer is {str(weights)!r}, not a sign"
    if conv.sets is not None:
        return "the convolution has adaptive sets"
    if conv.bias is not None:
        return "the convolution has a bias"
    left, right, top, bottom = conv.pads
    if left != right or top != bottom or (conv.padding_value != 0 and any(conv.pads)):
        return "the padding is not symmetric zeros"
    reason = why_not_scale(conv)
    if reason is not None:
        return reason
    if conv.scale is not None and conv.scale.uses_input:
        fits = all(2 * pad <= size for pad, size in zip((top, left), conv.kernel_size, strict=True))
        if conv.groups > 1 or max(conv.dilation) > 1 or not fits:
            return "XNOR-Net's K is fused without groups and dilation, and with padding up to half the kernel"
    if conv.weight.dtype != torch.float32:
        return "the parameters are not float32"
    if type(unit.before) not in (nn.Identity, nn.ReLU, type(None)):
        return f"{type(unit.before).__name__} stands between batch norm and convolution"
    if isinstance(unit.before, nn.ReLU) and conv.scale is not None and conv.scale.uses_input:
        return "XNOR-Net's K is not fused with a ReLU between batch norm and convolution"
    return why_not_activation(activation) or why_not_norm(unit.norm) or why_not_hooks(*unit.parts)


def why_not_scale(conv: BinaryConv2d) -> str | None:
    """None where a kernel computes the layer's scale. The scale declares it; that its factors have the shapes
    that the kernel reads is checked here, because a kernel would read past the end of others."""
    scale = conv.scale
    if scale is None:
        return None
    if scale.kernel is None:
        return f"the scale {scale.name!r} declares no fused kernel"
    if getattr(scale, "is_lazy", False):
        return f"the scale {scale.name!r} gets its size at the first forward pass"
    height, width = scale.output_size or (1, 1)
    full = {"c": conv.out_channels, "h": height, "w": width}
    wanted_shapes = [
        tuple(full[axis] if axis in axes else 1 for axis in "chw") for axes in KERNELS[scale.kernel]
    ]
    if isinstance(scale, LearnedScale):
        shapes = [tuple(factor.shape) for factor in scale.factors()]
    else:  # computed from the weight; XNOR-Net's own are known
        shapes = wanted_shapes if type(scale).factors is AnalyticScale.factors else []
    if shapes != wanted_shapes:
        return f"the factors of the scale {scale.name!r} are not those of the kernel {scale.kernel!r}"
    return None


def why_not_activation(activation: nn.Module | None) -> str | None:
    if type(activation) not in ACTIVATIONS:
        return f"the activation is {type(activation).__name__}, not ReLU, PReLU or none"
    return None


def why_not_hooks(*layers: nn.Module) -> str | None:
    """The fused path does not call the layers, so whoever listens to one must get the plain path."""
    for layer in layers:
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
            return f"a hook listens to the {type(layer).__name__}"
    return None


def why_not_end(units: Sequence[Unit], end: End) -> str | None:
    """The same for the end of a post-activation block after these units."""
    if type(end.activation) not in (nn.Identity, nn.ReLU, type(None)):
        return f"the block ends in {type(end.activation).__name__}, not in a ReLU"
    parts = [part for part in (end.activation, *end.norms) if part is not None]
    reason = why_not_hooks(*parts)
    for norm in end.norms:
        reason = reason or why_not_norm(norm)
    if end.side is not None:
        reason = reason or why_not_unit(end.side)
        if not all(unit.norm is None and not _uses_k(unit) for unit in (end.side, *units[:1])):
            reason = reason or "the shortcut's convolution does not read what the first convolution reads"
    return reason


def _uses_k(unit: Unit) -> bool:
    return isinstance(unit.conv, BinaryConv2d) and unit.conv.scale is not None and unit.conv.scale.uses_input


def why_not_layers(units: Sequence[Unit], end: End | None = None) -> str | None:
    """The same for the layers of a chain."""
    reason = None if end is None else why_not_end(units, end)
    for unit in units:
        reason = reason or why_not_unit(unit)
    return reason


def why_not_chain(x: Any, units: Sequence[Unit], end: End | None = None) -> str | None:
    """The same for a chain and its input."""
    return why_not_tensor(x) or why_not_layers(units, end)


def wanted(x: Any, why_not: Callable[[], str | None]) -> bool:
    """Whether to fuse, by the backend that was set and the reason against it."""
    if get_backend() == "reference" or torch.compiler.is_compiling():
        return False
    if get_backend() == "auto" and isinstance(x, Tensor) and not pays(x):
        return False
    reason = why_not()
    if reason is not None and get_backend() == "fused" and isinstance(x, Tensor) and torch.is_grad_enabled():
        raise RuntimeError(f"the fused backend was asked for, but {reason}")
    return reason is None


def use_fused(x: Any, units: Sequence[Unit], end: End | None = None) -> bool:
    """Whether `run_chain` (`run_closed` with an end) should be called for this input, by the backend that was
    set."""
    return wanted(x, lambda: why_not_chain(x, units, end))


def side_of(shortcut: nn.Module, x: Tensor) -> Side | None:
    """The shortcut as a fused `Side` (optional 2x2 average pooling, batch norm, binary convolution), or None
    where it must be computed by itself."""
    layers = dict(shortcut.named_children())
    pool = layers.pop("pool", None)
    if type(shortcut) is not nn.Sequential or list(layers) != ["norm", "conv"]:
        return None
    unit = Unit(layers["norm"], layers["conv"])
    if why_not_unit(unit) or why_not_hooks(shortcut):
        return None
    if pool is None:
        return Side(unit, False)
    halves = isinstance(pool, nn.AvgPool2d) and (pool.kernel_size, pool.stride, pool.padding) == (2, 2, 0)
    even = x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0
    return Side(unit, True) if halves and even and not why_not_hooks(pool) else None


def chain(x: Tensor, units: Sequence[Unit], shortcut: Tensor | None = None, end: End | None = None) -> Tensor:
    """units[-1](... units[0](x)) + shortcut, fused where possible and wanted; with an `end`, which takes the
    shortcut, activation(norm(units(x)) + shortcut)."""
    if use_fused(x, units, end):
        return run_chain(x, units, shortcut) if end is None else run_closed(x, units, end, shortcut)
    y = x
    for unit in units:
        y = unit(y)
    if end is not None:
        return end(y, x, shortcut)
    return y if shortcut is None else y + shortcut


def residual(x: Tensor, units: Sequence[Unit], shortcut: nn.Module, *, each: bool = False) -> Tensor:
    """units[-1](... units[0](x)) + shortcut(x), fused where possible and wanted.

    Args:
        x: The input.
        units: What the shortcut goes around.
        shortcut: nn.Identity, or the layers that change the shape; see `side_of`.
        each: One shortcut around each unit instead, of which the first is `shortcut`.
    """
    fuse = use_fused(x, units)
    side = side_of(shortcut, x) if fuse else None
    added: Any = shortcut(x) if side is None else None
    for part in [[unit] for unit in units] if each else [units]:
        if fuse:
            x = run_chain(x, part, added, side)
        else:
            for unit in part:
                x = unit(x)
            x = x + added
        added, side = x, None
    return x


def run_chain(
    x: Tensor, units: Sequence[Unit], shortcut: Tensor | None = None, side: Side | None = None
) -> Tensor:
    """`chain` on the fused path. `shortcut` may be `x` itself, whose two gradients are then added up; `side`
    in its place is a shortcut with a unit of its own."""
    result: Tensor = _module("chain").run(x, units, shortcut, side, bool(_state["recompute"]))
    return result


def run_closed(x: Tensor, units: Sequence[Unit], end: End, shortcut: Tensor | None = None) -> Tensor:
    """`chain` with an end on the fused path."""
    result: Tensor = _module("closed").run(x, units, end, shortcut, bool(_state["recompute"]))
    return result


@functools.cache
def _module(name: str) -> Any:
    """A module that needs Triton, imported when first needed."""
    return importlib.import_module(f"xnorpp.nn.fused.{name}")
