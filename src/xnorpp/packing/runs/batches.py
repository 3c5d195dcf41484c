"""Whether a traced model is the same program in another run: with another number of images, or a later one.

A number that follows from the batch, as in `x / x.shape[0]`, is a constant of the graph like any other. It
shows when the model runs on other images: the graphs are the same but for such numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from xnorpp.packing.bits.zeros import samples
from xnorpp.packing.example import as_weights_are
from xnorpp.packing.graph import Node, order
from xnorpp.packing.obstacles import Obstacle

OTHER_BATCH = 5  # images of the other run; halves, remainders and limits of it are others than those of 2
_SAMPLES = 4

_BATCH = "gives a number that follows from the number of images in the batch"
_BATCH_REMEDY = "use a number of your own instead of x.shape[0], or a mean over the axes of one image"
_LATER = "reads what an earlier call of the model has changed, so that each call gives another result"
_LATER_REMEDY = "change it in training alone (if self.training), or make it a second input and output"
_FAILS = "runs on {} images, and not on {} ({})"
_FAILS_REMEDY = "take the number of images from the input, x.shape[0], wherever it is needed"


def other_batch(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same inputs with more images."""
    count = len(inputs[0])
    chosen = torch.arange(OTHER_BATCH) % count
    return tuple(x[chosen] if x.dim() and len(x) == count else x for x in inputs)


def are_constant(unknown: Callable[..., list[Tensor]], model: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether tensors whose origin is unknown are the same whatever the input is, on samples."""
    first: list[Tensor] | None = None
    for sample in itertools.islice(samples(inputs), _SAMPLES):
        try:
            found = unknown(*as_weights_are(model, sample))
        except Exception:  # whatever the user's model raises where it cannot run
            return False
        first = found if first is None else first
        if len(found) != len(first) or not all(map(torch.equal, first, found)):
            return False
    return True


def more_images(
    first: Mapping[str, Node], other: Mapping[str, Node], obstacles: Sequence[Obstacle]
) -> list[Obstacle]:
    """The obstacles of a model that was traced with more images, or is another program then."""
    found = None if obstacles else _difference(first, other)
    return list(obstacles) if found is None else [Obstacle(*_place(found), _BATCH, _BATCH_REMEDY)]


def later_call(
    first: Mapping[str, Node], other: Mapping[str, Node], obstacles: Sequence[Obstacle]
) -> list[Obstacle]:
    """The obstacles of a model that was traced after other calls, or is another program then."""
    found = None if obstacles else _difference(first, other)
    places = [(row.path, row.operation, row.line) for row in obstacles] + ([_place(found)] if found else [])
    return [Obstacle(*place, _LATER, _LATER_REMEDY) for place in places]


def fails(count: int, error: Exception, line: str) -> Obstacle:
    """The obstacle of a model that raises on another number of images than that of the example."""
    reason = str(error).partition("\n")[0].rstrip(".")
    return Obstacle("", "forward", line, _FAILS.format(count, OTHER_BATCH, reason), _FAILS_REMEDY)


def _place(node: Node) -> tuple[str, str, str]:
    return ("" if node.path == "model" else node.path), "forward", node.line


def _difference(first: Mapping[str, Node], other: Mapping[str, Node]) -> Node | None:
    """The first operation, in the order of the run, that differs from that of the other graph."""
    one, two = (order(*graph.values()) for graph in (first, other))
    places = {id(node): place for place, node in enumerate(two)}
    partner: dict[int, int] = {}
    for place, (a, b) in enumerate(zip(one, two)):
        inputs = [partner.get(id(source)) for source in a.inputs]
        if not _same(a, b) or inputs != [places[id(source)] for source in b.inputs]:
            return a
        partner[id(a)] = place
    outputs = [partner.get(id(node)) for node in first.values()]
    if len(one) != len(two) or outputs != [places[id(node)] for node in other.values()]:
        return max(one, key=lambda node: node.serial)
    return None


def _same(a: Node, b: Node) -> bool:
    alike = (a.op, a.shape, a.attrs) == (b.op, b.shape, b.attrs) and a.tensors.keys() == b.tensors.keys()
    return alike and all(
        np.array_equal(a.tensors[role], b.tensors[role], equal_nan=True) for role in a.tensors
    )
