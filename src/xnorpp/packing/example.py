"""What an `example` of a model's input may be: tensors, arrays, a batch of a loader, or a size alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xnorpp.nn.controls import evaluating
from xnorpp.packing.graph import Node
from xnorpp.packing.runs.state import unchanged

_EARLIER = -(10**9)  # serials of what is there before the model runs
BATCH = 2  # images of a traced run; a reshape that mixes images changes this leading size and is noticed


def example_inputs(model: nn.Module, example: Any, name: str = "example") -> tuple[Tensor, ...]:
    """The arguments to run a model on.

    Args:
        model: The model; its first convolution has the channels that a size leaves out.
        example: A batch as a tensor or array, a tuple, list or dict of arguments (what `forward` does not
            take, such as a loader's labels, is left out), or a size of one input without the batch: a side,
            (h, w), (c, h, w) or (features,), which gives zeros.
        name: How an error names the argument.

    Returns:
        One tensor for each argument.

    Raises:
        ValueError: If `example` is none of these.
    """
    if isinstance(example, Tensor):
        return (example,)
    if isinstance(example, np.ndarray):
        return (torch.from_numpy(example),)
    if isinstance(example, Mapping):
        example = _in_order(model, example, name)
    if isinstance(example, list | tuple) and example and not all(isinstance(n, int) for n in example):
        inputs = tuple(torch.as_tensor(item) for item in example if isinstance(item, Tensor | np.ndarray))
        if len(inputs) == len(example):
            return _those_taken(model, inputs)
    else:
        return (torch.zeros((BATCH, *size_of(model, example, name))),)
    kinds = ", ".join(type(item).__name__ for item in example)
    raise ValueError(f"`{name}` is a {type(example).__name__} of {kinds}; tensors or a size are needed")


def as_weights_are(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies of the inputs on the device of the model's weights, real numbers in their type.

    Bytes stay bytes where the model takes them, as one that computes `x.float() / 255`; otherwise they are
    numbers too. A model may change its inputs in place.
    """
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    like = tensors[0] if tensors else torch.zeros(1)
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1:  # the type of the example is one that some of them have, so the model chose it
        like = next((t for x in inputs for t in tensors if t.dtype == x.dtype), like)
    bytes_too = not any(x.dtype == torch.uint8 for x in inputs) or not _runs(model, like, inputs)
    return tuple(
        x.detach().to(like.device, like.dtype if _is_real(x, bytes_too) else x.dtype, copy=True)
        for x in inputs
    )


def _is_real(x: Tensor, bytes_too: bool) -> bool:
    return x.is_floating_point() or (bytes_too and x.dtype == torch.uint8)


def _runs(model: nn.Module, like: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Whether a model takes bytes as they are."""
    given = [
        x.detach().to(like.device, like.dtype if _is_real(x, False) else x.dtype, copy=True) for x in inputs
    ]
    try:
        with unchanged(model), evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*given)
    except Exception:  # whatever the user's model raises
        return False
    return True


def channels_are_last(x: Tensor) -> bool:
    """Whether an input is images as bytes, (n, h, w, c), as a packed model takes them too."""
    return x.dtype == torch.uint8 and x.dim() == 4 and x.shape[3] <= 4 < x.shape[1]


def are_batches(inputs: Sequence[Tensor]) -> bool:
    """Whether each of several inputs has numbers for every image, so that they may be joined to one."""
    return all(x.dim() and x.shape[0] == inputs[0].shape[0] and not x.is_complex() for x in inputs)


def input_nodes(inputs: Sequence[Tensor]) -> tuple[Node, list[Node], Tensor]:
    """The input of a program, what each input of a model is of it, and its value.

    Several inputs are one vector for each image, one after the other.
    """
    x = inputs[0]
    if len(inputs) == 1:
        if not channels_are_last(x):
            node = Node("input", [], tuple(x.shape[1:]))
            return node, [node], x
        node = Node("input", [], (x.shape[3], *x.shape[1:3]))
        moved = Node("permute", [node], tuple(x.shape[1:]), {"axes": [1, 2, 0]}, serial=_EARLIER)
        return node, [moved], x.movedim(3, 1)
    value = torch.cat([t.reshape(len(t), -1).float() for t in inputs], 1)
    total, begin = value.shape[1], 0
    node, parts = Node("input", [], (total,)), []
    for number, t in enumerate(inputs):
        end, serial = begin + t[0].numel(), _EARLIER + 2 * number
        attrs = {"start": [begin], "stop": [None if end == total else end], "step": [1]}
        part = Node("slice", [node], (end - begin,), attrs, serial=serial)
        if t.dim() > 2:
            attrs = {"shape": list(t.shape[1:])}
            part = Node("reshape", [part], tuple(t.shape[1:]), attrs, serial=serial + 1)
        parts.append(part)
        begin = end
    return node, parts, value


def is_batch(example: Any) -> bool:
    """Whether an example has values, not only a size."""
    if isinstance(example, Mapping):
        example = list(example.values())
    if isinstance(example, list | tuple):
        return any(is_batch(item) for item in example)
    return isinstance(example, Tensor | np.ndarray)


def pair_of_images(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same inputs with exactly `BATCH` images: the first ones, or the single one repeated."""
    count = inputs[0].shape[0] if inputs[0].dim() else 0
    if not count:
        raise ValueError(f"`example` has shape {tuple(inputs[0].shape)}; at least one image is needed")
    chosen = [i % count for i in range(BATCH)]
    return tuple(x[chosen] if x.dim() and x.shape[0] == count else x for x in inputs)


def size_of(model: nn.Module, size: Any, name: str = "input_size") -> tuple[int, ...]:
    """The shape of one input: a side or (h, w) get the channels of the model's first convolution."""
    sizes = [size, size] if isinstance(size, int) else list(size) if isinstance(size, Sequence) else []
    if not 1 <= len(sizes) <= 3 or not all(type(n) is int and n > 0 for n in sizes):
        raise ValueError(f"`{name}` (={size!r}) must be a positive side, (h, w), (c, h, w) or (features,)")
    first = next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d)), None)
    if len(sizes) == 1 and first is not None:
        raise ValueError(f"`{name}` (={size!r}) is that of a vector; the model has convolutions")
    if len(sizes) == 2 and not isinstance(first, nn.Conv1d):
        return (3 if first is None else first.in_channels, *sizes)
    return tuple(sizes)


def _in_order(model: nn.Module, example: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Arguments by name in the order in which `forward` takes them."""
    taken = list(inspect.signature(model.forward).parameters)
    if not example or set(taken[: len(example)]) != set(example):
        given, first = ", ".join(map(str, example)), ", ".join(taken)
        raise ValueError(
            f"`{name}` is a dict of {given or 'nothing'}; the first arguments of `forward`, which takes "
            f"{first}, are needed, or a tuple of them"
        )
    return tuple(example[key] for key in taken[: len(example)])


def _those_taken(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return inputs
    for count in range(len(inputs), 1, -1):
        try:
            signature.bind(*inputs[:count])
        except TypeError:
            continue
        return inputs[:count]
    return inputs[:1]
