"""Trace an `nn.Module` by running it: every torch function it calls on its input becomes a node.

The model runs once on a batch of zeros in evaluation mode under a `TorchFunctionMode`, which sees each torch
function, method and operator with its real arguments, whatever Python leads there: reused modules, branches
on shapes and in-place operations need nothing special. `BinaryConv2d` and `BinaryLinear` are taken whole.
What depends on the input's values (`if x.mean() > 0`) or is not in `operations.py` is an error that names the
module path, the operation and the line. The model's training flags are put back as they were.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from xnorpp.nn import BinaryConv1d, BinaryConv2d, BinaryLinear
from xnorpp.nn.controls import evaluating
from xnorpp.packing.graph import Array, Node, PackError, Trained

BATCH = 2  # of the traced run; a reshape that mixes images changes this leading size and is noticed

# Questions about a tensor that do not read its values.
_METADATA = (
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point"),
    *("is_complex", "get_device", "element_size", "storage_offset", "__len__", "__hash__", "__repr__"),
)
_PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Trace(TorchFunctionMode):
    """Records nodes while a model runs. `operations.py` calls `node`, `constant`, `emit` and `fail`."""

    def __init__(self, model: nn.Module, x: Tensor, keep: bool = False) -> None:
        super().__init__()
        self.batch = x.shape[0]
        self.values: dict[int, Tensor] | None = {0: x} if keep else None  # a node's serial -> its value
        self.paths = ["model"]
        self.inside = 0  # how many whole-taken layers we are in
        self.input = Node("input", [], tuple(x.shape[1:]))
        self.nodes: dict[int, Node] = {id(x): self.input}
        self.alive: list[Any] = [x]  # keeps every tensor, so that no identity is used twice
        self.constants: set[int] = set()
        self.stale: set[int] = set()
        self.operation = ""
        self.serial = 0
        for module in model.modules():
            own = [*module.parameters(False), *module.buffers(False), *vars(module).values()]
            self.constants.update(id(value) for value in own if isinstance(value, Tensor))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        tracked = [t for t in _tensors((args, kwargs)) if id(t) in self.nodes or id(t) in self.stale]
        name = getattr(func, "__name__", str(func))
        self.operation = resolve_name(func) or name
        before = [self.nodes.get(id(t)) for t in tracked]
        result = func(*args, **kwargs)
        if not tracked:
            for t in _tensors(result):
                self._remember(t)
                self.constants.add(id(t))
            return result
        if name in _METADATA or (name == "__get__" and not list(_tensors(result))):
            return result
        if not isinstance(result, Tensor):
            if list(_tensors(result)):
                raise self.fail("is not supported")
            raise self.fail("reads the values of the input, so the model's path would depend on the picture")
        from xnorpp.packing.operations import record

        node = record(self, name, args, kwargs, result)
        in_place = any(t is result for t in tracked) and node not in before
        if in_place:
            self._mark_views(result)
        self.bind(result, node)
        return result

    def bind(self, tensor: Tensor, node: Node) -> None:
        """From now on this tensor is that node's value."""
        if tuple(tensor.shape[1:]) != node.shape or tensor.shape[0] != self.batch:
            raise self.fail(f"gives shape {tuple(tensor.shape)}, which mixes images or is not supported")
        self._remember(tensor)
        self.nodes[id(tensor)] = node
        if self.values is not None and node.serial not in self.values:
            with _no_modes():
                self.values[node.serial] = tensor.detach().clone()

    def _remember(self, tensor: Tensor) -> None:
        self.alive.append(tensor)

    def _mark_views(self, changed: Tensor) -> None:
        """An in-place operation changes every view of the same memory; their recorded values are no more."""
        storage = changed.untyped_storage().data_ptr()
        for other in self.alive:
            if (
                other is not changed
                and id(other) in self.nodes
                and other.untyped_storage().data_ptr() == storage
            ):
                del self.nodes[id(other)]
                self.stale.add(id(other))

    def node(self, tensor: object) -> Node:
        """The node of a tensor that depends on the input."""
        if isinstance(tensor, Tensor) and id(tensor) in self.stale:
            raise self.fail("reads a tensor whose memory was changed in place through another view")
        if not isinstance(tensor, Tensor) or id(tensor) not in self.nodes:
            raise self.fail("has a constant where a value computed from the input is needed")
        return self.nodes[id(tensor)]

    def is_value(self, tensor: object) -> bool:
        """Whether an argument depends on the input."""
        return isinstance(tensor, Tensor) and (id(tensor) in self.nodes or id(tensor) in self.stale)

    def constant(self, tensor: object) -> Array:
        """A parameter, buffer, number or what was computed from them, as float32 or float64."""
        if isinstance(tensor, int | float):
            return np.array(float(tensor))
        if not isinstance(tensor, Tensor):
            raise self.fail(f"has an argument of type {type(tensor).__name__}; a tensor or number is needed")
        if self.is_value(tensor):
            raise self.fail("computes its weights or constants from the input")
        if id(tensor) not in self.constants:
            raise self.fail("uses a tensor of unknown origin; make it a parameter or buffer of the module")
        with _no_modes():
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            return np.array(tensor.detach().to("cpu", wide).numpy())

    def emit(
        self,
        op: str,
        inputs: list[Node],
        shape: tuple[int, ...],
        attrs: dict[str, Any] | None = None,
        tensors: dict[str, Array] | None = None,
        trained: Trained | None = None,
    ) -> Node:
        """A new node at the place in the model that runs now."""
        self.serial += 1
        where = (self.paths[-1], self._line(), self.serial)
        return Node(op, inputs, shape, attrs or {}, tensors or {}, *where, trained)

    def emit_sign(self, source: Node) -> Node:
        node = self.emit("sign", [source], source.shape)
        node.argument = source.serial
        return node

    def fail(self, message: str) -> PackError:
        return PackError(f"{self.paths[-1]}: {self.operation} {message} ({self._line()})")

    def _line(self) -> str:
        """`file:line: source` of the innermost frame outside torch and this package."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(_PACKAGES) and not name.startswith("<"):
                text = linecache.getline(name, frame.f_lineno).strip()
                return f"{Path(name).name}:{frame.f_lineno}: {text}"
            if frame.f_back is None:
                break
            frame = frame.f_back
        return "unknown line"


@contextmanager
def _no_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction():
        yield


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _taken_whole(module: nn.Module) -> bool:
    """A binary layer with the forward pass we know; `real` ones are ordinary layers."""
    for kind in (BinaryConv1d, BinaryConv2d, BinaryLinear):
        if isinstance(module, kind):
            return not module.binarization.is_real and type(module).forward is kind.forward
    return False


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, DataParallel or torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def trace(model: nn.Module, shape: tuple[int, int, int]) -> Node:
    """Run `model` on pictures of this (c, h, w) and return the node of its output."""
    output, _ = trace_values(model, torch.zeros((BATCH, *shape)), keep=False)
    return output


def trace_values(model: nn.Module, x: Tensor, keep: bool = True) -> tuple[Node, dict[int, Tensor]]:
    """Run `model` on `x`: the node of its output and, with `keep`, the value of every node by its serial."""
    weights = [p for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()]
    if weights:
        x = x.to(weights[0].device, weights[0].dtype)
    recorder = Trace(model, x, keep)
    hooks = []
    try:
        for path, module in model.named_modules():
            before, after = _hooks(recorder, path or "model", _taken_whole(module))
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after))
        with evaluating(model), torch.no_grad(), recorder:
            result = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(result, Tensor):
        raise PackError(f"the model returns {type(result).__name__}; one tensor is needed")
    if id(result) not in recorder.nodes:
        raise PackError("the model's output does not depend on its input through supported operations")
    return recorder.nodes[id(result)], recorder.values or {}


def _hooks(recorder: Trace, path: str, whole: bool) -> tuple[Any, Any]:
    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not recorder.inside:
            recorder.paths.append(path)
        if whole:
            recorder.inside += 1

    def after(module: nn.Module, args: Any, result: Any) -> None:
        if whole:
            recorder.inside -= 1
            if not recorder.inside:
                from xnorpp.packing.layers import record_layer

                recorder.operation = type(module).__name__
                if len(args) != 1:
                    raise recorder.fail("must be called with its input alone")
                recorder.bind(result, record_layer(recorder, module, args[0], result))
        if not recorder.inside:
            recorder.paths.pop()

    return before, after
