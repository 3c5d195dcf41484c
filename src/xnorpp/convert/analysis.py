"""What one run of a model shows of its layers: whose input has one sign only, and which produce its outputs.

The model runs once under a `TorchFunctionMode`, which sees every torch function with its real arguments, so
that the analysis works on any module that runs. The range that its values can have (`ranges.py`) follows each
tensor. What the mode cannot see, such as a scripted module, has any range. On a batch of real data the signs
are counted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from xnorpp.convert.flow import LAYERS, flow_of_run
from xnorpp.convert.ranges import ANY, Range, result_range
from xnorpp.convert.symbolic import symbolic_ranges
from xnorpp.nn.controls import evaluating
from xnorpp.packing.calls import tensors_in
from xnorpp.packing.example import as_weights_are, example_inputs, is_batch
from xnorpp.packing.operations import plain_name
from xnorpp.packing.runs.state import unchanged

CONSTANT_SHARE = 0.999  # of the signs of a layer's input: beyond this the layer is as good as constant
_FEWEST = 64  # values, for a share to mean anything
_LARGEST = 1 << 20  # constants with more values are not looked at

_CONSTANTS = ("zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "scalar_tensor")


def constant_inputs(model: nn.Module, example: Any = None) -> dict[str, str]:
    """The layers that binarization would make constant, because their input has one sign (nearly) everywhere.

    That is so after sigmoid, softmax and average pooling of values that are not negative, as in
    squeeze-excitation. ReLU alone is harmless, since sign(0) = -1, and so is max pooling after it.

    Args:
        model: Any `nn.Module`.
        example: A batch as the model takes it, a tuple of arguments, or the size of one input; the model runs
            once on it, in evaluation mode. With a batch of real data the signs of each layer's input are
            counted too. Without an example the model's symbolic graph is analysed; where torch.fx cannot
            trace the model, nothing is found.

    Returns:
        The path of each such layer and the reason.
    """
    if example is None:
        return _reasons(symbolic_ranges(model, LAYERS), {})
    inputs = as_weights_are(model, example_inputs(model, example))
    counts = is_batch(example) and bool(torch.count_nonzero(inputs[0]))
    watch = _Watch(model, counts)
    hooks = []
    try:
        for path, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                continue
            weighted = isinstance(module, LAYERS)
            before, after = watch.hooks(path, weighted)
            hooks.append(module.register_forward_pre_hook(before))
            hooks.append(module.register_forward_hook(after))
        batch_statistics = _batch_statistics(model) if counts and len(inputs[0]) > 1 else _nothing()
        with unchanged(model), evaluating(model), torch.no_grad(), batch_statistics, watch:
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return _reasons(watch.calls, watch.signs)


def output_layers(model: nn.Module, example: Any) -> set[str]:
    """The layers whose result reaches an output of the model without passing another layer: all of its heads.

    A layer that reaches an output only through a shortcut around later layers is not one of them.

    Args:
        model: Any `nn.Module`; its outputs may be a tensor, tuple, dict or dataclass.
        example: As in `constant_inputs`.

    Returns:
        Their paths.
    """
    outputs = flow_of_run(model, as_weights_are(model, example_inputs(model, example))).outputs
    return {path for path, module in model.named_modules() if module in outputs}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norms that were never trained use the batch's statistics: those they start with mean nothing."""
    kinds = nn.modules.batchnorm._BatchNorm
    fresh = [
        module
        for module in model.modules()
        if isinstance(module, kinds) and module.num_batches_tracked is not None
        if not int(module.num_batches_tracked)
    ]
    before = [({name: b.clone() for name, b in module.named_buffers()}, module.training) for module in fresh]
    modules = dict(zip(fresh, before))

    def enter(module: nn.Module, args: Any) -> None:
        x = args[0]
        module.training = x.numel() // max(1, x.shape[1]) > 1  # torch refuses one value per channel

    hooks = [module.register_forward_pre_hook(enter) for module in fresh]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, (buffers, training) in modules.items():
            module.training = training
            for name, value in buffers.items():
                module.get_buffer(name).copy_(value)


@dataclass
class _Signs:
    positive: int = 0
    total: int = 0


def _reasons(calls: Mapping[str, list[Range]], counted: Mapping[str, _Signs]) -> dict[str, str]:
    """Path -> reason for every layer whose input has one sign, by its range in every call or by counts."""
    reasons: dict[str, str] = {}
    for path, ranges in calls.items():
        bits = {r.bit for r in ranges}
        signs = counted.get(path, _Signs())
        if len(bits) == 1 and 0 not in bits:
            bit, origin = bits.pop(), ranges[0].origin
            what = "is never negative and hardly ever zero" if bit > 0 else "is never positive"
            after = f" (after {origin})" if origin else ""
            reasons[path] = f"its input {what}{after}: every bit would be {bit:+d}, the layer constant"
        elif signs.total >= _FEWEST:
            share = signs.positive / signs.total
            if max(share, 1 - share) >= CONSTANT_SHARE:
                bit, percent = 1 if share > 0.5 else -1, 100 * max(share, 1 - share)
                what = "is positive" if bit > 0 else "is not positive"
                reasons[path] = (
                    f"its input {what} in {percent:.2f} % of the example: nearly every bit would be "
                    f"{bit:+d}, the layer constant"
                )
    return reasons


class _Watch(TorchFunctionMode):
    def __init__(self, model: nn.Module, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.paths: list[str] = [""]
        self.inside = 0  # layers with weights that run now
        self.alive: list[Tensor] = []  # so that no identity is used twice
        self.ranges: dict[int, Range] = {}
        self.calls: dict[str, list[Range]] = {}  # the range of a layer's input in each call
        self.signs: dict[str, _Signs] = {}
        self.buffers = {id(buffer) for buffer in model.buffers()}

    def hooks(self, path: str, weighted: bool) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: nn.Module, args: Any) -> None:
            self.paths.append(path)
            if weighted:
                if not self.inside and args:
                    self._enter(path, args[0])
                self.inside += 1

        def after(module: nn.Module, args: Any, result: Any) -> None:
            self.paths.pop()
            if weighted:
                self.inside -= 1

        return before, after

    def _enter(self, path: str, x: Any) -> None:
        self.calls.setdefault(path, []).append(self._range(x))
        if self.counts and isinstance(x, Tensor) and x.is_floating_point():
            signs = self.signs.setdefault(path, _Signs())
            with torch._C.DisableTorchFunction():
                signs.positive += int(torch.count_nonzero(x > 0))
                signs.total += x.numel()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.inside or not list(tensors_in(result)):
            return result
        name = plain_name(getattr(func, "__name__", str(func)))
        given = list(tensors_in((args, kwargs)))
        if not given:
            found = self._values(result) if name in _CONSTANTS else ANY
        else:
            shrinks = any(r.numel() < given[0].numel() for r in tensors_in(result))
            found = result_range(name, args, kwargs, self._range, shrinks)
        if found.bit and not found.origin:
            where = f" in {self.paths[-1]!r}" if self.paths[-1] else ""
            found = replace(found, origin=f"{resolve_name(func) or name}{where}")
        if any(t is result for t in given):
            self._forget_views(result)
        self._bind(result, found)
        return result

    def _bind(self, result: Any, found: Range) -> None:
        for t in tensors_in(result):
            self.alive.append(t)
            self.ranges[id(t)] = found

    def _forget_views(self, changed: Tensor) -> None:
        """An in-place operation changes every view of the same memory."""
        storage = changed.untyped_storage().data_ptr()
        for other in self.alive:
            if other is not changed and other.untyped_storage().data_ptr() == storage:
                self.ranges[id(other)] = ANY

    def _range(self, value: Any) -> Range:
        if isinstance(value, Range):
            return value
        if isinstance(value, int | float):
            return Range(float(value), float(value))
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return ANY
        if id(value) in self.buffers:
            return self._values(value)
        return self.ranges.get(id(value), ANY)

    def _values(self, constant: Any) -> Range:
        if not isinstance(constant, Tensor) or not 0 < constant.numel() <= _LARGEST or constant.is_complex():
            return ANY
        with torch._C.DisableTorchFunction():
            low, high = float(constant.min()), float(constant.max())
            return Range(low, high, zeros=bool((constant == 0).any()))
