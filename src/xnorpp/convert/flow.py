"""Which layers read a model's input and which produce its outputs: from one run, or from its graph.

A layer here is a convolution or linear. An input layer reads the model's input without another layer in
between, an output layer produces an output in the same sense. What has met weights that are of no layer, such
as an embedding, a recurrent layer or learned positions, is the input no more. Where several layers reach one
output (a residual sum), only those count that no other of them depends on: every block of a residual network
reaches the end through its shortcuts, but the last one depends on all the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from xnorpp.nn.controls import evaluating
from xnorpp.nn.layers import BinaryLayer
from xnorpp.packing.calls import FRESH, LIKE, METADATA, TURNED, function_name, tensors_in
from xnorpp.packing.runs.state import unchanged

LAYERS = (nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear)

WEIGHTS = "weights"  # parameters that no layer has, such as learned positions, or a recurrent layer's
Origin = nn.Module | str | None  # a layer, such weights, or None: the model's input
Origins = frozenset[Origin]

_THE_SAME = ("__get__", "detach")  # what gives a weight's own numbers, `weight.data`
_ATTRIBUTE = "_xnorpp_origins"
_INPUT: Origins = frozenset([None])
_OTHER: Origins = frozenset([WEIGHTS])
_NOTHING: Origins = frozenset()
# Normalisation of torch's own changes the scale of a value and not what it is made of, and others take no
# more than a type or a shape of a weight.
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "prelu", *LIKE)
_NORM_LAYERS = (
    *(nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    nn.PReLU,
)


@dataclass
class Flow:
    """Layers in the order they run, the output sizes that each was seen with, which are inputs and outputs,
    and which have a weight that is used outside of them."""

    order: list[nn.Module] = field(default_factory=list)
    sizes: dict[nn.Module, list[tuple[int, int]]] = field(default_factory=dict)
    inputs: set[nn.Module] = field(default_factory=set)
    outputs: set[nn.Module] = field(default_factory=set)
    sources: dict[nn.Module, set[nn.Module]] = field(default_factory=dict)
    outside: dict[nn.Module, str] = field(default_factory=dict)  # whose weight others use: by which function

    def enter(self, layer: nn.Module, origins: Origins) -> None:
        """A layer reads what these origins produced."""
        if layer not in self.sources:
            self.order.append(layer)
            self.sources[layer] = set()
            if origins == _INPUT:
                self.inputs.add(layer)
        for origin in origins:
            if isinstance(origin, nn.Module):
                self.sources[layer] |= {origin, *self.sources[origin]}

    def leave(self, origins: Origins) -> None:
        """The model returns what these origins produced."""
        layers = {origin for origin in origins if isinstance(origin, nn.Module)}
        self.outputs |= {
            layer for layer in layers if not any(layer in self.sources[o] for o in layers - {layer})
        }


def flow_of_run(model: nn.Module, arguments: tuple[Any, ...]) -> Flow:
    """The flow of one forward pass in evaluation mode; batch norms and random numbers stay untouched."""
    flow = Flow()
    following = _Following(flow, model)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        flow.enter(module, _origins((args, kwargs)))
        following.inside.append(module)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        following.inside.pop()
        sizes = flow.sizes.setdefault(module, [])
        for tensor in tensors_in(output):
            setattr(tensor, _ATTRIBUTE, frozenset([module]))
            if tensor.dim() >= 2:
                is_image = isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))
                size = (tensor.shape[-2] if is_image else 1, tensor.shape[-1])
                if size not in sizes:
                    sizes.append(size)

    hooks = []
    for module in model.modules():
        if isinstance(module, LAYERS):
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after))
    given = list(tensors_in(arguments))
    weights = list(model.parameters())
    try:
        for tensor in given:
            setattr(tensor, _ATTRIBUTE, _INPUT)
        for tensor in weights:
            setattr(tensor, _ATTRIBUTE, _OTHER)
        with unchanged(model), evaluating(model), torch.no_grad(), following:
            result = model(*arguments)
        for tensor in tensors_in(result):
            flow.leave(_origins(tensor))
    finally:
        for hook in hooks:
            hook.remove()
        for tensor in (*given, *weights):
            if hasattr(tensor, _ATTRIBUTE):
                delattr(tensor, _ATTRIBUTE)
    if not flow.outputs:  # the result has no tensor that can be followed
        flow.outputs.update(flow.order[-1:])
    return flow


class _Following(TorchFunctionMode):
    """Every result of a torch function comes from where its arguments come from; weights that are used
    without their layer are noted."""

    def __init__(self, flow: Flow, model: nn.Module) -> None:
        super().__init__()
        self.flow = flow
        self.inside: list[nn.Module] = []  # the layers that run
        self.owners = _owners(model)
        self.alive: list[torch.Tensor] = []  # so that no identity is used twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        origins = _origins(args[:1] if name in _NORMS else (args, kwargs))
        made = list(tensors_in(result))
        if made and function_name(func) not in FRESH:
            self._note(func, args, kwargs, made)
        if origins:
            for tensor in made:
                setattr(tensor, _ATTRIBUTE, origins)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, made: list[torch.Tensor]) -> None:
        like = function_name(func) in LIKE  # which take no more than a shape or type from others
        for tensor in tensors_in((args[:1], {}) if like else (args, kwargs)):
            layers = self.owners.get(id(tensor), [])
            if layers and not any(layer in self.inside for layer in layers):
                if function_name(func) in _THE_SAME:
                    self.owners.update({id(t): layers for t in made})
                    self.alive += made
                    continue
                for layer in layers:
                    self.flow.outside.setdefault(layer, resolve_name(func) or function_name(func))


def _owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    """The layers that have each weight, by its identity."""
    owners: dict[int, list[nn.Module]] = {}
    for layer in model.modules():
        weight = layer._parameters.get("weight") if isinstance(layer, LAYERS) else None
        if weight is not None:
            owners.setdefault(id(weight), []).append(layer)
    return owners


def _origins(value: Any) -> Origins:
    origins = _NOTHING
    for tensor in tensors_in(value):
        origins |= getattr(tensor, _ATTRIBUTE, _NOTHING)
    return origins


class _LayerTracer(torch.fx.Tracer):
    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return isinstance(module, (*LAYERS, BinaryLayer)) or super().is_leaf_module(module, path)


def flow_of_graph(model: nn.Module) -> Flow | None:
    """The flow of the model's symbolic graph, without an example; None where torch.fx cannot trace it."""
    try:
        graph = _LayerTracer().trace(model)
    except Exception:  # user code under symbolic execution raises anything
        return None
    flow, origins = Flow(), dict[torch.fx.Node, Origins]()
    for node in graph.nodes:
        found = _NOTHING.union(*(origins[source] for source in node.all_input_nodes))
        if node.op == "placeholder":
            found = _INPUT
        elif node.op == "call_module":
            module = model.get_submodule(str(node.target))
            if isinstance(module, LAYERS):
                flow.enter(module, found)
                found = frozenset([module])
            elif any(True for _ in module.parameters()) and not isinstance(module, _NORM_LAYERS):
                found |= _OTHER
        elif node.op == "get_attr":
            found = _OTHER
            _note_weight(flow, model, node)
        elif node.op == "output":
            for source in node.all_input_nodes:
                flow.leave(origins[source])
        origins[node] = found
    return flow


def _note_weight(flow: Flow, model: nn.Module, node: torch.fx.Node) -> None:
    """The layer whose weight the graph reads by itself, if it does more than ask for its shape or type."""
    path, _, name = str(node.target).rpartition(".")
    owner = model.get_submodule(path)
    users = list(node.users) if isinstance(owner, LAYERS) and name == "weight" else []
    for user in users:
        method = isinstance(user.target, str)
        called = str(user.target) if method else getattr(user.target, "__name__", "")
        if called == "getattr":
            called = str(user.args[1])
            users += list(user.users) if called == "data" else []
            used = called in TURNED
        else:
            used = user.op in ("call_function", "call_method") and called not in (*METADATA, *FRESH)
        if used:
            full = None if method else resolve_name(user.target)
            flow.outside.setdefault(owner, full or f"torch.Tensor.{called}")
