"""Runs a model under a `Trace`, or raises for what cannot be packed."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from xnorpp.nn import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear
from xnorpp.nn.controls import evaluating
from xnorpp.packing.bits.zeros import Signs, measured, samples, trained_instead
from xnorpp.packing.calls import Call, failing_line, tensors_in
from xnorpp.packing.example import as_weights_are
from xnorpp.packing.graph import Node, PackError
from xnorpp.packing.obstacles import Obstacle, Refusal
from xnorpp.packing.runs import batches
from xnorpp.packing.runs.outputs import finish
from xnorpp.packing.runs.state import unchanged
from xnorpp.packing.trace import RANKS, Consequence, Trace

_SCRIPT_CALL = torch.jit.ScriptFunction.__call__


def _taken_whole(module: nn.Module) -> bool:
    """A binary layer with the forward pass we know; `real` ones are ordinary layers."""
    for kind in (BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear):
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


class Outputs(dict[str, Node]):
    """The nodes of a model's outputs by name; `alone` are those of one number without an axis, (n,), and
    `signs` are the shares of zeros of its calls of torch.sign, and `rounded` tells by a node's serial how far
    other tensors are from the value that stands for them."""

    alone: tuple[str, ...] = ()
    signs: Sequence[float] = ()
    rounded: Mapping[int, Tensor] = MappingProxyType({})
    shape: tuple[int, ...] = ()  # of one input, channels first
    bytes: bool = False  # whether the model takes bytes
    whole: bool = False  # whether it takes whole numbers, such as words
    shapes: Sequence[tuple[int, ...]] = ()  # of several inputs, as the model takes them


def trace(model: nn.Module, *inputs: Tensor, any_size: bool = False, signs: Sequence[float] = ()) -> Outputs:
    """Run `model` on these inputs and return the nodes of its outputs by name, or raise `PackError`."""
    outputs, _ = trace_values(model, *inputs, keep=False, any_size=any_size, signs=signs)
    return outputs


def trace_values(
    model: nn.Module, *inputs: Tensor, keep: bool = True, any_size: bool = False, signs: Sequence[float] = ()
) -> tuple[Outputs, dict[int, Tensor]]:
    """Run `model`: the nodes of its outputs and, with `keep`, the value of every node by its serial."""
    recorder = run_traced(model, *inputs, keep=keep, any_size=any_size, signs=signs)
    if not recorder.outputs:
        raise first_of(recorder.obstacles)
    outputs = Outputs(recorder.outputs)
    outputs.alone, outputs.signs = recorder.alone, recorder.signs.zeros
    outputs.rounded = recorder.rounded
    outputs.shape, outputs.bytes = recorder.input.shape, recorder.bytes
    outputs.whole, outputs.shapes = recorder.whole, recorder.shapes
    return outputs, recorder.values or {}


def first_of(obstacles: Sequence[Obstacle]) -> PackError:
    """The error of a model with these obstacles: the first, and how many more there are."""
    more = len(obstacles) - 1
    if not more:
        return PackError(str(obstacles[0]))
    others = f"{more} more obstacle{'s' * (more > 1)}"
    return PackError(
        f"{obstacles[0]} ({others}: xnorpp.check_packable(model, example) lists all, with remedies)"
    )


def run_traced(
    model: nn.Module, *inputs: Tensor, keep: bool = False, any_size: bool = False, signs: Sequence[float] = ()
) -> Trace:
    """Run `model` under a trace, which has no outputs where there are obstacles.

    It runs once; again where it uses a tensor that is not its own: what both runs meet was there before the
    second. Any other is looked up among all objects of the process, which takes longer than most traces.
    Where it calls torch.sign, it runs on samples too, unless their shares of zeros are given, and again with
    what the samples showed. Every run begins with the model as it is, and leaves it so. Where neither values
    are asked for nor a graph of any size, it runs on more images too, and again where it changed itself: the
    program must be the same.
    """
    given = as_weights_are(model, inputs)
    older: Mapping[int, Tensor] = {}
    instead: Mapping[int, Tensor] = {}
    changed: list[bool] = []  # of each run, whether it changed the model
    trusted = False

    def run(*others: Tensor, like: Mapping[int, Tensor] = MappingProxyType({})) -> tuple[Trace, Any]:
        own = tuple(x.clone() for x in others or given)  # the model may change them in place
        recorder = Trace(model, own, keep and not others, any_size)
        recorder.constants.older, recorder.constants.trusted = older, trusted
        recorder.signs = Signs(signs, like)
        for tensor in recorder.signs.instead.values():
            recorder.add_constant(tensor)
        with unchanged(model) as changes:
            result = _run(recorder, model, own)
        changed.extend(changes)
        return recorder, result

    recorder, result = run()
    if len(recorder.signs.met) != len(signs):
        instead = trained_instead(model)
        signs = measured(lambda sample: run(*as_weights_are(model, sample), like=instead)[0].signs, given)
        recorder, result = run()
    if recorder.constants.met_unknown:
        met = recorder.constants.strangers.items()
        older = WeakValueDictionary({key: t for key, t in met if t is not inputs[0]})
        recorder, result = run()
    if recorder.constants.met_unknown:
        found = [t for t in gc.get_objects() if issubclass(type(t), Tensor) and t is not inputs[0]]
        older = WeakValueDictionary({id(t): t for t in found})
        del found
        recorder, result = run()
    if recorder.constants.met_unknown:  # such as torch.Tensor([1.0]): constants where no sample changes them
        trusted = True
        trusted = batches.are_constant(lambda *sample: run(*sample)[0].constants.unknown, model, given)
        recorder, result = run()
    finish(recorder, result)
    if recorder.outputs and not keep and not any_size:
        _compare_runs(recorder, model, given, run, changed[-1])
    return recorder


def _compare_runs(
    recorder: Trace, model: nn.Module, given: Sequence[Tensor], run: Callable[..., Any], changes: bool
) -> None:
    """Notes an obstacle where the program is another one for more images, or in a later call."""
    try:
        other, result = run(*batches.other_batch(given))
    except Exception as error:  # whatever the user's model raises where it cannot run
        line = failing_line(error) or f"class {type(model).__name__}"
        recorder.obstacles.append(batches.fails(len(given[0]), error, line))
    else:
        finish(other, result)
        recorder.obstacles += batches.more_images(recorder.outputs, other.outputs, other.obstacles)
    if changes and not recorder.obstacles:
        with unchanged(model):
            for sample in itertools.islice(samples(given), 2):
                with (
                    suppress(Exception),
                    evaluating(model),
                    torch.no_grad(),
                    torch.random.fork_rng(devices=[]),
                ):
                    model(*as_weights_are(model, sample))  # it may not take a sample
            other, result = run()
        finish(other, result)
        recorder.obstacles += batches.later_call(recorder.outputs, other.outputs, other.obstacles)
    if recorder.obstacles:
        recorder.outputs = {}


def _check_model(recorder: Trace, model: nn.Module) -> None:
    for path, module in model.named_modules():
        outer = model.get_submodule(path.rpartition(".")[0]) if path else None
        if isinstance(module, torch.jit.ScriptModule) and not isinstance(outer, torch.jit.ScriptModule):
            reason = "is a TorchScript module, whose operations are not visible"
            recorder.report(path, "torch.jit", reason, "use the module that it was made from")


def _check_inputs(recorder: Trace, inputs: Sequence[Tensor]) -> None:
    axes = ", ".join(map(str, recorder.input.shape))
    if recorder.shapes:
        return
    if len(inputs) > 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        reason = f"takes {len(inputs)} inputs of shapes {shapes}, of which not all have the batch first"
        remedy = "give every input a first axis of as many images, or make it an attribute of the module"
        recorder.report("", "forward", reason, remedy)
        recorder.make_opaque(list(inputs[1:]), [])
    if not (inputs[0].is_floating_point() or recorder.bytes or recorder.whole):
        remedy = "give it real numbers, or whole ones of type int64"
        recorder.report("", "the input", f"is of type {inputs[0].dtype}, which is not supported", remedy)
        recorder.make_opaque([inputs[0]], [])
    elif len(recorder.input.shape) not in RANKS:
        remedy = "give it batches of vectors (n, c), sequences (n, c, length) or images (n, c, h, w)"
        recorder.report("", "the input", f"has shape (n, {axes}); 1 to 8 axes after n are needed", remedy)
        recorder.make_opaque([inputs[0]], [])


def _run(recorder: Trace, model: nn.Module, inputs: Sequence[Tensor]) -> Any:
    hooks = []
    _check_model(recorder, model)
    _check_inputs(recorder, inputs)
    try:
        for path, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                continue
            before, after = _hooks(recorder, path, _taken_whole(module))
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after, with_kwargs=True))
        with evaluating(model), torch.no_grad(), _scripts_visible(recorder), recorder:
            return model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _scripts_visible(recorder: Trace) -> Iterator[None]:
    """Functions of torch.jit.script run as the Python functions that they were made from, because a trace
    does not see what they compute. Those of torch.jit.trace take the path that was taken for their own
    example, so that the functions they were made from may compute something else."""
    kind: Any = torch.jit.ScriptFunction

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = vars(self)
        if "__name__" in own and "_torchdynamo_inline" in own:  # a traced function has no name
            return own["_torchdynamo_inline"](*args, **kwargs)
        result = _SCRIPT_CALL(self, *args, **kwargs)
        tracked = [t for t in tensors_in((args, kwargs)) if recorder.is_value(t)]
        if tracked and not recorder.inside:
            recorder.operation = "torch.jit"
            reason = "runs a TorchScript function, whose operations are not visible"
            recorder.refuse(recorder.fail(reason, "use the function that it was made from"), result, tracked)
        return result

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = _SCRIPT_CALL


def _hooks(recorder: Trace, path: str, whole: bool) -> tuple[Any, Any]:
    inputs: list[Node | None] = []  # of the calls under way; a module may call itself

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(recorder.nodes.get(id(args[0])) if args else None)
        if not recorder.inside:
            recorder.modules.append((path, module))
        if whole:
            recorder.inside += 1

    def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        source = inputs.pop()
        if whole:
            recorder.inside -= 1
            if not recorder.inside:
                recorder.operation = type(module).__name__
                _record_whole(recorder, module, args, result)
        if not recorder.inside:
            recorder.modules.pop()
            call = _call_of(recorder, args, kwargs, result, source)
            recorder.calls.setdefault(path, []).append(call)

    return before, after


def _call_of(recorder: Trace, args: Any, kwargs: Any, result: Any, before: Node | None) -> Call:
    """What a module was called with; `before` is the node that its input had."""
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not isinstance(result, Tensor):
        return Call(None, False)
    changed = recorder.nodes.get(id(args[0])) is not before
    for t in (args[0], result):
        if not recorder.is_value(t) or not recorder.fits(t):
            return Call(None, changed)
    return Call(tuple(args[0].shape[1:]), changed)


def _record_whole(recorder: Trace, module: nn.Module, args: Any, result: Any) -> None:
    from xnorpp.packing.layers import record_layer
    from xnorpp.packing.operations.arguments import mixes_images

    try:
        if len(args) != 1:
            raise recorder.fail("must be called with its input alone", "pass the input as the one argument")
        if id(args[0]) in recorder.odd:
            raise Consequence
        if not recorder.is_value(args[0]):
            recorder.constants.meet(args)
        if args[0] in recorder.constants and not recorder.is_value(args[0]):
            recorder.add_constant(result)  # of a constant, such as an encoding of places
            return
        batch = recorder.batch_axis(args[0])
        if batch == args[0].dim() - 1:
            raise mixes_images(recorder)
        recorder.follow(result, args[0])
        x, y = recorder.apart(args[0]), recorder.apart(result)
        if batch and isinstance(module, BinaryLinear):
            node, x, y = recorder.nodes.get(id(x)), x.movedim(batch, 0), y.movedim(batch, 0)
            recorder.bind(x, recorder.node(args[0], anywhere=True) if node is None else node)
        recorder.bind(result, record_layer(recorder, module, x, y))
    except Refusal as refusal:
        recorder.refuse(refusal, result, [t for t in tensors_in(args) if recorder.is_value(t)])
