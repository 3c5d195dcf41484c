"""Whether a packed model takes images of any height and width: it is traced at other sizes and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from xnorpp.packing.assemble import assemble
from xnorpp.packing.example import channels_are_last
from xnorpp.packing.fold import folded, moved
from xnorpp.packing.graph import Node
from xnorpp.packing.moves.alike import FREE, Alike, Unlike
from xnorpp.packing.moves.rules import Bound, explained
from xnorpp.packing.record import trace
from xnorpp.runtime.format.program import Program, ProgramError

Size = tuple[int, int]

# Added to height and width: the first keeps what is left after strides of up to 32, and must run; at the
# others, where a stride may leave a pixel over, the model may be unable to run.
_MORE = ((32, 64), (1, 3), (6, 5))
# Where rows and columns follow from other values: added to the next multiple of 128, so that a division by a
# power of two leaves nothing, one pixel, or all but one over, and many other rests.
_FURTHER = ((-1, 0), (0, 1), (1, -1), (14, 12), (18, 11), (5, 6))


def free_graph(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, Node], str]:
    """The folded graph of a model that is the same at every height and width, and why there is none.

    A program has no sizes of its own besides attributes and constants: where two sizes give the same
    operations with the same attributes and constants, the program is right for both. Attributes that are
    rows and columns may be rules of another value's size instead (`rules.py`).
    """
    last = channels_are_last(inputs[0])
    count, channels, height, width = (inputs[0].movedim(3, 1) if last else inputs[0]).shape
    traced = trace(model, *inputs, any_size=True)
    alike = Alike(moved(traced, apart=True))
    tried: list[Size] = [(height, width)]
    unlike: dict[Size, Unlike] = {}
    sizes = [(height + more[0], width + more[1]) for more in _MORE]
    sizes += _long(height, width)
    always = len(sizes)
    rounded = (-(height // -128) * 128, -(width // -128) * 128)
    for number in range(always + len(_FURTHER) + 1):
        if number == always:
            if all(row.node.op not in FREE or row.same_everywhere() for row in alike.rows):
                break
            sizes += [(rounded[0] + more[0], rounded[1] + more[1]) for more in _FURTHER]
            sizes.append((-(height * 5 // -8), -(width * 5 // -8)))  # a smaller one: max(h, 224) is no rule
        other = sizes[number]
        shape = (count, *other, channels) if last else (count, channels, *other)
        zeros = torch.zeros(shape, dtype=inputs[0].dtype)
        try:
            other_size = trace(model, zeros, *inputs[1:], any_size=True, signs=traced.signs)
            alike.add(moved(other_size, apart=True))
            tried.append(other)
        except Unlike as error:
            if not number:
                return {}, f"{error} is bound to {height}x{width} pixels"
            unlike[other] = error
        except Exception as error:  # whatever the user's model raises where it cannot run
            if not number:
                reason = str(error).partition("\n")[0]
                return {}, f"the model does not run on {other[0]}x{other[1]} pixels: {reason}"
    try:
        outputs, rows = explained(alike)
        program, nodes = assemble(outputs, (channels, height, width), free_axes=(1, 2))
    except (Bound, ProgramError) as error:  # a constant map of a value whose size is no longer the input's
        return {}, str(error)
    named = [(name, rows[id(node)]) for name, node in nodes.items() if id(node) in rows]
    for graph, other in enumerate(tried):
        found = _shapes(program, other)  # None: where it takes no such image, it cannot be wrong
        if found is not None and any(found[name] != row.shape(graph) for name, row in named):
            return {}, f"the model has other sizes at {other[0]}x{other[1]} pixels than at {height}x{width}"
    for other, difference in unlike.items():
        if _shapes(program, other) is not None:
            return {}, f"{difference} is bound to {height}x{width} pixels"
    return folded(outputs), ""


def _long(height: int, width: int) -> list[Size]:
    """A high and a wide size with as many pixels as others that are traced.

    One side is smaller than the example's and one much larger: `min(h, 160)` or `if h < 200` is noticed.
    """
    pixels = max((height + 32) * (width + 64), 20_000)
    longest = max(4 * height, 4 * width, 250)  # what compares rows with rows takes the square of that
    low, narrow = (max(min(side, 80), -(side * 3 // -8)) for side in (height, width))
    return [(min(pixels // narrow, longest), narrow), (low, min(pixels // low, longest))]


def _shapes(program: Program, size: Size) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the values that a program makes of images of a size; None where it takes none."""
    try:
        sized = program.for_input((program.input_shape[0], *size))
    except ProgramError:
        return None
    return {op.output: sized.values[op.output].shape for op in sized.ops}


def is_dense(outputs: Mapping[str, Node]) -> bool:
    """Whether an output has rows and columns."""
    return any(len(node.shape) == 3 and node.shape[1:] != (1, 1) for node in outputs.values())
