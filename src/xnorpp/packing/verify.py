"""How exactly a packed model repeats the trained one: a bound for every value, and flipped signs counted.

Rounding differs between the two (a folded batch norm, another order of summation), so a number near zero may
get another sign. `verify` runs both on the same images, in two ways:

**Layer by layer.** Each operation of the program gets the *trained* network's values as its input, so that
nothing but its own rounding can differ, and its result is compared with the trained one. With u = 2**-24 and
`err` the bound of an input that the trained network does not have (K before its product), the bounds are

    convolution, linear of n products   |w|*err + (n + 8)*u*(|w|*|x| + |summands of the bias|)
    affine                              |s*m|*err + 8*u*(|x*s*m| + |summands of the shift|)
    mean of n                           mean(err) + (n + 8)*u*mean|x|,     and so on (`runtime/reference`).

Where packing has a value for what the trained network writes in another way, as q for `(q - x) + x`, the
difference of the two in the trained network counts as an error that comes in; it must be that of rounding.
A bit may differ from the trained one only where the trained argument of the sign is within the bound of zero.
`beyond` counts what is not explained so; 0 is the contract.

**End to end.** The program runs on its own; `end_to_end` counts the bits that came out otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from xnorpp.packing.assemble import assemble
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import Node
from xnorpp.packing.operations.arguments import FAR
from xnorpp.packing.record import trace_values, unwrap
from xnorpp.packing.runs.failing import failures_of
from xnorpp.packing.storage import check_real
from xnorpp.packing.storage.recorded import check_module
from xnorpp.runtime import reference
from xnorpp.runtime.format.program import INPUT, Op
from xnorpp.runtime.reference.rows import F64

_ROUNDED = 1e-3  # of the largest value: `(q - x) + x` is not exactly q, and as far off as x is large


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
    """What `verify` found. `holds` is the contract: rounding explains every difference.

    Example:
        >>> import numpy as np
        >>> from xnorpp.models import create_model
        >>> from xnorpp.packing import verify
        >>> result = verify(create_model("small", input_size=8), np.zeros((2, 3, 8, 8), np.float32))
        >>> result.holds, result.same_class
        (True, 1.0)
        >>> str(result).splitlines()[0]
        'holds: rounding explains every difference in 38 operations'
    """

    layers: tuple[LayerCheck, ...]
    bits: int
    flips: int  # end to end
    same_class: float  # end to end, the share of equal classes
    output_error: float  # end to end, the largest difference of an output

    @property
    def holds(self) -> bool:
        return not any(layer.beyond for layer in self.layers)

    def __str__(self) -> str:
        broken = [layer for layer in self.layers if layer.beyond]
        lines = [f"holds: rounding explains every difference in {len(self.layers)} operations"]
        if broken:
            lines = [
                f"does not hold: rounding does not explain {len(broken)} of {len(self.layers)} operations"
            ]
        for layer in broken:
            counts = f"{layer.beyond:,} of {layer.count:,}"
            lines.append(f"  {layer.name} ({layer.op}): {counts} numbers are beyond the bound")
        lines.append(
            f"end to end: {self.flips:,} of {self.bits:,} signs differ, the same class for "
            f"{100 * self.same_class:.2f} % of the inputs, largest difference of an output "
            f"{self.output_error:.1e}"
        )
        return "\n".join(lines)


def verify(model: nn.Module, x: Any, *, half: bool = False, real: str | None = None) -> Verification:
    """Compare a model with its packed program, layer by layer and end to end.

    Args:
        model: The trained model.
        x: Normalised images, `(n, c, h, w)`, sequences, `(n, c, length)`, or vectors, `(n, c)`, as an
            array or a tensor on the CPU; a tuple of them for a model that takes several inputs.
        half: Whether the program stores real-valued weights in 16 bits, as in `pack`.
        real: How the program stores real numbers, as in `pack`.

    Returns:
        A `Verification`; its `holds` is the contract, and printing it shows a summary.

    Raises:
        PackError: If the model cannot be packed.

    Example:
        >>> import numpy as np
        >>> from xnorpp.models import create_model
        >>> from xnorpp.packing import verify
        >>> x = np.random.default_rng(0).standard_normal((2, 3, 8, 8), np.float32)
        >>> verify(create_model("small", input_size=8), x).holds
        True
    """
    given = [np.asarray(part) for part in (x if isinstance(x, tuple) else (x,))]
    if any(part.dtype.kind not in "fiub" for part in given):
        raise ValueError(f"`x` is {type(x).__name__} of {given[0].dtype}; arrays of numbers are needed")
    given = [np.array(part, part.dtype if part.dtype.kind in "iub" else np.float32) for part in given]
    if given[0].ndim < 2 - (len(given) > 1) or not len(given[0]):
        raise ValueError(f"`x` has shape {given[0].shape}; a batch of at least one input is needed")
    check_module(model)
    model = unwrap(model)
    images = [torch.from_numpy(part) for part in given]
    with failures_of(model, images, images, "x"):
        traced, tensors = trace_values(model, *images)
    program, nodes = assemble(fold(traced), traced.shape, real=check_real(real, half))
    trained = {serial: tensor.float().cpu().numpy() for serial, tensor in tensors.items()}
    rounded = {serial: tensor.cpu().numpy() for serial, tensor in traced.rounded.items()}
    x = np.ascontiguousarray(trained[0])
    output, free = reference.run(program, x, keep=[op.output for op in program.ops if op.op == "sign"])
    values: dict[str, Any] = {INPUT: trained[0]}
    errors: dict[str, F64] = {INPUT: np.zeros(x.shape)}
    layers = []
    for op in program.ops:
        node, inputs = nodes[op.output], [values[name] for name in op.inputs]
        with np.errstate(all="ignore"):
            result = reference.apply(program, op, *inputs)
            bound = reference.ROWS[op.op].bound(
                program, op, node, inputs, [errors[name] for name in op.inputs], result
            )
        values[op.output], errors[op.output] = result, bound
        if (argument := trained_argument(node, trained)) is not None:
            signs = np.where(argument > 0, np.int8(1), np.int8(-1))
            layers.append(_check_bits(op, result, signs, argument, bound, free[op.output]))
            values[op.output], errors[op.output] = signs, np.zeros(signs.shape)
        elif op.op == "sign":  # of a value that the trained network does not have: a bit, not its argument
            near = reference.sign_distance(program, op, node, inputs[0]) < bound
            errors[op.output] = np.where(near, 2.0, 0.0)
        elif (goal := trained_value(node, trained)) is not None and result.dtype == np.float32:
            off = trained_value(node, rounded)
            off = np.zeros(result.shape) if off is None else off
            layers.append(_check_real(op, result, goal, bound, off))
            finite = np.where(np.isinf(goal), result, goal)  # no bound follows from an infinite number
            values[op.output], errors[op.output] = finite, off
    outputs = output if isinstance(output, dict) else {program.output_name: output}
    pairs = [
        (trained[node.serial].reshape(len(x), -1), outputs[name].reshape(len(x), -1))
        for name, node in traced.items()
    ]
    goal, mine = pairs[0]
    return Verification(
        tuple(layers),
        sum(layer.count for layer in layers if layer.op == "sign"),
        sum(layer.end_to_end for layer in layers),
        float(np.mean(goal.argmax(1) == mine.argmax(1))),
        max(float(np.abs(goal - mine).max()) for goal, mine in pairs),
    )


def trained_value(node: Node, trained: dict[int, Any]) -> Any:
    """The trained value of a node, its axes moved as the program has them, or None where there is none."""
    serial, steps = node.turned or (node.serial, ())
    return _turned(trained[serial], steps) if serial in trained else None


def trained_argument(node: Node, trained: dict[int, Any]) -> Any:
    """The same of what a sign is taken of; None of another operation."""
    _, steps = node.turned or (node.serial, ())
    return _turned(trained[node.argument], steps) if node.argument in trained else None


def _turned(value: Any, steps: Any) -> Any:
    for op, places in steps:
        value = (
            value.transpose(0, *(i + 1 for i in places)) if op == "permute" else value.reshape(-1, *places)
        )
    return value


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


def _check_real(op: Op, mine: Any, goal: Any, bound: F64, off: F64) -> LayerCheck:
    """`off`: how far the trained network is from its own value where that is written another way."""
    with np.errstate(invalid="ignore"):  # inf - inf, where both agree
        error = np.abs(mine.astype(np.float64) - goal)
    same = (mine == goal) | (np.isnan(mine) & np.isnan(goal))
    same |= np.isinf(goal) & (mine * np.sign(goal) >= FAR)  # an infinite number of a mask is a large one
    close = off <= _ROUNDED * np.nanmax(np.abs(goal), initial=1.0)
    beyond = int(((~same & ~(error <= bound)) | ~close).sum())
    largest = float(np.where(same, 0.0, error).max())
    return LayerCheck(op.name, op.op, goal.size, 0, beyond, largest, float(np.median(bound)), 0)
