"""Recurrent layers over sequences of a fixed length, step by step: no operation of their own.

What a layer makes of its input is one product for all steps; each step then adds the product with the last
state, and its gates are slices of the sum. The weights are stored once, however many steps there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from xnorpp.packing.graph import Array, Node
from xnorpp.packing.moves.views import joined, permuted, reshaped, sliced
from xnorpp.packing.operations.activation import emit_curve
from xnorpp.packing.operations.arguments import Handler, affine
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
        _check_start(trace, hx)
        if training and dropout and layers > 1:
            raise trace.fail("with dropout is active in evaluation too", "call model.eval()")
        if trace.batch_axis(input) != (0 if batch_first else 1):
            raise trace.fail("takes the batch for the steps", "set `batch_first` as the axes are")
        given = [trace.constant(w) for w in weights]
        each = len(given) // (layers * (1 + both))
        if each != (4 if biased else 2):
            raise trace.fail("with a projection is not supported", "leave `proj_size` at 0")
        value = _sequence(trace, input, batch_first)
        if value.shape[1] * layers * (1 + both) > _MOST:
            raise trace.fail(
                f"takes {value.shape[1] * layers * (1 + both)} steps; {_MOST} are supported",
                "shorten the sequence, by a strided convolution for example",
            )
        finals: list[list[Node]] = []
        for layer in range(layers):
            ways = []
            for way in range(1 + both):
                at = each * (layer * (1 + both) + way)
                states, last = _steps(trace, kind, value, given[at : at + each], backwards=bool(way))
                if layer == layers - 1:
                    _keep(trace, states, result[0], way, batch_first)
                ways.append(joined(trace, states, 1))
                finals.append(last)
            value = joined(trace, ways, 0)
        return [_output(trace, result[0], input, value, batch_first), *_final(trace, result, input, finals)]

    return handler


def _check_start(trace: Trace, hx: Any) -> None:
    for state in hx if isinstance(hx, list | tuple) else [hx]:
        if trace.is_value(state) or trace.constant(state).any():
            raise trace.fail("that starts from a given state is not supported", "start from zeros")


def _sequence(trace: Trace, input: Tensor, batch_first: bool) -> Node:
    """A batch of sequences as an image, (channels, steps, sequences of one image)."""
    node = trace.node(input, anywhere=True)
    if not trace.merged(input):
        node = reshaped(trace, node, (1, *node.shape) if batch_first else (node.shape[0], 1, node.shape[1]))
    return permuted(trace, node, [2, 1, 0] if batch_first else [2, 0, 1])


def _output(trace: Trace, result: Tensor, input: Tensor, value: Node, batch_first: bool) -> Node:
    made = permuted(trace, value, [2, 1, 0] if batch_first else [1, 2, 0])
    trace.set_batch_axis(result, trace.batch_axis(input))
    trace.set_merged(result, trace.merged(input))
    if trace.merged(input):
        return made
    return reshaped(trace, made, (value.shape[1], value.shape[0]))


def _keep(trace: Trace, states: list[Node], result: Tensor, way: int, batch_first: bool) -> None:
    """The states of the last layer are in the output: `verify` compares each with it."""
    channels, _, count = states[0].shape
    for t, state in enumerate(states):

        def move(_: Tensor, t: int = t) -> Tensor:
            rows = result if batch_first else result.transpose(0, 1)
            apart = rows.reshape(trace.batch, count, len(states), -1).permute(0, 3, 2, 1)
            return apart[:, way * channels : (way + 1) * channels, t : t + 1]

        trace.keep(state, None, move)


def _final(trace: Trace, result: Any, input: Tensor, finals: list[list[Node]]) -> list[Node]:
    """The last states of all layers and directions, (layers, n, channels), one value or two."""
    made = []
    for which, tensor in enumerate(result[1:]):
        trace.set_batch_axis(tensor, 1)
        trace.set_merged(tensor, trace.merged(input))
        rows = [permuted(trace, last[which], [1, 2, 0]) for last in finals]
        whole = joined(trace, rows, 0)
        plain = (whole.shape[0], whole.shape[2])
        made.append(whole if trace.merged(input) else reshaped(trace, whole, plain))
    return made


def _steps(
    trace: Trace, kind: str, value: Node, weights: list[Array], backwards: bool
) -> tuple[list[Node], list[Node]]:
    """The state after each step, in the order of the sequence, and the last state with its memory."""
    w_in, w_state = (w[:, :, None, None] for w in weights[:2])
    b_in, b_state = weights[2:] if len(weights) == 4 else [np.zeros(len(w), np.float32) for w in weights]
    own = 2 * len(b_in) // 3 if kind == "gru" else len(b_in)  # those that the sum of both products has
    b_in = b_in + np.where(np.arange(len(b_in)) < own, b_state, 0).astype(np.float32)
    b_state = np.where(np.arange(len(b_in)) < own, 0, b_state).astype(np.float32)
    inputs = _product(trace, value, w_in, b_in)
    count = value.shape[1]
    states: list[Node | None] = [None] * count
    state: Node | None = None
    memory: Node | None = None
    for t in reversed(range(count)) if backwards else range(count):
        now = sliced(trace, inputs, 1, t, t + 1)
        past = None if state is None else _product(trace, state, w_state, b_state)
        if kind == "lstm":
            state, memory = _lstm(trace, now, past, memory)
        elif kind == "gru":
            state = _gru(trace, now, past, state, b_state)
        else:
            whole = _sum(trace, now, past)
            if kind == "rnn_tanh":
                state = _tanh(trace, whole)
            else:
                state = trace.emit("relu", [whole], whole.shape)
        states[t] = state
    assert state is not None
    return [s for s in states if s is not None], [state] if memory is None else [state, memory]


def _product(trace: Trace, node: Node, weight: Array, bias: Array) -> Node:
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    tensors = {"weight": weight, "bias": bias} if bias.any() else {"weight": weight}
    return trace.emit("conv2d", [node], (len(weight), *node.shape[1:]), attrs, tensors)


def _lstm(trace: Trace, now: Node, past: Node | None, memory: Node | None) -> tuple[Node, Node]:
    put, leave, new, show = _gates(trace, _sum(trace, now, past), 4)
    fresh = _times(trace, _sigmoid(trace, put), _tanh(trace, new))
    if memory is not None:
        fresh = _sum(trace, _times(trace, _sigmoid(trace, leave), memory), fresh)
    return _times(trace, _sigmoid(trace, show), _tanh(trace, fresh)), fresh


def _gru(trace: Trace, now: Node, past: Node | None, state: Node | None, b_state: Array) -> Node:
    """`n + z*(h - n)` with `n = tanh(in + r*past)`; before the first step, `past` is its bias alone."""
    size = now.shape[0] // 3
    both = _sum(trace, sliced(trace, now, 0, 0, 2 * size), past and sliced(trace, past, 0, 0, 2 * size))
    reset, keep = (_sigmoid(trace, gate) for gate in _gates(trace, both, 2))
    if past is None:
        product = affine(trace, reset, b_state[2 * size :], None)
    else:
        product = _times(trace, reset, sliced(trace, past, 0, 2 * size, None))
    new = _tanh(trace, _sum(trace, sliced(trace, now, 0, 2 * size, None), product))
    if state is None:
        share = _times(trace, keep, new)
        return trace.emit("sub", [new, share], new.shape)
    difference = trace.emit("sub", [state, new], new.shape)
    return _sum(trace, new, _times(trace, keep, difference))


def _gates(trace: Trace, node: Node, count: int) -> list[Node]:
    size = node.shape[0] // count
    return [sliced(trace, node, 0, i * size, (i + 1) * size) for i in range(count)]


def _sum(trace: Trace, first: Node, second: Node | None) -> Node:
    return first if second is None else trace.emit("add", [first, second], first.shape)


def _times(trace: Trace, first: Node, second: Node) -> Node:
    return trace.emit("mul", [first, second], first.shape)


def _sigmoid(trace: Trace, node: Node) -> Node:
    return emit_curve(trace, node, "sigmoid", torch.sigmoid, 1.0)


def _tanh(trace: Trace, node: Node) -> Node:
    return emit_curve(trace, node, "tanh", torch.tanh, 1.0)


FUNCTIONS: dict[str, Handler] = {kind: _recurrent(kind) for kind in _KINDS}
