"""Recurrent layers over sequences of a fixed length, step by step: no operation of their own.

What a layer makes of its input is one product for all steps; each step then adds the product with the last
state, and its gates are slices of the sum. The weights are stored once, however many steps there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.places import Place
from xnorpp.packing.moves.views import joined, permuted, reshaped, sliced
from xnorpp.packing.operations.activation import emit_curve
from xnorpp.packing.operations.arguments import Handler
from xnorpp.packing.trace import Trace

_MOST = 512  # steps of one call, those of all layers and both directions together
_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _recurrent(kind: str) -> Any:
    """`torch.lstm` and the others as the modules call them, on whole batches."""

    def handler(
        trace: Trace, result: Any, input: Any, hx: Any, weights: Any, biased: Any, layers: Any = None,
        dropout: float = 0.0, training: bool = False, both: bool = False, batch_first: bool = False,
    ) -> list[Node]:  # fmt: skip
        if not isinstance(layers, int) or isinstance(layers, bool) or input.dim() != 3:
            raise trace.fail("of sequences of several lengths is not supported", "pad them to one length")
        if training and dropout and layers > 1:
            raise trace.fail("with dropout is active in evaluation too", "call model.eval()")
        if trace.batch_axis(input) != (0 if batch_first else 1):
            raise trace.fail("takes the batch for the steps", "set `batch_first` as the axes are")
        given, ways = [trace.constant(w) for w in weights], 1 + both
        each = len(given) // (layers * ways)
        value = _sequence(trace, input, batch_first)
        if value.shape[1] * layers * ways > _MOST:
            raise trace.fail(
                f"takes {value.shape[1] * layers * ways} steps; {_MOST} are supported",
                "shorten the sequence, by a strided convolution for example",
            )
        hx = hx if isinstance(hx, list | tuple) else [hx]
        starts = [_start(trace, state, input, layers, value.shape[2]) for state in hx]
        rows = input if batch_first else input.transpose(0, 1)
        finals: list[list[Node]] = []
        trained: list[list[Tensor]] = []
        for layer in range(layers):
            own = [slice(at, at + each) for at in range(each * layer * ways, each * (layer + 1) * ways, each)]
            start = [state[layer] for state in starts]
            states, memories = _steps(
                trace, kind, value, [_Way.of(kind, given[way], biased) for way in own], start
            )
            if trace.values is not None:
                first = [state[layer * ways : (layer + 1) * ways] for state in hx]
                steps = replace(trace.place(input), axis=0)
                given_ways = [weights[way] for way in own]
                rows, last = _keep(trace, kind, rows, steps, first, given_ways, states, memories)
                trained.append(last)
            value = _turned(trace, joined(trace, states, 1), ways)
            finals.append([states[-1], *(_together(trace, memory) for memory in memories[-1:])])
        if trained:  # what follows is computed from these: all that torch has is from one run
            whole = [rows if batch_first else rows.transpose(0, 1), *map(torch.cat, zip(*trained))]
            for tensor, numbers in zip(result, whole):
                tensor.copy_(numbers)
        return [
            _output(trace, result[0], input, value, batch_first),
            *_final(trace, result, input, finals, ways),
        ]

    return handler


@dataclass
class _Way:
    """The weights of a layer in one direction: as filters, both biases, and that of a projection."""

    w_in: Array
    w_state: Array
    b_in: Array
    b_state: Array
    projection: Array | None

    @staticmethod
    def of(kind: str, weights: list[Array], biased: bool) -> _Way:
        """One bias alone, except where a gate comes between them."""
        w_in, w_state, *rest = (w[:, :, None, None] if w.ndim == 2 else w for w in weights)
        zeros = np.zeros(len(w_in), np.float32)
        b_in, b_state = rest[:2] if biased else (zeros, zeros)
        own = np.arange(len(b_in)) < (2 * len(b_in) // 3 if kind == "gru" else len(b_in))
        b_in, b_state = (b_in + b_state * own).astype(np.float32), (b_state * ~own).astype(np.float32)
        return _Way(w_in, w_state, b_in, b_state, rest[-1] if len(rest) in (1, 3) else None)


def _start(trace: Trace, state: Tensor, input: Tensor, layers: int, count: int) -> list[Node | None]:
    """The state before the first step of each layer, (ways, channels, sequences); None for zeros."""
    ways, channels = state.shape[0] // layers, state.shape[2]
    if trace.is_value(state):
        if trace.place(state) != replace(trace.place(input), axis=1):
            raise trace.fail(
                "starts from a state whose batch is not its second axis", "give (layers, n, channels)"
            )
        node = reshaped(trace, trace.node(state, anywhere=True), (state.shape[0], count, channels))
        parts = [sliced(trace, node, 0, at, at + ways) for at in range(0, len(state), ways)]
        return [permuted(trace, part, [0, 2, 1]) for part in parts]
    constant = trace.constant(state)
    if not constant.any():
        return [None] * layers
    plain = trace.plain_of(torch.from_numpy(constant), replace(trace.place(input), axis=1)).numpy()
    each = plain.reshape(layers, ways, trace.batch, count, channels)
    if (each != each[:, :, :1]).any():
        raise trace.fail("starts from a state that differs from image to image", "give every image the same")
    same = np.ascontiguousarray(each[:, :, 0].swapaxes(2, 3).astype(np.float32))
    return [trace.emit("constant", [trace.input], part.shape, None, {"value": part}) for part in same]


def _sequence(trace: Trace, input: Tensor, batch_first: bool) -> Node:
    """A batch of sequences as an image, (channels, steps, sequences of one image)."""
    node = trace.node(input, anywhere=True)
    if not trace.merged(input):
        node = reshaped(trace, node, (1, *node.shape) if batch_first else (node.shape[0], 1, node.shape[1]))
    return permuted(trace, node, [2, 1, 0] if batch_first else [2, 0, 1])


def _output(trace: Trace, result: Tensor, input: Tensor, value: Node, batch_first: bool) -> Node:
    made = permuted(trace, value, [2, 1, 0] if batch_first else [1, 2, 0])
    trace.follow(result, input)
    if trace.merged(input):
        return made
    return reshaped(trace, made, (value.shape[1], value.shape[0]))


def _keep(
    trace: Trace, kind: str, rows: Tensor, place: Place, start: list[Tensor], ways: list[Any],
    states: list[Node], memories: list[Node],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """What torch has after each step of a layer, with which `verify` compares: the error that it expects
    would grow from step to step, and from layer to layer. The result is the output and the last states."""
    with torch._C.DisableTorchFunction():
        found = []
        for way, weights in enumerate(ways):
            first = [state[way : way + 1].contiguous() for state in start]
            found.append(_torch_steps(kind, rows.flip(1) if way else rows, first, weights))
        for nodes, each in ((states, [way[0] for way in found]), (memories, [way[1] for way in found])):
            for node, *steps in zip(nodes, *each):
                plain = [trace.plain_of(t, place).reshape(trace.batch, -1, t.shape[1]) for t in steps]
                apart = [t.transpose(1, 2) for t in plain]
                for made in (node, *node.inputs[: node.op == "reshape"]):  # one of them is in the program
                    now = torch.stack(apart, 1).reshape(trace.batch, *made.shape)
                    trace.keep(made, None, partial(_value, now))
        ahead, *back = (torch.stack(way[0], 1) for way in found)
        last = [torch.stack([way[which][-1] for way in found]) for which in range(len(start))]
        return torch.cat([ahead, *(t.flip(1) for t in back)], 2), last


def _value(tensor: Tensor, source: Tensor) -> Tensor:
    return tensor


def _torch_steps(
    kind: str, rows: Tensor, start: list[Tensor], weights: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """The states of one layer in one direction, and the memories of an LSTM."""
    more = (list(weights), len(weights) > 3, 1, 0.0, False, False, True)
    if kind != "lstm":
        return list(getattr(torch, kind)(rows, start[0], *more)[0].unbind(1)), []
    states, memories = [], []
    for step in rows.unbind(1):
        _, *start = torch.lstm(step.unsqueeze(1), start, *more)
        states.append(start[0][0])
        memories.append(start[1][0])
    return states, memories


def _final(trace: Trace, result: Any, input: Tensor, finals: list[list[Node]], ways: int) -> list[Node]:
    """The last states of all layers and directions, (layers, n, channels), one value or two."""
    made = []
    for which, tensor in enumerate(result[1:]):
        trace.follow(tensor, input, 1)
        rows = []
        for last in finals:
            width, _, count = last[which].shape
            apart = reshaped(trace, last[which], (ways, width // ways, count))
            rows.append(permuted(trace, apart, [0, 2, 1]))
        whole = joined(trace, rows, 0)
        plain = (whole.shape[0], whole.shape[2])
        made.append(whole if trace.merged(input) else reshaped(trace, whole, plain))
    return made


def _turned(trace: Trace, node: Node, ways: int) -> Node:
    """The channels of the second direction with their steps in the opposite order."""
    if ways == 1:
        return node
    half = node.shape[0] // 2
    back = sliced(trace, node, 0, half, None)
    back = trace.emit("flip", [back], back.shape, {"axis": 1})
    return joined(trace, [sliced(trace, node, 0, 0, half), back], 0)


def _steps(
    trace: Trace, kind: str, value: Node, ways: list[_Way], start: list[Node | None]
) -> tuple[list[Node], list[Node]]:
    """The state after each step, and the memory of an LSTM.

    Both directions take their steps together, side by side: the second one from the last to the first.
    """
    w_in, w_state, b_in, b_state = (
        np.concatenate([getattr(way, name) for way in ways])
        for name in ("w_in", "w_state", "b_in", "b_state")
    )
    inputs = _turned(trace, _product(trace, value, w_in, b_in, 1), len(ways))
    states: list[Node] = []
    memories: list[Node] = []
    last, memory = start[0], start[-1]
    for t in range(value.shape[1]):
        now = _apart(trace, sliced(trace, inputs, 1, t, t + 1), len(ways))
        past = None
        if last is not None:
            past = _apart(
                trace, _product(trace, _together(trace, last), w_state, b_state, len(ways)), len(ways)
            )
        if kind == "lstm":
            state, memory = _lstm(trace, now, past, memory)
            memories.append(memory)
        elif kind == "gru":
            state = _gru(trace, now, past, last, b_state.reshape(len(ways), -1))
        elif kind == "rnn_tanh":
            state = _tanh(trace, _sum(trace, now, past))
        else:
            whole = _sum(trace, now, past)
            state = trace.emit("relu", [whole], whole.shape)
        flat = _together(trace, state)
        if ways[0].projection is not None:
            projection = np.concatenate([way.projection for way in ways])
            flat = _product(trace, flat, projection, np.zeros(1), len(ways))
        last = _apart(trace, flat, len(ways))
        states.append(flat)
    return states, memories


def _apart(trace: Trace, node: Node, ways: int) -> Node:
    """(ways*channels, 1, sequences) as (ways, channels, sequences): gates are slices of the second axis."""
    return reshaped(trace, node, (ways, node.shape[0] // ways, node.shape[2]))


def _together(trace: Trace, node: Node) -> Node:
    return reshaped(trace, node, (node.shape[0] * node.shape[1], 1, node.shape[2]))


def _product(trace: Trace, node: Node, weight: Array, bias: Array, groups: int) -> Node:
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": groups}
    tensors = {"weight": weight, "bias": bias} if bias.any() else {"weight": weight}
    return trace.emit("conv2d", [node], (len(weight), *node.shape[1:]), attrs, tensors)


def _lstm(trace: Trace, now: Node, past: Node | None, memory: Node | None) -> tuple[Node, Node]:
    put, leave, new, show = _gates(trace, _sum(trace, now, past), 4)
    fresh = _times(trace, _sigmoid(trace, put), _tanh(trace, new))
    if memory is not None:
        fresh = _sum(trace, _times(trace, _sigmoid(trace, leave), memory), fresh)
    return _times(trace, _sigmoid(trace, show), _tanh(trace, fresh)), fresh


def _gru(trace: Trace, now: Node, past: Node | None, state: Node | None, bias: Array) -> Node:
    """`n + z*(h - n)` with `n = tanh(in + r*past)`; before the first step, `past` is its bias alone."""
    reset_in, keep_in, new_in = _gates(trace, now, 3)
    reset_past, keep_past, new_past = _gates(trace, past, 3) if past else (None, None, None)
    reset, keep = _sigmoid(trace, _sum(trace, reset_in, reset_past)), _sum(trace, keep_in, keep_past)
    keep = _sigmoid(trace, keep)
    if new_past is not None:
        product = _times(trace, reset, new_past)
    else:
        value = np.ascontiguousarray(bias[:, 2 * reset.shape[1] :, None])
        constant = trace.emit("constant", [trace.input], value.shape, None, {"value": value})
        attrs = None if value.shape == reset.shape else {"broadcast": True}
        product = trace.emit("mul", [reset, constant], reset.shape, attrs)
    new = _tanh(trace, _sum(trace, new_in, product))
    if state is None:
        return trace.emit("sub", [new, _times(trace, keep, new)], new.shape)
    difference = trace.emit("sub", [state, new], new.shape)
    return _sum(trace, new, _times(trace, keep, difference))


def _gates(trace: Trace, node: Node, count: int) -> list[Node]:
    size = node.shape[1] // count
    return [sliced(trace, node, 1, i * size, (i + 1) * size) for i in range(count)]


def _sum(trace: Trace, first: Node, second: Node | None) -> Node:
    return first if second is None else trace.emit("add", [first, second], first.shape)


def _times(trace: Trace, first: Node, second: Node) -> Node:
    return trace.emit("mul", [first, second], first.shape)


def _sigmoid(trace: Trace, node: Node) -> Node:
    return emit_curve(trace, node, "sigmoid", torch.sigmoid, 1.0)


def _tanh(trace: Trace, node: Node) -> Node:
    return emit_curve(trace, node, "tanh", torch.tanh, 1.0)


FUNCTIONS: dict[str, Handler] = {kind: _recurrent(kind) for kind in _KINDS}
