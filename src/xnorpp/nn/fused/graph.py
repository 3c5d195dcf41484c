"""Chains that train fused, found in the graph of any module.

Our own networks ask for the fused path in their blocks. `fuse_for_training` gives it to networks of others:
it traces every module of the model's own code with torch.fx, finds

    [batch norm -> [ReLU ->]] binary convolution [-> ReLU or PReLU] [+ shortcut]

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
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.controls import binary_layers
from xnorpp.nn.fused.dispatch import ACTIVATIONS, Unit, chain
from xnorpp.nn.layers import BinaryConv2d, BinaryLayer

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")


@dataclass(frozen=True)
class Chain:
    """A chain that was found.

    Attributes:
        path: The module whose forward pass it is in; "" is the model itself.
        layers: The paths of its layers in that module, in order.
        shortcut: Whether a shortcut is added at its end.
    """

    path: str
    layers: tuple[str, ...]
    shortcut: bool


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
    unfuse(model)
    chains: list[Chain] = []
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
        found = _rewrite(path, module, rewritten)
        if found:
            rewritten.add(module)
            chains += found
    return tuple(reversed(chains))


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

    def __init__(self, units: tuple[Unit, ...]) -> None:
        super().__init__()
        self.units = units

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        return chain(x, self.units, shortcut)


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
    except Exception:  # user code under symbolic execution raises anything
        return []
    finally:
        for child, mode in modes:
            child.training = mode
    segments = _merge([s for s in (_segment(module, node) for node in graph.nodes) if s is not None])
    if not segments:
        return []
    replaced = torch.fx.GraphModule(module, graph, type(module).__name__)
    calls: dict[torch.fx.Node, torch.fx.Node] = {}
    for index, segment in enumerate(segments):
        name = f"fused_chain_{index}"
        while hasattr(replaced, name):
            name += "_"
        replaced.add_module(name, _Call(tuple(segment.units)))
        with graph.inserting_before(segment.end):
            read = [segment.source] if segment.shortcut is None else [segment.source, segment.shortcut]
            call = graph.call_module(name, tuple(calls.get(node, node) for node in read))
        calls[segment.end] = call
        segment.end.replace_all_uses_with(call)
        for node in reversed(segment.nodes):
            graph.erase_node(node)
    graph.lint()
    replaced.recompile()
    vars(module)["forward"] = _FusedForward(module, replaced)  # not `setattr`: it is no submodule
    return [Chain(path, tuple(s.layers), s.shortcut is not None) for s in segments]


@dataclass
class _Segment:
    """Nodes that one call replaces, in order; `source` and `shortcut` are what it reads."""

    units: list[Unit]
    layers: list[str]
    nodes: list[torch.fx.Node]
    source: torch.fx.Node
    shortcut: torch.fx.Node | None = None

    @property
    def end(self) -> torch.fx.Node:
        return self.nodes[-1]


def _module_of(root: nn.Module, node: Any) -> nn.Module | None:
    if (
        isinstance(node, torch.fx.Node)
        and node.op == "call_module"
        and len(node.args) == 1
        and not node.kwargs
    ):
        return root.get_submodule(str(node.target))
    return None


def _relu(root: nn.Module, node: Any) -> nn.Module | None:
    """The ReLU that a node is, as a module."""
    module = _module_of(root, node)
    if type(module) is nn.ReLU:
        return module
    plain = isinstance(node, torch.fx.Node) and node.op in ("call_function", "call_method")
    return nn.ReLU() if plain and node.target in _RELUS and len(node.args) == 1 else None


def _only_reader(node: torch.fx.Node) -> torch.fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _segment(root: nn.Module, node: torch.fx.Node) -> _Segment | None:
    """What can be fused around a binary convolution."""
    conv = _module_of(root, node)
    if not isinstance(conv, BinaryConv2d):
        return None
    # A layer that runs twice has two places in the graph, which is fine; its input may have other readers.
    norm: nn.Module | None = None
    before: nn.Module | None = None
    nodes, layers, source = [node], [str(node.target)], node.args[0]
    assert isinstance(source, torch.fx.Node)
    start = source
    passed: list[torch.fx.Node] = []
    while len(start.users) == 1 and type(_module_of(root, start)) is nn.Identity:
        passed.insert(0, start)
        start = _argument(start)
    relu = _relu(root, start) if len(start.users) == 1 else None
    if relu is not None:
        passed.insert(0, start)
        start = _argument(start)
    if len(start.users) == 1 and type(_module_of(root, start)) is nn.BatchNorm2d:
        norm, before = _module_of(root, start), relu
        nodes = [start, *passed, *nodes]
        layers.insert(0, str(start.target))
        source = _argument(start)
    activation, end = None, node
    reader = _only_reader(node)
    if reader is not None:
        module = _relu(root, reader) or _module_of(root, reader)
        if module is not None and type(module) in ACTIVATIONS:
            activation, end = module, reader
            nodes.append(reader)
            if reader.op == "call_module":
                layers.append(str(reader.target))
    segment = _Segment([Unit(norm, conv, activation, before)], layers, nodes, source)
    reader = _only_reader(end)
    if reader is not None and reader.target in _ADDITIONS and len(reader.args) == 2 and not reader.kwargs:
        first, second = reader.args
        other = second if first is end else first
        in_place = reader.target in (operator.iadd, "add_")
        if isinstance(other, torch.fx.Node) and other is not end and (first is end or not in_place):
            segment.shortcut = other
            nodes.append(reader)
    return segment


def _argument(node: torch.fx.Node) -> torch.fx.Node:
    argument = node.args[0]
    assert isinstance(argument, torch.fx.Node)
    return argument


def _merge(segments: list[_Segment]) -> list[_Segment]:
    """Segments that feed each other alone become one; a lone convolution, without batch norm and shortcut, is
    left to the plain layer."""
    merged: list[_Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.shortcut is None
            and segment.source is last.end
            and len(last.end.users) == 1
            and segment.shortcut is not last.end
        ):
            last.units += segment.units
            last.layers += segment.layers
            last.nodes += segment.nodes
            last.shortcut = segment.shortcut
        else:
            merged.append(segment)
    return [s for s in merged if any(unit.norm is not None for unit in s.units)]


def unfused_layers(model: nn.Module) -> tuple[str, ...]:
    """The paths of the binary convolutions that no chain holds."""
    held: set[Any] = set()
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, _FusedForward) and forward.graph is not None:
            for call in forward.graph.modules():
                if isinstance(call, _Call):
                    held |= {unit.conv for unit in call.units}
    return tuple(
        path for path, layer in binary_layers(model) if isinstance(layer, BinaryConv2d) and layer not in held
    )
