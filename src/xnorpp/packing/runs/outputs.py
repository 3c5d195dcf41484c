"""The end of a trace: what the model returned, and which obstacles are in its way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from xnorpp.packing.calls import named_outputs
from xnorpp.packing.graph import order
from xnorpp.packing.moves.places import COUNTED
from xnorpp.packing.trace import CHANGED, CLONE, FIRST_RESULT, Trace


def finish(trace: Trace, result: Any) -> None:
    """Sets `outputs`; leaves them empty, with an obstacle, where they cannot be those of a program."""
    tensors = named_outputs(result)
    if not tensors:
        kind = type(result).__name__
        remedy = "return a tensor, or a tuple, dict or dataclass of tensors"
        trace.report("", "forward", f"returns {kind}, which contains no tensor", remedy)
    if any(id(t) in trace.stale for t in tensors.values()) or trace.any_changed(tensors.values()):
        trace.report("", "forward", "returns" + CHANGED, CLONE)
    _leave_unneeded_out(trace, tensors.values())
    outputs = {name: trace.nodes[id(t)] for name, t in tensors.items() if id(t) in trace.nodes}
    for name, t in tensors.items():
        if id(t) in trace.left_out:
            reason = f"returns {name!r}, a result of {trace.left_out[id(t)]} that is not packed"
            trace.report("", "forward", reason, FIRST_RESULT)
        elif id(t) in trace.nodes and (trace.batch_axis(t) or trace.merged(t) > 1):
            reason = f"returns {name!r}, whose first axis is not the batch"
            ahead = "y.movedim(1, 0)" if trace.batch_axis(t) == 1 else "the batch axis first"
            trace.report("", "forward", reason, f"return {ahead}, with each image to itself")
        if t in trace.masked:
            trace.obstacles.append(trace.masked.obstacle(t))
        if trace.step(t):
            trace.report("", "forward", f"returns {name!r}, whose numbers count through the batch", COUNTED)
        if t.is_complex():
            remedy = "return torch.view_as_real(y), or its magnitude"
            trace.report("", "forward", f"returns {name!r}, which is complex", remedy)
    constant = [name for name in tensors if name not in outputs]
    if constant and not trace.obstacles:
        what = "what" if len(tensors) == 1 else f"{constant[0]!r}, which"
        trace.report(
            "", "forward", f"returns {what} does not depend on its input through supported operations",
            "compute the output from the input with torch functions",
        )  # fmt: skip
    empty = [name for name, node in outputs.items() if 0 in node.shape]
    if empty and not trace.obstacles:
        trace.report("", "forward", f"returns {empty[0]!r}, which has no numbers", "leave empty parts out")
    alone = outputs and all(node is trace.input for node in outputs.values())
    if alone and not trace.obstacles:
        remedy = "return what the model computes alone"
        trace.report("", "forward", "returns its input unchanged; there is nothing to pack", remedy)
    trace.outputs = {} if trace.obstacles else outputs
    trace.alone = tuple(name for name, t in tensors.items() if name in outputs and trace.merged(t) == 1)


def _leave_unneeded_out(trace: Trace, tensors: Iterable[Tensor]) -> None:
    """Obstacles that no output depends on, as in a loss or a mean that a forward pass stores, are none."""
    ends = [trace.nodes[id(t)] for t in tensors if id(t) in trace.nodes]
    needed = {id(node) for node in order(*ends, *trace.read, trace.input)}
    kept = []
    for row in trace.obstacles:
        made = trace.made[row.path, row.operation, row.line, row.reason]
        kept += [row] if any(id(node) in needed for node in made) else []
    if not any(row.reason.endswith(CHANGED) for row in kept):  # what was put elsewhere may be why
        trace.obstacles = kept
