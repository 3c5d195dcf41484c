"""Chains that train fused, found in the graph of any module.

Our own networks state their chains (`dispatch.residual`). `fuse_for_training` finds those of any other
network: it traces every module of the model's own code with torch.fx, finds

    [batch norm -> [ReLU ->]] binary convolution [-> ReLU or PReLU] [+ shortcut]
    binary convolution ... -> batch norm [+ shortcut] [-> ReLU], the end of a post-activation block

and lets these modules run a graph in which each such chain is one call that chooses, at every step, between
the fused kernels and the plain layers (`dispatch.chain`). Two chains that follow each other become one.
Layers stay where they are, so that parameters, names, state dictionaries and hooks on layers are unchanged.

The graph is used in training mode alone; evaluation, packing, exporting and compiling see the module's own
code. A model that is pickled whole runs its own code again until `fuse_for_training` is called anew. A module
whose forward pass torch.fx cannot follow is left as it is. As ever with torch.fx, decisions
that Python takes in `forward` are recorded once: a module that draws Python random numbers there must not be
fused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from xnorpp.nn.controls import binary_layers
from xnorpp.nn.fused.dispatch import End, Unit, chain, why_not_layers
from xnorpp.nn.fused.segments import segments
from xnorpp.nn.layers import BinaryConv2d, BinaryLayer
from xnorpp.runtime.errors import XnorppError


@dataclass(frozen=True)
class Chain:
    """A chain that was found.

    Attributes:
        path: The module whose forward pass it is in; "" is the model itself.
        layers: The paths of its layers in that module, in order.
        shortcut: Whether a shortcut is added at its end.
        plain: Why it trains on the plain layers all the same; None where the kernels can run it.
    """

    path: str
    layers: tuple[str, ...]
    shortcut: bool
    plain: str | None = field(default=None, compare=False)


def fuse_for_training(model: nn.Module) -> tuple[Chain, ...]:
    """Lets the binary layers of any module train on the fused path, in place.

    Call it after `binarize` and before compiling or wrapping. On a CUDA device in bfloat16 autocast the
    chains then run on the fused kernels where the chosen backend allows it (`set_backend`); everywhere else
    the numbers are those of the plain layers.

    Args:
        model: Any module. Networks of `create_model` have the fused path already and are left as they are.

    Returns:
        The chains that were found, none where there is nothing to fuse.

    Example:
        >>> norm, conv = nn.BatchNorm2d(64), BinaryConv2d(64, 64, 3, padding=1, bias=False)
        >>> net = nn.Sequential(norm, conv, nn.PReLU(64))
        >>> len(fuse_for_training(net))
        1
    """
    return find_chains(model).chains


@dataclass(frozen=True)
class Fusion:
    """What the graph pass did to a model.

    Attributes:
        chains: The chains that it found.
        refused: The modules that torch.fx could not follow, and why.
        left: The binary convolutions that no chain holds and that have no fused path of their own.
    """

    chains: tuple[Chain, ...]
    refused: dict[str, str]
    left: tuple[str, ...]

    def __str__(self) -> str:
        plain = [one for one in self.chains if one.plain is not None]
        count = len(self.chains)
        text = f"{count - len(plain)} of {count} chains of layers train on the fused path"
        for one in plain[:3]:
            first = ".".join(part for part in (one.path, one.layers[0]) if part)
            text += f"; the one at {first} does not, because {one.plain}"
        text += f"; and {len(plain) - 3} more" if len(plain) > 3 else ""
        if self.left:
            shown = ", ".join(self.left[:3]) + (", ..." if len(self.left) > 3 else "")
            text += f"; {len(self.left)} binary layers do not ({shown})"
        for path, reason in self.refused.items():
            text += f"; {path or 'the network'} cannot be traced ({reason})"
        return text


def find_chains(model: nn.Module) -> Fusion:
    """`fuse_for_training`, with what was not fused and why."""
    unfuse(model)
    chains: list[Chain] = []
    refused: dict[str, str] = {}
    rewritten: set[nn.Module] = set()
    owners = [
        (path, module)
        for path, module in model.named_modules()
        if any(isinstance(m, BinaryConv2d) for m in module.modules()) and not isinstance(module, BinaryLayer)
    ]
    # Inner modules first; a container of torch's own is followed from the module that uses it, which sees
    # more.
    for path, module in reversed(owners):
        if module is not model and type(module).__module__.startswith("torch.nn"):
            continue
        if getattr(module, "fuses_itself", False):
            rewritten.add(module)
            continue
        try:
            found = _rewrite(path, module, rewritten)
        except _CannotTrace as error:
            refused[path] = str(error)
            continue
        if found:
            rewritten.add(module)
            chains = found + chains
    left = unfused_layers(model)
    # A module that cannot be traced matters only where a binary layer is left in it.
    refused = {path: why for path, why in refused.items() if any(_lies_in(layer, path) for layer in left)}
    return Fusion(tuple(chains), refused, left)


def _lies_in(layer: str, path: str) -> bool:
    return not path or layer.startswith(path + ".")


class _CannotTrace(XnorppError):
    """torch.fx cannot follow a module; the text is its reason."""


def unfuse(model: nn.Module) -> None:
    """Undoes `fuse_for_training`."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), _FusedForward):
            del module.forward


class _Tracer(torch.fx.Tracer):
    def __init__(self, opaque: set[nn.Module]) -> None:
        super().__init__()
        self.opaque = opaque

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return (
            module in self.opaque or isinstance(module, BinaryLayer) or super().is_leaf_module(module, path)
        )


class _Call(nn.Module):
    """One chain in a graph. Its layers belong to the model, so they are not registered here."""

    def __init__(self, units: tuple[Unit, ...], end: End | None) -> None:
        super().__init__()
        self.units = units
        # Not as an attribute of the module: nn.Module would register what is in it.
        self.ends = (end,)

    @property
    def every_unit(self) -> tuple[Unit, ...]:
        (end,) = self.ends
        return self.units if end is None or end.side is None else (*self.units, end.side)

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        return chain(x, self.units, shortcut, self.ends[0])


class _FusedForward:
    """The forward pass of a module: the graph with the chains in training mode, else its own code."""

    def __init__(self, module: nn.Module, graph: torch.fx.GraphModule | None) -> None:
        self.module, self.graph = module, graph

    def __deepcopy__(self, memo: dict[int, Any]) -> _FusedForward:
        return _FusedForward(copy.deepcopy(self.module, memo), copy.deepcopy(self.graph, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        # torch.fx cannot pickle every graph; a model that was stored whole is fused again on request.
        return _FusedForward, (self.module, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training = self.module.training and torch.is_grad_enabled()
        if self.graph is not None and training and not torch.compiler.is_compiling():
            run: Callable[..., Any] = self.graph.forward
            return run(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def _rewrite(path: str, module: nn.Module, opaque: set[nn.Module]) -> list[Chain]:
    modes = [(child, child.training) for child in module.modules()]
    try:
        module.train()  # the graph is for training: what `forward` decides by `self.training` is decided so
        graph = _Tracer(opaque).trace(module)
        found = segments(module, graph)
        reasons = [why_not_layers(segment.units, segment.end) for segment in found]
    except Exception as error:  # user code under symbolic execution raises anything
        lines = (str(error).strip() or type(error).__name__).splitlines()
        raise _CannotTrace(lines[0].rstrip(".")) from error
    finally:
        for child, mode in modes:
            child.training = mode
    if not found:
        return []
    replaced = torch.fx.GraphModule(module, graph, type(module).__name__)
    calls: dict[torch.fx.Node, torch.fx.Node] = {}
    for index, segment in enumerate(found):
        name = f"fused_chain_{index}"
        while hasattr(replaced, name):
            name += "_"
        replaced.add_module(name, _Call(tuple(segment.units), segment.end))
        with graph.inserting_before(segment.last):
            read = [segment.source] if segment.shortcut is None else [segment.source, segment.shortcut]
            call = graph.call_module(name, tuple(calls.get(node, node) for node in read))
        calls[segment.last] = call
        segment.last.replace_all_uses_with(call)
        for node in reversed(segment.nodes):
            graph.erase_node(node)
    graph.lint()
    replaced.recompile()
    vars(module)["forward"] = _FusedForward(module, replaced)  # not `setattr`: it is no submodule
    return [
        Chain(path, tuple(segment.layers), segment.adds, reason)
        for segment, reason in zip(found, reasons, strict=True)
    ]


def unfused_layers(model: nn.Module) -> tuple[str, ...]:
    """The paths of the binary convolutions that no chain holds and that have no fused path of their own."""
    held: set[Any] = set()
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, _FusedForward) and forward.graph is not None:
            for call in forward.graph.modules():
                if isinstance(call, _Call):
                    held |= {unit.conv for unit in call.every_unit}
        if getattr(module, "fuses_itself", False):
            held |= set(module.modules())
    return tuple(
        path for path, layer in binary_layers(model) if isinstance(layer, BinaryConv2d) and layer not in held
    )
