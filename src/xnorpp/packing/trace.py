"""Trace an `nn.Module` by running it: every torch function it calls on its input becomes a node.

The model runs once on a batch of zeros in evaluation mode under a `TorchFunctionMode`, which sees each torch
function, method and operator with its real arguments, whatever Python leads there: reused modules, branches
on shapes and in-place operations need nothing special. `BinaryConv2d` and `BinaryLinear` are taken whole.

What depends on the input's values (`if x.mean() > 0`) or is not in `operations.py` becomes an `Obstacle` that
names the module path, the operation and the line, and the trace continues with an *opaque* value of the real
shape, so that one run finds every obstacle. Where the opaque value's shape is none that a program has, what
follows from it is not reported again. The model's training flags are put back as they were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from xnorpp.packing.bits.zeros import Signs
from xnorpp.packing.calls import (
    FRESH,
    LIKE,
    METADATA,
    PARTS,
    READS,
    UNSET,
    Call,
    changes_first,
    function_name,
    is_description,
    is_empty,
    keep_value,
    source_line,
    tensors_in,
)
from xnorpp.packing.constants import Constants, RandomState
from xnorpp.packing.example import are_batches, input_nodes
from xnorpp.packing.graph import Array, Node, Trained
from xnorpp.packing.moves.masked import COMPUTED, REASON, Masked
from xnorpp.packing.moves.places import COUNTED, MOVED, READ_ACROSS, Places
from xnorpp.packing.obstacles import (
    OBSERVERS,
    RANDOM_NUMBERS,
    VALUE_READ,
    Obstacle,
    Refusal,
    refused_for_any_shape,
    remedy_for,
)
from xnorpp.packing.runs.aliases import Aliases
from xnorpp.packing.runs.guards import Guards

CHANGED = " a tensor whose memory was changed in place through another view"
CLONE = "clone the tensor before the in-place operation"
_ALWAYS_OTHERS = "uses random numbers, so that every run gives another result"
FIRST_RESULT = (
    "use its first result alone; what needs the others, such as places, can follow the packed model"
)
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_no_modes = torch._C.DisableTorchFunction
RANKS = range(1, 9)  # axes of a value of a program, without the batch


class Trace(Places, TorchFunctionMode):
    """Records nodes while a model runs. `operations.py` calls `node`, `constant`, `emit` and `fail`."""

    def __init__(
        self, model: nn.Module, inputs: Sequence[Tensor], keep: bool = False, any_size: bool = False
    ) -> None:
        super().__init__()
        x = inputs[0]
        self.batch, self.dtype = x.shape[0], x.dtype if x.is_floating_point() else torch.float32
        several = len(inputs) > 1 and are_batches(inputs)
        given = inputs if several else inputs[:1]
        self.input, nodes, value = input_nodes(given)
        # A node's serial -> its value.
        self.values: dict[int, Tensor] | None = {0: value.clone()} if keep else None
        self.rounded: dict[int, Tensor] = {}  # how far other tensors of a node are from its value
        self.modules: list[tuple[str, nn.Module]] = [("", model)]  # those that run now, the innermost last
        self.inside = 0  # how many whole-taken layers we are in
        self.nodes: dict[int, Node] = {id(t): node for t, node in zip(given, nodes)}
        self.shapes = [tuple(t.shape[1:]) for t in inputs] if several else []  # of several inputs
        self.bytes = x.dtype == torch.uint8 and not several  # whether the model takes bytes
        self.whole = x.dtype in (torch.int32, torch.int64) and not several
        self.alive: list[Any] = []  # keeps every tensor, so that no identity is used twice
        self.aliases = Aliases()
        self.constants = Constants(model)
        # Tensors whose memory was changed through another: their last node, and that other; None: several.
        self.stale: dict[int, tuple[Node, Tensor | None]] = {}
        self.left_out: dict[int, str] = {}  # results that are not packed, and the function that gave them
        self.odd: set[int] = set()  # opaque values of a shape or type that no program has
        self.signs = Signs()
        self.levels: dict[int, tuple[Node, Any]] = {}  # what follows from one sign alone (`bits`)
        self.joined: dict[tuple[int, ...], Node] = {}  # concatenations by axis and parts (`views.py`)
        for t in given:
            self.remember(t)
            self.set_merged(t, int(t.dim() == 1))
        self.obstacles: list[Obstacle] = []
        self.made: dict[tuple[str, str, str, str], list[Node]] = {}  # what each of them gave
        self.opaque: list[Node] = []
        self.masked = Masked()  # numbers that computed masks chose
        self.guards = Guards()
        self.read: list[Node] = []  # values that Python decided by
        self.calls: dict[str, list[Call]] = {}  # by module path
        self.outputs: dict[str, Node] = {}  # by name; empty where there are obstacles
        self.alone: tuple[str, ...] = ()  # outputs (n,), without an axis for their one number
        self.operation = ""
        self.composing = ""  # the function that others are run for, which errors are about
        self.serial = 0
        self.any_size = any_size  # prefer operations that are the same at any height and width

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.signs.instead:
            args, kwargs = self.signs.arguments(function_name(func), args, kwargs)
        if self.inside:
            return func(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        tracked = [t for t in given if self.is_value(t)]
        if len(tracked) < len(given):
            for t in given:
                if not self.is_value(t) and t not in self.constants:
                    self.aliases.adopt(self, t)
            tracked = [t for t in given if self.is_value(t)]
            self.constants.meet(t for t in given if not self.is_value(t))
        name = function_name(func)
        before = [self.nodes.get(id(t)) for t in tracked]
        old = self._constant_before(name, args) if tracked and changes_first(name) else None
        drawn = RandomState(name)
        result = func(*args, **kwargs)
        if func == _SET_DATA and self.is_value(args[1]):  # the tensor is the other one from now on
            self.bind(args[0], self.node(args[1], anywhere=True))
            return result
        constant = name in FRESH or (name in LIKE and not self.is_value(args[0]))
        no_part = name in PARTS and len(tracked) == 1 and tracked[0] is args[0] and is_empty(result)
        if not tracked or constant or no_part:
            made = args[0] if name == "__setitem__" else result
            self._add_constants(func, name, made, given, drawn.moved())
            return result
        if name == "__setitem__":  # which returns nothing, and changes its first argument
            result = args[0]
        if old is not None:
            args = (old, *args[1:])
        shape_alone = (
            name in METADATA or is_description(result) or (name == "__get__" and not list(tensors_in(result)))
        )
        if shape_alone or result is NotImplemented:  # as `x == None`
            return result
        self.operation, begin = self._operation_name(func, name), self.serial
        try:
            if self.masked.follow(self, func, name, args, kwargs, result) or self.guards.follow(
                self, name, args, kwargs, result
            ):
                return result
            found = self._record(name, args, kwargs, result, tracked)
            if drawn.moved():
                raise self.fail(_ALWAYS_OTHERS, RANDOM_NUMBERS)
            for part, node in zip(*((result, found) if isinstance(found, list) else ([result], [found]))):
                if any(t is part for t in tracked) and node not in before:
                    self._mark_views(part)
                elif part in self.constants:  # until now
                    self.constants.mark_changed(part)
                self.bind(part, node)
            self.leave_out(t for t in tensors_in(result) if not self.is_value(t))
        except Refusal as refusal:
            self.refuse(refusal, result, tracked, begin)
        return result

    def leave_out(self, results: Iterable[Tensor]) -> None:
        """Further results of a function, such as the places of a maximum, which depend on the input too."""
        for t in results:
            self.nodes[id(t)], self.left_out[id(t)] = Node("left out", [], ()), self.operation
            self.remember(t)

    def _constant_before(self, name: str, args: Any) -> Tensor | None:
        """A copy of a constant, which a call is about to change by values; `x[..] += y` has changed the part
        that it puts in."""
        tensor, put = args[0], args[2] if name == "__setitem__" else None
        if not isinstance(tensor, Tensor) or self.is_value(tensor) or tensor not in self.constants:
            return None
        if self.constants.is_changed(tensor, by=put):
            return None
        old = tensor.clone()
        self.add_constant(old)
        return old

    def _add_constants(self, func: Any, name: str, result: Any, given: list[Tensor], drawn: bool) -> None:
        """What was computed from constants alone; what follows from random numbers is random."""
        if name not in (*FRESH, *METADATA) and self.any_changed(given):
            self.operation = self._operation_name(func, name)
            self.refuse(self._fail_changed(), result, [])
            return
        random = drawn or (name not in FRESH and self.constants.is_random(given))
        if random and name in READS:
            self.operation = self._operation_name(func, name)
            self._note(self.fail("reads random numbers, so that runs may differ", RANDOM_NUMBERS).obstacle)
        unknown = name not in (*FRESH, *METADATA) and any(
            t not in self.constants and not self.is_value(t) for t in given
        )
        for t in tensors_in(result):
            if name in UNSET:
                t.zero_()
            (self.remember if unknown else self.add_constant)(t)
        if random:
            self.constants.mark_random(tensors_in(result))

    def any_changed(self, tensors: Iterable[Tensor]) -> bool:
        return any(self.constants.is_changed(t) for t in tensors if not self.is_value(t))

    def _operation_name(self, func: Callable[..., Any], name: str) -> str:
        """A torch module is what the user wrote, not the function inside it, nor what that is composed of."""
        if self.composing:
            return self.composing
        module = self.modules[-1][1]
        if type(module).__module__.startswith("torch.nn."):
            return f"nn.{type(module).__name__}"
        return resolve_name(func) or name

    def _record(
        self, name: str, args: Any, kwargs: Any, result: Any, tracked: list[Tensor]
    ) -> Node | list[Node]:
        from xnorpp.packing.operations import plain_name, record

        remedy = remedy_for(plain_name(name))
        left_out = next((self.left_out[id(t)] for t in tracked if id(t) in self.left_out), None)
        if left_out is not None:
            raise self.fail(f"uses a result of {left_out} that is not packed", FIRST_RESULT)
        if not list(tensors_in(result)):
            reason = "reads the values of the input, so the model's path would depend on the image"
            raise self.fail(reason, remedy if refused_for_any_shape(plain_name(name)) else VALUE_READ)
        if any(id(t) in self.odd for t in tracked):
            if refused_for_any_shape(plain_name(name)):
                raise self.fail("is not supported", remedy)
            raise Consequence
        steps = {self.step(t) for t in tracked} - {0}
        if steps and plain_name(name) not in READ_ACROSS:
            raise self.fail("reads numbers that count through the batch", COUNTED)
        several = isinstance(result, list | tuple) and all(isinstance(p, Tensor | None) for p in result)
        if not isinstance(result, Tensor) and not several:
            raise self.fail("is not supported", remedy)
        made = record(self, name, args, kwargs, result)
        if steps and isinstance(result, Tensor) and plain_name(name) in MOVED:
            self.set_step(result, steps.pop())
        return made

    def refuse(
        self, refusal: Refusal, result: Any, tracked: Sequence[Tensor], begin: int | None = None
    ) -> None:
        """Notes the obstacle and continues with opaque values; `begin` is the serial when the call began."""
        sources = [self.nodes[id(t)] for t in tracked if id(t) in self.nodes]
        sources += [node for node in self.opaque if begin is not None and node.serial > begin]
        for t in tensors_in(result):
            if any(t is source for source in tracked):
                self._mark_views(t)
            elif t in self.constants:  # until now
                self.constants.mark_changed(t)
        made = self.make_opaque(tensors_in(result), sources)
        self.read += [] if made else sources  # by Python
        if refusal is not Consequence:
            self._note(refusal.obstacle, made)

    def _note(self, new: Obstacle, made: Sequence[Node] = ()) -> None:
        """An obstacle is listed once for each line of a module, and once for a module of torch's own. `made`
        are the values that it gave: where no output needs any, it is none."""
        needed = new.path, new.operation, new.line, new.reason
        self.made.setdefault(needed, []).extend(made or [self.input])
        torch_module = new.operation.startswith("nn.")
        for i, old in enumerate(self.obstacles):
            same = (old.operation, old.line, old.reason) == (new.operation, new.line, new.reason)
            if old.path == new.path and (same or (torch_module and old.operation == new.operation)):
                self.made[old.path, old.operation, old.line, old.reason] += made or [self.input]
                self.obstacles[i] = dataclasses.replace(old, calls=old.calls + same)
                return
        self.obstacles.append(new)

    def make_opaque(self, tensors: Iterable[Tensor], sources: list[Node]) -> list[Node]:
        made = []
        for t in tensors:
            self.serial += 1
            attrs = {"serial": self.serial}  # no two are alike
            self.nodes[id(t)] = Node("opaque", sources, tuple(t.shape[1:]), attrs, serial=self.serial)
            made.append(self.nodes[id(t)])
            self.remember(t)
            self.stale.pop(id(t), None)
            (self.odd.discard if self.fits(t) else self.odd.add)(id(t))
        self.opaque += made
        return made

    def report(self, path: str, operation: str, reason: str, remedy: str, line: str | None = None) -> None:
        name = type(self.modules[0][1]).__name__
        self._note(Obstacle(path, operation, line or f"class {name}", reason, remedy))

    def fits(self, t: Tensor) -> bool:
        """Whether a tensor has a shape and type that a program's values have."""
        return t.dim() - 1 in RANKS and t.shape[0] == self.batch and t.is_floating_point()

    def bind(self, tensor: Tensor, node: Node) -> None:
        """From now on this tensor is that node's value."""
        with _no_modes():
            plain = self.plain_of(tensor)
            plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
        batch = self.batch_axis(tensor)
        shape = tuple(n for axis, n in enumerate(plain.shape) if axis != batch)
        if batch >= plain.dim() or shape != node.shape or plain.shape[batch] != self.batch:
            raise self.fail(
                f"gives shape {tuple(tensor.shape)}, which mixes images or is not supported",
                "leave the batch axis first, and each image to itself",
            )
        self.remember(tensor)
        self.nodes[id(tensor)] = node
        self.stale.pop(id(tensor), None)
        if self.values is not None:
            with _no_modes():
                plain = self.without_step(tensor) if self.step(tensor) else plain
                keep_value(self.values, self.rounded, node.serial, plain.detach().movedim(batch, 0))

    def keep(self, made: Node, source: Node | None, move: Callable[[Tensor], Tensor]) -> None:
        """The value of a node that the model has no tensor of: what `move` makes of its source's value."""
        if self.values is None or (source is not None and source.serial not in self.values):
            return
        with _no_modes():
            given = self.values[0 if source is None else source.serial]
            self.values[made.serial] = move(given).detach().clone()

    def add_constant(self, tensor: Tensor) -> None:
        """A tensor that was computed from constants alone."""
        self.remember(tensor)
        self.constants.add(tensor)

    def remember(self, tensor: Tensor) -> None:
        self.alive.append(tensor)
        self.aliases.add(tensor)

    def _mark_views(self, changed: Tensor) -> None:
        """An in-place operation changes every view of the same memory; their recorded values are no more."""
        storage = changed.untyped_storage().data_ptr()
        for other in self.alive:
            shared = isinstance(other, Tensor) and other.untyped_storage().data_ptr() == storage
            if other is changed or not shared:
                continue
            if id(other) in self.nodes:
                self.stale[id(other)] = (self.nodes.pop(id(other)), changed)
            elif id(other) in self.stale and self.stale[id(other)][1] is not changed:
                self.stale[id(other)] = (self.stale[id(other)][0], None)

    def restored(self, tensor: Tensor, changed: object) -> None:
        """`x[..] += y` changes a view of x and puts it where it is: x is what it was, and the view put in."""
        if id(tensor) in self.stale and self.stale[id(tensor)][1] is changed:
            self.nodes[id(tensor)] = self.stale.pop(id(tensor))[0]

    def node(self, tensor: object, anywhere: bool = False) -> Node:
        """The node of a tensor that depends on the input; `anywhere`: its batch axis may be any one."""
        if isinstance(tensor, Tensor) and id(tensor) in self.stale:
            raise self._fail_changed()
        if tensor in self.masked:
            raise self.fail(REASON, COMPUTED)
        if not isinstance(tensor, Tensor) or id(tensor) not in self.nodes:
            raise self.fail("has a constant where a value computed from the input is needed")
        if not anywhere and self.merged(tensor):
            raise self.fail(
                "reads a tensor whose batch is merged with another axis", "leave each image to itself"
            )
        place = self.batch_axis(tensor)
        if not anywhere and place:
            raise self.fail(
                f"reads a tensor whose batch is axis {place}", "move the batch axis to the front first"
            )
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
            raise self.fail(
                "computes its weights or constants from the input", "use parameters or buffers instead"
            )
        self.check_constant(tensor)
        with _no_modes():
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            return np.array(tensor.detach().to("cpu", wide).numpy())

    def check_constant(self, tensor: Tensor) -> None:
        """Raises where the numbers of a tensor that is no value are not the same in every run."""
        if tensor not in self.constants:
            self.constants.met_unknown = True
            if not self.constants.trusted:
                remedy = "make it a parameter or buffer of the module"
                raise self.fail("uses a tensor of unknown origin", remedy)
            with _no_modes():
                self.constants.unknown.append(tensor.detach().clone())
        if self.constants.is_random([tensor]):
            raise self.fail(_ALWAYS_OTHERS, RANDOM_NUMBERS)
        if self.constants.is_changed(tensor):
            raise self._fail_changed()

    def _fail_changed(self) -> Refusal:
        return self.fail("reads" + CHANGED, CLONE)

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
        if any(0 in node.shape for node in inputs):
            raise self.fail("reads a tensor without numbers", "leave empty parts out")
        self.serial += 1
        where = (self.modules[-1][0] or "model", self._line(), self.serial)
        return Node(op, inputs, shape, attrs or {}, tensors or {}, *where, trained)

    def emit_sign(self, source: Node) -> Node:
        node = self.emit("sign", [source], source.shape)
        node.argument = source.serial
        return node

    def fail(self, reason: str, remedy: str | None = None) -> Refusal:
        """The error for the operation that runs now; `remedy` defaults to the one of its function."""
        remedy = remedy or remedy_for(self.operation.rpartition(".")[2])
        path, module = self.modules[-1]
        if type(module).__module__ == "torch.ao.quantization.observer":
            remedy = OBSERVERS
        return Refusal(Obstacle(path, self.operation, self._line(), reason, remedy))

    def _line(self) -> str:
        return source_line() or f"nn.{type(self.modules[-1][1]).__name__}"


# Stands for a refusal that only follows from an obstacle already reported.
Consequence = Refusal(Obstacle("", "", "", "", ""))
