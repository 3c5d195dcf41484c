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
            at = each * layer * (1 + both)
            ways = [given[at + each * way : at + each * (way + 1)] for way in range(1 + both)]
            states, last = _steps(trace, kind, value, ways)
            if layer == layers - 1:
                _keep(trace, states, input, result[0], len(ways), batch_first)
            value = _turned(trace, joined(trace, states, 1), len(ways))
            finals.append(last)
        return [
            _output(trace, result[0], input, value, batch_first),
            *_final(trace, result, input, finals, 1 + both),
        ]

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
    trace.follow(result, input)
    if trace.merged(input):
        return made
    return reshaped(trace, made, (value.shape[1], value.shape[0]))


def _keep(
    trace: Trace, states: list[Node], input: Tensor, result: Tensor, ways: int, batch_first: bool
) -> None:
    """The states of the last layer are in the output: `verify` compares each with it."""
    for t, state in enumerate(states):

        def move(_: Tensor, t: int = t, count: int = state.shape[2]) -> Tensor:
            apart = trace.plain_of(result, trace.place(input))
            apart = apart if batch_first else apart.movedim(0, -2)
            apart = apart.reshape(trace.batch, count, len(states), -1).permute(0, 3, 2, 1)
            first, *second = apart.chunk(ways, 1)
            return torch.cat([first[:, :, t, None], *(part.flip(2)[:, :, t, None] for part in second)], 1)

        trace.keep(state, None, move)


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


def _steps(trace: Trace, kind: str, value: Node, ways: list[list[Array]]) -> tuple[list[Node], list[Node]]:
    """The state after each step, and the last one with its memory.

    Both directions take their steps together, side by side: the second one from the last to the first.
    """
    parts = [_biased(kind, weights) for weights in ways]
    w_in, w_state, b_in, b_state = (np.concatenate(part) for part in zip(*parts))
    inputs = _turned(trace, _product(trace, value, w_in, b_in, 1), len(ways))
    states: list[Node] = []
    memory: Node | None = None
    for t in range(value.shape[1]):
        now = _apart(trace, sliced(trace, inputs, 1, t, t + 1), len(ways))
        past = None
        if states:
            past = _apart(trace, _product(trace, states[-1], w_state, b_state, len(ways)), len(ways))
        if kind == "lstm":
            state, memory = _lstm(trace, now, past, memory)
        elif kind == "gru":
            last = _apart(trace, states[-1], len(ways)) if states else None
            state = _gru(trace, now, past, last, b_state.reshape(len(ways), -1))
        elif kind == "rnn_tanh":
            state = _tanh(trace, _sum(trace, now, past))
        else:
            whole = _sum(trace, now, past)
            state = trace.emit("relu", [whole], whole.shape)
        states.append(_together(trace, state))
    return states, [states[-1]] if memory is None else [states[-1], _together(trace, memory)]


def _biased(kind: str, weights: list[Array]) -> tuple[Array, Array, Array, Array]:
    """Both weights as filters, and both biases: one alone, except where a gate comes between them."""
    w_in, w_state = (w[:, :, None, None] for w in weights[:2])
    b_in, b_state = weights[2:] if len(weights) == 4 else [np.zeros(len(w), np.float32) for w in weights]
    own = np.arange(len(b_in)) < (2 * len(b_in) // 3 if kind == "gru" else len(b_in))
    return w_in, w_state, (b_in + b_state * own).astype(np.float32), (b_state * ~own).astype(np.float32)


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
