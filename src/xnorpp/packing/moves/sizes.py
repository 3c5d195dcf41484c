"""Whether a packed model takes images of any height and width: it is traced at other sizes and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.packing.assemble import assemble
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import Node, PackError, fingerprint, order
from xnorpp.packing.record import trace
from xnorpp.runtime.format.program import ProgramError

# Added to height and width: the first keeps what is left after strides of up to 32, and must run; at the
# others, where a stride may leave a pixel over, the model may be unable to run.
_MORE = ((32, 64), (1, 3), (6, 5))


def free_graph(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, Node], str]:
    """The folded graph of a model that is the same at every height and width, and why there is none.

    A program has no sizes of its own besides attributes and constants: where two sizes give the same
    operations with the same attributes and constants, the program is right for both.
    """
    size = tuple(inputs[0].shape[-2:])
    outputs = fold(trace(model, *inputs, any_size=True))
    goal = _described(outputs)
    for more in _MORE:
        other = (size[0] + more[0], size[1] + more[1])
        zeros = torch.zeros((*inputs[0].shape[:-2], *other), dtype=inputs[0].dtype)
        try:
            found = _described(fold(trace(model, zeros, *inputs[1:], any_size=True)))
        except (PackError, RuntimeError, ValueError, AssertionError) as error:
            if more != _MORE[0]:
                continue
            reason = str(error).partition("\n")[0]
            return {}, f"the model does not run on {other[0]}x{other[1]} pixels: {reason}"
        different = next((mine for mine, theirs in zip(goal, found) if mine != theirs), None)
        if different is not None and (more == _MORE[0] or _runs(outputs, inputs[0], other)):
            return {}, f"{different[0]} ({different[1]}) is bound to {size[0]}x{size[1]} pixels"
    try:
        assemble(outputs, tuple(inputs[0].shape[1:]), free_axes=(1, 2))
    except ProgramError as error:  # a constant map of a value whose size is no longer the input's
        return {}, str(error)
    return outputs, ""


def _runs(outputs: Mapping[str, Node], x: Tensor, size: tuple[int, int]) -> bool:
    """Whether the program of a graph takes images of a size: where it does not, it cannot be wrong there."""
    shape = tuple(x.shape[1:])
    program, _ = assemble(outputs, shape, free_axes=(1, 2))
    try:
        program.for_input((shape[0], *size))
    except ProgramError:
        return False
    return True


def is_dense(outputs: Mapping[str, Node]) -> bool:
    """Whether an output has rows and columns."""
    return any(len(node.shape) == 3 and node.shape[1:] != (1, 1) for node in outputs.values())


def _described(outputs: Mapping[str, Node]) -> list[tuple[Any, ...]]:
    """All that a program would state, node by node."""
    nodes = order(*outputs.values())
    places = {id(node): i for i, node in enumerate(nodes)}
    rows: list[tuple[Any, ...]] = []
    for node in nodes:
        tensors = sorted((role, fingerprint(tensor)) for role, tensor in node.tensors.items())
        sources = [places[id(source)] for source in node.inputs]
        rows.append((node.op, node.path, sources, sorted(node.attrs.items(), key=str), tensors))
    rows.append((f"{len(nodes)} operations", "", [places[id(node)] for node in outputs.values()], [], []))
    return rows
