"""Chains of binary layers in a traced graph: what `graph.fuse_for_training` replaces by one call each."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from xnorpp.nn.fused.dispatch import ACTIVATIONS, End, Unit
from xnorpp.nn.layers import BinaryConv2d

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")


@dataclass
class Segment:
    """Nodes that one call replaces, in order; `source` and `shortcut` are what it reads."""

    units: list[Unit]
    layers: list[str]
    nodes: list[torch.fx.Node]
    source: torch.fx.Node
    shortcut: torch.fx.Node | None = None
    end: End | None = None

    @property
    def last(self) -> torch.fx.Node:
        return self.nodes[-1]

    @property
    def adds(self) -> bool:
        """Whether a shortcut is added at its end."""
        return self.shortcut is not None or (self.end is not None and self.end.side is not None)


def segments(root: nn.Module, graph: torch.fx.Graph) -> list[Segment]:
    """What can be fused in the graph of `root`, in the order in which it is computed."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    found = _merge([s for s in (_around(root, node) for node in graph.nodes) if s is not None])
    taken: set[torch.fx.Node] = set()
    # The longest first, so that the convolution in a shortcut is the side of its block, not the reverse.
    for segment in sorted(found, key=lambda segment: -len(segment.units)):
        if not taken & set(segment.nodes):
            _close(root, segment)
            taken |= set(segment.nodes)
    held = {id(s): s for s in found if s.end is not None or any(unit.norm is not None for unit in s.units)}
    inside = {node for s in held.values() for node in s.nodes}
    # A segment whose convolution became the side of another one is no segment of its own.
    result = [s for s in held.values() if all(s is o or s.last not in o.nodes for o in held.values())]
    for node in graph.nodes:
        alone = _real_end(root, node) if node not in inside else None
        if alone is not None and not inside & set(alone.nodes):
            result.append(alone)
            inside |= set(alone.nodes)
    for segment in result:
        segment.nodes.sort(key=order.__getitem__)
    return sorted(result, key=lambda segment: order[segment.last])


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
    if not plain or node.target not in _RELUS or len(node.args) != 1:
        return None
    return nn.ReLU() if set(node.kwargs) <= {"inplace"} else None


def _norm(root: nn.Module, node: Any) -> nn.Module | None:
    module = _module_of(root, node)
    return module if type(module) is nn.BatchNorm2d else None


def _only_reader(node: torch.fx.Node) -> torch.fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _argument(node: torch.fx.Node) -> torch.fx.Node:
    argument = node.args[0]
    assert isinstance(argument, torch.fx.Node)
    return argument


def _added(node: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node | None:
    """What is added to `value`, where the node is an addition that leaves everything else as it is."""
    if node.target not in _ADDITIONS or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    other = second if first is value else first
    in_place = node.target in (operator.iadd, "add_")
    if isinstance(other, torch.fx.Node) and other is not value and (first is value or not in_place):
        return other
    return None


def _around(root: nn.Module, node: torch.fx.Node) -> Segment | None:
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
    if len(start.users) == 1 and _norm(root, start) is not None:
        norm, before = _norm(root, start), relu
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
    segment = Segment([Unit(norm, conv, activation, before)], layers, nodes, source)
    reader = _only_reader(end)
    other = None if reader is None else _added(reader, end)
    if reader is not None and other is not None:
        segment.shortcut = other
        nodes.append(reader)
    return segment


def _merge(found: list[Segment]) -> list[Segment]:
    """Segments that feed each other alone become one."""
    merged: list[Segment] = []
    for segment in found:
        before = next((m for m in merged if m.last is segment.source), None)
        if (
            before is not None
            and before.shortcut is None
            and len(before.last.users) == 1
            and segment.shortcut is not before.last
        ):
            before.units += segment.units
            before.layers += segment.layers
            before.nodes += segment.nodes
            before.shortcut = segment.shortcut
        else:
            merged.append(segment)
    return merged


def _close(root: nn.Module, segment: Segment) -> None:
    """Adds batch norm, shortcut and ReLU to a segment that they follow."""
    if segment.shortcut is not None or len(segment.last.users) != 1:
        return
    node = _only_reader(segment.last)
    norm = _norm(root, node)
    if node is None or norm is None:
        return
    _add_end(root, segment, node, norm)


def _add_end(root: nn.Module, segment: Segment, node: torch.fx.Node, norm: nn.Module) -> None:
    """The batch norm at `node`, and the addition and ReLU that follow it, become the segment's end."""
    nodes, layers, side, side_norm = [node], [str(node.target)], None, None
    reader = _only_reader(node)
    other = None if reader is None else _added(reader, node)
    if reader is not None and other is not None:
        found = _side(root, segment, other)
        if found is None:
            segment.shortcut = other
        else:
            side, side_norm, side_nodes = found
            nodes += side_nodes
            layers += [str(side_node.target) for side_node in side_nodes]
        nodes.append(reader)
        node = reader
    reader = _only_reader(node)
    relu = None if reader is None else _relu(root, reader)
    if reader is not None and relu is not None:
        nodes.append(reader)
        node = reader
        if reader.op == "call_module":
            layers.append(str(reader.target))
    segment.end = End(norm, relu, side, side_norm, _may_feed_signs(root, node))
    segment.nodes += nodes
    segment.layers += layers


def _side(
    root: nn.Module, segment: Segment, node: torch.fx.Node
) -> tuple[Unit, nn.Module, list[torch.fx.Node]] | None:
    """A shortcut of binary convolution and batch norm that reads what the segment reads."""
    norm = _norm(root, node)
    if norm is None or len(node.users) != 1 or not segment.units or segment.units[0].norm is not None:
        return None
    before = _argument(node)
    conv = _module_of(root, before)
    if not isinstance(conv, BinaryConv2d) or len(before.users) != 1 or before.args[0] is not segment.source:
        return None
    return Unit(None, conv), norm, [before, node]


def _real_end(root: nn.Module, node: torch.fx.Node) -> Segment | None:
    """Batch norm and ReLU after real layers, as at the end of a stem, where signs may be taken next."""
    norm = _norm(root, node)
    if norm is None:
        return None
    segment = Segment([], [], [], _argument(node))
    _add_end(root, segment, node, norm)
    assert segment.end is not None
    return segment if segment.end.activation is not None and segment.end.signs else None


def _may_feed_signs(root: nn.Module, node: torch.fx.Node) -> bool:
    """Whether a binary convolution may read the node: directly, in a module of its own, or outside."""
    for reader in node.users:
        module = _module_of(root, reader)
        if reader.op == "output":
            return True
        if module is not None and any(isinstance(m, BinaryConv2d) for m in module.modules()):
            return True
    return False
