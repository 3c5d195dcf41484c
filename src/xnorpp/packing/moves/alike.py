"""Graphs of one model at several sizes as one: an operation that a size lacks changes nothing there.

`if x.shape != skip.shape: x = interpolate(...)`, a padding of no pixels and a slice of the whole image are in
the graphs of some sizes only. The graphs are walked side by side; an operation that only changes rows and
columns may be missing in some of them, everything else is the same in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xnorpp.packing.graph import Node, fingerprint, order
from xnorpp.runtime.errors import XnorppError

# Operations that change rows and columns, and which of their attributes do.
SIZED = {
    "upsample2d": ("size", "scale"),
    "adaptive_avg_pool2d": ("size",),
    "adaptive_max_pool2d": ("size",),
    "expand": ("shape",),
    "pad2d": ("padding",),
    "edge_pad2d": ("padding",),
    "slice": ("start", "stop"),
}
# Attributes that may be rules of other values' sizes.
FREE = {
    **SIZED,
    "reshape": ("shape",),
    "avg_pool2d": ("kernel", "stride"),
    "max_pool2d": ("kernel", "stride"),
}


class Unlike(XnorppError, ValueError):
    """Graphs that differ in more than rows and columns; its text names the operation."""


@dataclass(eq=False)
class Row:
    """One operation of all graphs: its node in each, None where it is missing, and the first of them."""

    node: Node
    nodes: list[Node | None]
    inputs: list[Row] = field(default_factory=list)

    def shape(self, graph: int) -> tuple[int, ...]:
        """Of the value in one of the graphs."""
        node = self.nodes[graph]
        return self.inputs[0].shape(graph) if node is None else node.shape

    def same_everywhere(self) -> bool:
        """Whether no graph lacks it, and all agree on its attributes."""
        present = [node for node in self.nodes if node is not None]
        return len(present) == len(self.nodes) and all(n.attrs == present[0].attrs for n in present)


class Alike:
    """The rows of the graphs that were added, in the order in which they run, and the outputs by name."""

    def __init__(self, outputs: Mapping[str, Node]) -> None:
        self.rows: list[Row] = []
        self.graphs = 1
        places: dict[int, Row] = {}
        for node in order(*outputs.values()):
            row = Row(node, [node], [places[id(source)] for source in node.inputs])
            places[id(node)] = row
            self.rows.append(row)
        self.outputs = {name: places[id(node)] for name, node in outputs.items()}

    def add(self, outputs: Mapping[str, Node]) -> None:
        """One more graph.

        Raises:
            Unlike: It differs in more than rows and columns; nothing was added.
        """
        walk = _Walk(self, list(self.rows))
        for node in order(*outputs.values()):
            walk.take(node)
        walk.leave_out_the_rest()
        if list(outputs) != list(self.outputs):
            raise Unlike("the outputs differ")
        ends = {}
        for name, node in outputs.items():
            end = walk.agreed(self.outputs[name], walk.places[id(node)])
            if end is None:
                raise Unlike(f"the output {name!r} is another value")
            ends[name] = end
        self.outputs, self.rows = ends, walk.rows
        for row in self.rows:
            row.inputs = walk.inputs.get(id(row), row.inputs)
            row.nodes.append(walk.found.get(id(row)))
        self.graphs += 1


class _Walk:
    """One graph beside the rows; nothing is changed before it has come to its end."""

    def __init__(self, alike: Alike, rows: list[Row]) -> None:
        self.graphs, self.rows, self.at = alike.graphs, rows, 0
        self.places: dict[int, Row] = {}  # of the graph's nodes
        self.found: dict[int, Node] = {}  # the graph's node of a row
        self.inputs: dict[int, list[Row]] = {}  # those of a row that are others now

    def take(self, node: Node) -> None:
        sources = [self.places[id(source)] for source in node.inputs]
        while self.at < len(self.rows):
            row = self.rows[self.at]
            inputs = self._inputs(row, node, sources)
            if inputs is not None:
                self.places[id(node)], self.found[id(row)] = row, node
                self.inputs[id(row)] = inputs
                self.at += 1
                return
            if row.node.op not in SIZED:
                break
            self.at += 1  # missing in this graph
        if node.op not in SIZED:
            name = self.rows[min(self.at, len(self.rows) - 1)].node
            raise Unlike(f"{name.path} ({name.op})")
        new = Row(node, [None] * self.graphs, sources)
        self.rows.insert(self.at, new)
        self.places[id(node)], self.found[id(new)] = new, node
        self.at += 1

    def leave_out_the_rest(self) -> None:
        for row in self.rows[self.at :]:
            if row.node.op not in SIZED:
                raise Unlike(f"{row.node.path} ({row.node.op})")

    def _inputs(self, row: Row, node: Node, sources: list[Row]) -> list[Row] | None:
        if not _same(row.node, node) or len(row.inputs) != len(sources):
            return None
        agreed = [self.agreed(mine, theirs) for mine, theirs in zip(row.inputs, sources)]
        return None if any(source is None for source in agreed) else agreed  # type: ignore[return-value]

    def agreed(self, mine: Row, theirs: Row) -> Row | None:
        """The value that both mean: one may be the other one through operations that a graph lacks."""
        value = mine
        while id(value) not in self.found and value is not theirs:
            value = value.inputs[0]
        if value is theirs:
            return mine
        value = theirs
        while value is not mine and all(node is None for node in value.nodes):
            value = value.inputs[0]
        return theirs if value is mine else None


def _same(a: Node, b: Node) -> bool:
    """Whether two nodes are one operation, but for its rows and columns."""
    if (a.op, a.path) != (b.op, b.path) or len(a.inputs) != len(b.inputs):
        return False
    if a.op in SIZED and a.line != b.line:
        return False
    free = FREE.get(a.op, ())
    return bool(_stated(a, free) == _stated(b, free))


def _stated(node: Node, free: tuple[str, ...]) -> Any:
    """All that a program would state of a node, but for its inputs."""
    attrs = sorted((item for item in node.attrs.items() if item[0] not in free), key=str)
    if scales(node):  # by a number that may be a function of a size
        return [item for item in attrs if item[0] != "scale"], _added(node)
    tensors = sorted((role, fingerprint(tensor)) for role, tensor in node.tensors.items())
    return attrs, tensors


def scales(node: Node) -> bool:
    """Whether an operation multiplies a whole value by one number, and perhaps adds another."""
    if node.op == "affine" and not node.spatial:
        return all(bool((tensor == tensor[0]).all()) for tensor in node.tensors.values())
    return node.op == "attention"


def _added(node: Node) -> list[float]:
    return [float(node.tensors["add"][0])] if "add" in node.tensors else []
