"""The ranges of layers' inputs from a model's symbolic graph, where there is no example to run it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.fx
from torch import nn
from torch.overrides import resolve_name

from xnorpp.convert.ranges import ANY, Range, result_range
from xnorpp.packing.operations import plain_name

# Modules that are looked into: they call one torch function, with their settings as its arguments.
_TRANSPARENT = ("activation", "pooling", "dropout", "flatten", "padding", "upsampling")


def symbolic_ranges(model: nn.Module, weighted: tuple[type, ...]) -> dict[str, list[Range]]:
    """The range of a layer's input in each call, by path; empty where torch.fx cannot trace the model."""
    tracer = _Tracer(weighted)
    try:
        graph = tracer.trace(model)
    except Exception:  # a user's code under symbolic execution may raise anything
        return {}
    ranges: dict[torch.fx.Node, Range] = {}
    calls: dict[str, list[Range]] = {}

    def of(value: Any) -> Range:
        if isinstance(value, Range):
            return value
        if isinstance(value, torch.fx.Node):
            return ranges.get(value, ANY)
        return Range(float(value), float(value)) if isinstance(value, int | float) else ANY

    for node in graph.nodes:
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            if isinstance(module, weighted) and node.args:
                calls.setdefault(str(node.target), []).append(of(node.args[0]))
            elif isinstance(module, nn.Identity):
                ranges[node] = of(node.args[0])
        elif node.op in ("call_function", "call_method"):
            ranges[node] = _with_origin(
                node, result_range(_name(node.target), node.args, node.kwargs, of, True)
            )
    return calls


def _name(target: str | Callable[..., Any]) -> str:
    return plain_name(target if isinstance(target, str) else getattr(target, "__name__", ""))


def _with_origin(node: torch.fx.Node, found: Range) -> Range:
    if not found.bit or found.origin:
        return found
    target = node.target
    name = f"torch.Tensor.{_name(target)}"  # a method, or one of Python's operators
    if not isinstance(target, str) and getattr(target, "__module__", "") != "_operator":
        name = resolve_name(target) or _name(target)
    stack = node.meta.get("nn_module_stack") or {}
    path = next((key for key in reversed(stack) if key), "")
    return replace(found, origin=f"{name} in {path!r}" if path else name)


class _Tracer(torch.fx.Tracer):
    def __init__(self, weighted: tuple[type, ...]) -> None:
        super().__init__()
        self.weighted = weighted

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        if isinstance(module, self.weighted):
            return True
        home = type(module).__module__
        if home in {f"torch.nn.modules.{name}" for name in _TRANSPARENT}:
            return isinstance(module, nn.MultiheadAttention)
        return super().is_leaf_module(module, path)
