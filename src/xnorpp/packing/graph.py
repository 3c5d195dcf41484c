"""The graph between torch and a program: the program's operations before folding, constants in float64.

A traced model becomes nodes named as the program's operations, one for every batch norm, scale, bias and
so on. `fold.py` merges them, `assemble.py` writes them down.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.errors import XnorppError

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

# The trained float32 function of a pointwise node, on (..., c) arrays. Folding works in float64, but where a
# sign ends the chain the decision is taken from this function, so that it equals the trained network's.
Trained = Callable[[F32], F32]

# A serial, and moves of its value's axes, the batch left out, one after the other: ("permute", axes) or
# ("reshape", shape).
Turned = tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]


_MOST_SAME = 100  # operations on a value that are written twice


class PackError(XnorppError, ValueError):
    """A model that cannot be packed; the message names the module, the operation and the line.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> from xnorpp.packing import PackError
        >>> try:
        ...     xnorpp.pack(nn.Sequential(nn.Conv2d(3, 8, 3), nn.FractionalMaxPool2d(2, 3)), 8)
        ... except PackError as error:
        ...     print(str(error).partition(" (")[0])
        1: nn.FractionalMaxPool2d is not supported
    """


@dataclass(eq=False)
class Node:
    """One operation. `shape` leaves out the batch; `path` is the module it came from, `line` its source line.

    `serial` is its place in the order the model ran, after that of its inputs; a folded node has that
    of the last one in it, as it has its value. For `verify.py`: `size` is how large a shift's summands are
    in all, a channel (a batch norm's |bias| + |mean*mult|, which may cancel), `gain` how much a sign's folded
    chain magnifies, `argument` the serial of what the trained network takes the sign of, and `turned`, of a
    node that the trained network has with its axes in other places, that one's serial and the moves from it.
    """

    op: str
    inputs: list[Node]
    shape: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)
    path: str = ""
    line: str = ""
    serial: int = 0
    trained: Trained | None = None
    size: Array | None = None
    gain: Array | None = None
    argument: int = -1
    turned: Turned | None = None

    @property
    def spatial(self) -> dict[str, Array]:
        """The spatial factor of an affine or sign: its `row` and `col`, `map` or `full` tensors."""
        return {role: self.tensors[role] for role in ("row", "col", "map", "full") if role in self.tensors}


def same(a: Node, b: Node) -> bool:
    """Whether two nodes are one, or the same operations on it."""
    pairs, seen = [(a, b)], set()
    while pairs:
        one, other = pairs.pop()
        if one is other or (id(one), id(other)) in seen:
            continue
        seen.add((id(one), id(other)))
        alike = one.op == other.op and one.attrs == other.attrs and one.tensors.keys() == other.tensors.keys()
        if not alike or not one.inputs or len(one.inputs) != len(other.inputs) or len(seen) > _MOST_SAME:
            return False
        if not all(np.array_equal(one.tensors[role], other.tensors[role]) for role in one.tensors):
            return False
        pairs += zip(one.inputs, other.inputs)
    return True


def fingerprint(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    """Equal for equal arrays, and small: networks have weights of many megabytes."""
    digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
    return array.dtype.str, array.shape, digest


def order(*outputs: Node) -> list[Node]:
    """The nodes that the outputs need, each after its inputs; otherwise in the order of their serials."""
    found: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if id(node) not in found:
            found[id(node)] = node
            stack.extend(node.inputs)
    readers: dict[int, list[Node]] = {}
    missing = {key: len({id(source) for source in node.inputs}) for key, node in found.items()}
    for node in found.values():
        for key in {id(source) for source in node.inputs}:
            readers.setdefault(key, []).append(node)
    ready = [(node.serial, key) for key, node in found.items() if not missing[key]]
    heapq.heapify(ready)
    result = []
    while ready:
        node = found[heapq.heappop(ready)[1]]
        result.append(node)
        for reader in readers.get(id(node), ()):
            missing[id(reader)] -= 1
            if not missing[id(reader)]:
                heapq.heappush(ready, (reader.serial, id(reader)))
    return result


def users(*outputs: Node) -> dict[int, list[Node]]:
    """For every node (by id) the nodes that read it; the caller's reading of an output counts as one."""
    result: dict[int, list[Node]] = {id(node): [] for node in order(*outputs)}
    for node in order(*outputs):
        for source in node.inputs:
            result[id(source)].append(node)
    for output in outputs:
        result[id(output)].append(output)
    return result
