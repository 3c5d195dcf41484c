"""Pack what can be packed of a model: its largest packable submodules become `PackedModule`s.

A submodule is replaced when its forward pass maps one tensor of a fixed shape to one tensor, it has no
obstacle and it has layers worth packing. The search goes down from the model itself. Neighbours in an
`nn.Sequential` are packed together: the first of them is replaced, the others become `nn.Identity`, so that
the names of all the rest stay as they were.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xnorpp.nn.controls import binary_layers
from xnorpp.nn.layers import BinaryLayer
from xnorpp.packing.assemble import assemble
from xnorpp.packing.example import BATCH, example_inputs, pair_of_images
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import PackError, order
from xnorpp.packing.record import run_traced, trace, unwrap
from xnorpp.packing.runs.failing import failures_of
from xnorpp.packing.storage import check_real
from xnorpp.packing.storage.recorded import check_module
from xnorpp.packing.submodule import PackedModule
from xnorpp.packing.trace import Trace
from xnorpp.runtime.format.program import Program

_WEIGHTED = (nn.modules.conv._ConvNd, nn.Linear)
_PRODUCTS = ("binary_conv2d", "binary_linear", "conv2d", "linear")  # those of bits first


@dataclass(frozen=True)
class Part:
    """A submodule, or neighbours in an `nn.Sequential`, and whether it is packed.

    Attributes:
        paths: The modules it consists of; ("",) is the whole model.
        packed: Whether it is packed, or could be (in the result of `check_packable`).
        layers: How many convolutions and linear layers it has.
        reason: Why it is not packed; empty for one that is.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.FractionalMaxPool2d(2, 3))
        >>> result = xnorpp.check_packable(net, 8)
        >>> [(part.name, part.packed) for part in result.parts]
        [('0', True), ('1', False)]
    """

    paths: tuple[str, ...]
    packed: bool
    layers: int
    reason: str = ""

    @property
    def name(self) -> str:
        first, last = self.paths[0] or "model", self.paths[-1]
        return first if len(self.paths) == 1 else f"{first} to {last}"

    def __str__(self) -> str:
        layers = f"{self.layers} layer{'s' * (self.layers != 1)}"
        return f"{self.name} ({layers})" if self.packed else f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class PartsReport:
    """What `pack_submodules` replaced and what it left, in the order of the model.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.FractionalMaxPool2d(2, 3))
        >>> hybrid, report = xnorpp.pack_submodules(net, (3, 8, 8))
        >>> [part.name for part in report.packed], [part.name for part in report.left]
        (['0 to 1'], ['2'])
    """

    parts: tuple[Part, ...]

    @property
    def packed(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.packed)

    @property
    def left(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if not part.packed)

    def __str__(self) -> str:
        lines = [f"packed  {part}" for part in self.packed] or ["nothing was packed"]
        return "\n".join([*lines, *(f"left    {part}" for part in self.left)])


def pack_submodules(
    model: nn.Module,
    example: Any,
    *,
    half: bool = False,
    real: str | None = None,
    threads: int | None = None,
) -> tuple[nn.Module, PartsReport]:
    """A copy of `model` in which the largest packable submodules run packed, and a report of them.

    Use it where `pack` refuses the model: the operations that have no packed form stay in torch, and the rest
    runs as bit operations. Where the model has binary layers, submodules without any stay as they are.

    Args:
        model: A trained model; it is left unchanged.
        example: A batch as the model takes it, or the size of one input; the packed parts are for this size.
        half: Whether real-valued weights are stored in 16 bits.
        real: How real numbers are stored, as in `pack`.
        threads: The number of threads that one call of a packed part may use; by default the work decides.

    Returns:
        The new model, in evaluation mode, and the report. The model is a single `PackedModule` where all of
        it packs.

    Raises:
        ValueError: If the model does not run on `example`.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.FractionalMaxPool2d(2, 3))
        >>> hybrid, report = xnorpp.pack_submodules(net, (3, 32, 32))
        >>> [part.name for part in report.packed]
        ['0 to 1']
    """
    check_module(model)
    stored = check_real(real, half)
    model = unwrap(model)
    recorder = trace_example(model, example)
    programs: dict[str, Program] = {}

    def accept(path: str, part: nn.Module, shape: tuple[int, ...]) -> str | None:
        try:
            signs = recorder.signs.shares_in(part, len(recorder.calls[path]))
            programs[path] = _program_of(part, shape, stored, signs)
        except PackError as error:
            return str(error)
        return None

    parts = find_parts(model, recorder, accept)
    hybrid = copy.deepcopy(model).eval()
    for part in parts:
        if part.packed:
            hybrid = _replace(hybrid, part.paths, PackedModule(programs[part.paths[0]], threads))
    return hybrid, PartsReport(parts)


def trace_example(model: nn.Module, example: Any) -> Trace:
    """The trace of a model's run on an example; a `ValueError` where the model does not run on it."""
    given = example_inputs(model, example)
    inputs = pair_of_images(given)
    with failures_of(model, given, inputs):
        return run_traced(model, *inputs)


Accept = Callable[[str, nn.Module, tuple[int, ...]], str | None]


def find_parts(model: nn.Module, recorder: Trace, accept: Accept | None = None) -> tuple[Part, ...]:
    """The largest packable parts of a traced model, and what stays and why.

    Args:
        model: The model that was traced.
        recorder: Its trace.
        accept: Called for every part that could be packed with its path, module and input shape; returns why
            it cannot be packed after all, or None.

    Returns:
        Packed parts, and as parts that stay the modules that have an obstacle of their own or weights.
    """
    return _Search(model, recorder, accept or (lambda path, part, shape: None)).run()


class _Search:
    def __init__(self, model: nn.Module, recorder: Trace, accept: Accept) -> None:
        self.model, self.recorder, self.accept = model, recorder, accept
        self.by_hand = _by_hand(model, recorder, _PRODUCTS)
        binary = {id(layer) for _, layer in binary_layers(model)} | _by_hand(model, recorder, _PRODUCTS[:2])
        weighted = {id(module) for module in model.modules() if isinstance(module, _WEIGHTED)} | self.by_hand
        self.worth = binary or weighted
        self.nothing = f"has no {'binary' if binary else 'convolution or linear'} layer"
        self.parts: list[Part] = []

    def run(self) -> tuple[Part, ...]:
        self._visit("", self.model)
        return tuple(self.parts)

    def _visit(self, path: str, module: nn.Module) -> None:
        reason = self._why_not(path, module)
        if reason is None and self._is_worth(module):
            reason = self.accept(path, module, self._shape(path))
            if reason is None:
                self.parts.append(Part((path,), True, self._count(module)))
                return
        children = list(module.named_children())
        own = [o for o in self.recorder.obstacles if o.path == path]
        if own:
            self.parts.append(
                Part((path,), False, self._count(module), f"{own[0].operation} {own[0].reason}")
            )
        elif isinstance(module, _WEIGHTED) or (not children and self._is_worth(module)):
            self.parts.append(Part((path,), False, self._count(module), reason or self.nothing))
        if isinstance(module, _WEIGHTED) or (own and own[0].operation.startswith("nn.")):
            return  # what is inside of a torch module is not called by itself
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            self._visit_neighbours(path, module)
            return
        for name, child in children:
            self._visit(f"{path}.{name}" if path else name, child)

    def _visit_neighbours(self, path: str, sequence: nn.Sequential) -> None:
        prefix = f"{path}." if path else ""
        run: list[tuple[str, nn.Module]] = []
        for name, child in sequence.named_children():
            where = prefix + name
            fits = len(self.recorder.calls.get(where, ())) == len(self.recorder.calls.get(path, ()))
            if fits and self._why_not(where, child, first=not run) is None:
                run.append((where, child))
                continue
            self._close(run)
            run = []
            self._visit(where, child)
        self._close(run)

    def _close(self, run: list[tuple[str, nn.Module]]) -> None:
        together = nn.Sequential(*(child for _, child in run))
        if len(run) > 1 and self._is_worth(together):
            first = run[0][0]
            if self.accept(first, together, self._shape(first)) is None:
                self.parts.append(Part(tuple(where for where, _ in run), True, self._count(together)))
                return
        for where, child in run:
            self._visit(where, child)

    def _is_worth(self, module: nn.Module) -> bool:
        return any(id(inner) in self.worth for inner in module.modules())

    def _shape(self, path: str) -> tuple[int, ...]:
        shape = self.recorder.calls[path][0].shape
        assert shape is not None
        return shape

    def _why_not(self, path: str, module: nn.Module, first: bool = True) -> str | None:
        """Why a module cannot be packed by itself, or None. `first`: its input comes from outside."""
        inside = f"{path}." if path else ""
        for obstacle in self.recorder.obstacles:
            if obstacle.path == path or obstacle.path.startswith(inside):
                return f"has an obstacle ({obstacle.operation} in {obstacle.path or 'the model'})"
        calls = self.recorder.calls.get(path, [])
        if not calls:
            return "is not called, or not through its forward pass"
        for call in calls:
            if call.shape is None:
                return "does not map one tensor to one tensor of an image or vector"
            if call.shape != calls[0].shape:
                return f"is called with several input sizes, {calls[0].shape} and {call.shape}"
            if first and call.changed_input:
                return "changes its input in place"
        return None

    def _count(self, module: nn.Module) -> int:
        return sum(isinstance(part, _WEIGHTED) or id(part) in self.by_hand for part in module.modules())


def _by_hand(model: nn.Module, recorder: Trace, operations: Sequence[str]) -> set[int]:
    """The modules, by identity, that call such an operation themselves and are no layer of torch or ours."""
    modules = dict(model.named_modules())
    found = (node for node in order(*recorder.nodes.values()) if node.op in operations)
    own = (modules.get(node.path, model) for node in found)
    others = (module for module in own if not isinstance(module, (*_WEIGHTED, BinaryLayer)))
    return {id(module) for module in others if not type(module).__module__.startswith("torch.")}


def count_layers(module: nn.Module) -> int:
    """How many convolutions and linear layers a module has."""
    return sum(isinstance(inner, _WEIGHTED) for inner in module.modules())


def _program_of(part: nn.Module, shape: tuple[int, ...], real: str, signs: Sequence[float]) -> Program:
    return assemble(fold(trace(part, torch.zeros(BATCH, *shape), signs=signs)), shape, real=real)[0]


def _replace(model: nn.Module, paths: Sequence[str], packed: PackedModule) -> nn.Module:
    if paths[0] == "":
        return packed
    for path, new in zip(paths, [packed, *(nn.Identity() for _ in paths[1:])]):
        old = model.get_submodule(path)
        names = [name for name, module in model.named_modules(remove_duplicate=False) if module is old]
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, new.eval())
    return model
