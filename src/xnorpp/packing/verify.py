"""How exactly a packed model repeats the trained one: a bound for every value, and flipped signs counted.

Rounding differs between the two (a folded batch norm, another order of summation), so a number near zero may
get another sign. `verify` runs both on the same images, in two ways:

**Layer by layer.** Each operation of the program gets the *trained* network's values as its input, so that
nothing but its own rounding can differ, and its result is compared with the trained one. With u = 2**-24 and
`err` the bound of an input that the trained network does not have (K before its product), the bounds are

    convolution, linear of n products   |w|*err + (n + 8)*u*(|w|*|x| + |summands of the bias|)
    affine                              |s*m|*err + 8*u*(|x*s*m| + |summands of the shift|)
    mean of n                           mean(err) + (n + 8)*u*mean|x|,     and so on (`BOUNDS`).

A bit may differ from the trained one only where the trained argument of the sign is within the bound of zero.
`beyond` counts what is not explained so; 0 is the contract.

**End to end.** The program runs on its own; `end_to_end` counts the bits that came out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xnorpp.packing.assemble import assemble
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import Node
from xnorpp.packing.trace import trace_values, unwrap
from xnorpp.runtime import reference
from xnorpp.runtime.format.bits import unpack_bits, unpack_conv_weight
from xnorpp.runtime.format.program import INPUT, Op, Program

F64 = npt.NDArray[np.float64]
U = 2.0**-24


@dataclass(frozen=True)
class LayerCheck:
    """One value of the program: the bits before a binary layer, or the real numbers after a layer."""

    name: str
    op: str
    count: int
    flips: int  # bits that differ though fed the same (0 for real numbers)
    beyond: int  # differences that the rounding bound does not explain
    error: (
        float  # the largest difference, real numbers; bits: the largest trained |argument| of a flipped one
    )
    bound: float  # the median bound
    end_to_end: int  # bits that differ when the packed program runs on its own


@dataclass(frozen=True)
class Verification:
    """What `verify` found. `holds` is the contract: rounding explains every difference."""

    layers: tuple[LayerCheck, ...]
    bits: int
    flips: int  # end to end
    same_class: float  # end to end, the share of equal classes
    output_error: float  # end to end, the largest difference of an output

    @property
    def holds(self) -> bool:
        return not any(layer.beyond for layer in self.layers)


def verify(model: nn.Module, x: npt.NDArray[np.float32], *, half: bool = False) -> Verification:
    """Compare a model with its packed program, layer by layer and end to end.

    Args:
        model: The trained model.
        x: Normalised images, `(n, c, h, w)`, or vectors, `(n, c)`.
        half: Whether the program stores real-valued weights in 16 bits, as in `pack`.

    Returns:
        A `Verification`; its `holds` is the contract.

    Raises:
        PackError: If the model cannot be packed.
    """
    if x.ndim not in (2, 4) or not len(x):
        raise ValueError(f"`x` has shape {tuple(x.shape)}; at least one image, (n, c, h, w), is needed")
    model = unwrap(model)
    shape = tuple(x.shape[1:])
    traced, tensors = trace_values(model, torch.from_numpy(np.ascontiguousarray(x)))
    first = next(iter(traced.values()))
    program, nodes = assemble(fold(traced), shape, half=half)
    trained = {serial: tensor.float().cpu().numpy() for serial, tensor in tensors.items()}
    output, free = reference.run(program, x, keep=[op.output for op in program.ops if op.op == "sign"])
    values: dict[str, Any] = {INPUT: trained[0]}
    errors: dict[str, F64] = {INPUT: np.zeros(x.shape)}
    layers = []
    for op in program.ops:
        node, inputs = nodes[op.output], [values[name] for name in op.inputs]
        with np.errstate(all="ignore"):
            result = reference.apply(program, op, *inputs)
            bound = BOUNDS[op.op](program, op, node, inputs, [errors[name] for name in op.inputs], result)
        values[op.output], errors[op.output] = result, bound
        if node.argument in trained:
            argument = trained[node.argument]
            signs = np.where(argument > 0, np.int8(1), np.int8(-1))
            layers.append(_check_bits(op, result, signs, argument, bound, free[op.output]))
            values[op.output], errors[op.output] = signs, np.zeros(signs.shape)
        elif node.serial in trained and result.dtype == np.float32:
            layers.append(_check_real(op, result, trained[node.serial], bound))
            values[op.output], errors[op.output] = trained[node.serial], np.zeros(result.shape)
    goal = trained[first.serial].reshape(len(x), -1)
    mine = (output[program.output_name] if isinstance(output, dict) else output).reshape(len(x), -1)
    return Verification(
        tuple(layers),
        sum(layer.count for layer in layers if layer.op == "sign"),
        sum(layer.end_to_end for layer in layers),
        float(np.mean(goal.argmax(1) == mine.argmax(1))),
        float(np.abs(goal - mine).max()),
    )


def _check_bits(op: Op, mine: Any, signs: Any, argument: Any, bound: F64, free: Any) -> LayerCheck:
    flipped = mine != signs
    distance = np.abs(argument[flipped])
    return LayerCheck(
        op.name,
        op.op,
        signs.size,
        int(flipped.sum()),
        int((distance > bound[flipped]).sum()),
        float(distance.max(initial=0.0)),
        float(np.median(bound)),
        int((free != signs).sum()),
    )


def _check_real(op: Op, mine: Any, goal: Any, bound: F64) -> LayerCheck:
    with np.errstate(invalid="ignore"):  # inf - inf, where both agree
        error = np.abs(mine.astype(np.float64) - goal)
    same = (mine == goal) | (np.isnan(mine) & np.isnan(goal))
    beyond = int((~same & ~(error <= bound)).sum())
    largest = float(np.where(same, 0.0, error).max())
    return LayerCheck(op.name, op.op, goal.size, 0, beyond, largest, float(np.median(bound)), 0)


Bound = Callable[[Program, Op, Node, Sequence[Any], Sequence[F64], Any], F64]


def _magnitude(program: Program, op: Op, node: Node, ndim: int) -> Any:
    """How large the summands of a node's shift are in all, to broadcast; at least the shift itself."""
    shift = next((t for t in (program.real(op, "add"), program.real(op, "bias")) if t is not None), None)
    size = np.zeros(1) if node.size is None else node.size
    return reference.per_channel(np.maximum(size, np.zeros(1) if shift is None else np.abs(shift)), ndim)


def _weight(program: Program, op: Op, channels: int) -> Any:
    stored = program.tensors[op.tensors["weight"]]
    if not program.is_packed(op):
        return np.abs(stored.astype(np.float64))
    if stored.ndim == 2:
        return np.abs(unpack_bits(stored, channels)).astype(np.float64)
    return np.abs(unpack_conv_weight(stored, channels // op.attrs["groups"])).astype(np.float64)


def _filter(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    weight = _weight(program, op, x[0].shape[1])
    taps = weight[0].size

    def through(v: Any) -> Any:
        if weight.ndim == 2:
            return v @ weight.T
        return reference.convolve(op, v.astype(np.float32), weight, 0).astype(np.float64)

    rounding = (taps + 8) * U * (through(np.abs(x[0])) + _magnitude(program, op, node, y.ndim))
    return np.asarray(through(e[0]) * 1.001 + rounding)


def _affine(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    spatial, mult = reference.spatial_factor(program, op), program.real(op, "mult")
    gain = np.float64(1) if mult is None else reference.per_channel(np.abs(mult).astype(np.float64), y.ndim)
    if spatial is not None:
        gain = gain * np.abs(spatial)
    shift = _magnitude(program, op, node, y.ndim)
    return np.asarray(gain * e[0] + 8 * U * (gain * np.abs(x[0]) + shift))


def _sign(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """In units of the trained argument of the sign: what the folded chain makes of the error of its input."""
    spatial = reference.spatial_factor(program, op)
    gain = np.ones(1) if node.gain is None else node.gain
    factor = reference.per_channel(np.asarray(gain, np.float64), y.ndim)
    if spatial is not None:
        factor = factor * np.abs(spatial)
    return np.asarray(
        factor * e[0] + 16 * U * (factor * np.abs(x[0]) + _magnitude(program, op, node, y.ndim))
    )


def _exact(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.zeros(y.shape)


def _activation(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    slope = program.real(op, "slope")
    gain = 1.0 if slope is None else np.maximum(1.0, reference.per_channel(np.abs(slope), y.ndim))
    return np.asarray(gain * e[0] + 2 * U * np.abs(y))


def _add(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.asarray(e[0] + e[1] + 2 * U * np.abs(y))


def _mul(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    return np.asarray(np.abs(x[0]) * e[1] + np.abs(x[1]) * e[0] + e[0] * e[1] + 4 * U * np.abs(y))


def _carried(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """Moved or picked numbers: the error goes the same way; the numbers of a padding have none."""
    if op.op == "pad2d":
        op = Op(op.op, op.name, op.inputs, op.output, {**op.attrs, "value": 0.0})
    return np.asarray(reference.apply(program, op, e[0].astype(np.float32)) * np.float64(1.001))


def _mean(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    kernel = op.attrs.get("kernel")
    count = x[0][0].size if kernel is None else kernel[0] * kernel[1]
    magnitude = reference.apply(program, op, np.abs(x[0]))
    return np.asarray(_carried(program, op, node, x, e, y) + (count + 8) * U * magnitude.astype(np.float64))


def _softmax(program: Program, op: Op, node: Node, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    worst = e[0].max(axis=1, keepdims=True)
    return np.asarray(y * np.expm1(2 * worst) + 32 * U)


BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("conv2d", "linear", "bitweight_conv2d", "bitweight_linear"), _filter),
    **dict.fromkeys(("binary_conv2d", "binary_linear", "signs"), _exact),
    **dict.fromkeys(("relu", "prelu", "hardtanh"), _activation),
    **dict.fromkeys(("max_pool2d", "flatten", "pad2d"), _carried),
    **dict.fromkeys(("avg_pool2d", "global_avg_pool", "abs_mean", "box_filter"), _mean),
    "affine": _affine,
    "sign": _sign,
    "add": _add,
    "mul": _mul,
    "softmax": _softmax,
}
