"""Chains of moves as what they are in the end: nothing, a reshape, or a slice of the channels.

A transformer takes its queries from one projection by a reshape, a permute, a slice and another permute. In
memory they are neighbouring channels of the projection. A chain of permutes, reshapes and slices from one
value is followed with the place of every number; where the places are in order, the chain is one move.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.packing.graph import Node, order

_MOVES = ("permute", "reshape", "flatten", "slice")
_MOST = 1 << 24  # numbers of a value whose places are followed
Places = npt.NDArray[np.int64]


def shorten_chains(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The same graph with long chains of moves written as one; the given nodes are left as they are."""
    fresh = count(-1_000_000, -1)  # serials that no value of the trained network has
    new: dict[int, Node] = {}
    for node in order(*outputs):
        copy = replace(node, inputs=[new[id(source)] for source in node.inputs])
        new[id(node)] = _shortened(copy, lambda: next(fresh))
    return tuple(new[id(output)] for output in outputs)


def _shortened(node: Node, serial: Callable[[], int]) -> Node:
    if node.op not in _MOVES or node.inputs[0].op not in _MOVES:
        return node
    chain = [node]
    while chain[0].inputs[0].op in _MOVES:
        chain.insert(0, chain[0].inputs[0])
    source = chain[0].inputs[0]
    total = math.prod(source.shape)
    if total > _MOST or (len(chain) == 2 and chain[0].op == "slice" and node.op != "slice"):
        return node
    places: Places = np.arange(total).reshape(source.shape)
    for link in chain:
        places = _moved(link, places)
    flat = places.reshape(-1)
    first, size = int(flat[0]), flat.size
    if not np.array_equal(flat, np.arange(first, first + size)):
        return node
    row = total // source.shape[0]
    if size < total and (first % row or size % row):
        return node
    part = source
    if size < total:
        begin, end = first // row, (first + size) // row
        shape = (end - begin, *source.shape[1:])
        rest = len(shape) - 1
        attrs: dict[str, Any] = {
            "start": [begin, *[0] * rest], "stop": [end, *[None] * rest], "step": [1] * (rest + 1),
        }  # fmt: skip
        if end == source.shape[0]:
            attrs["stop"][0] = None
        own = node.serial if shape == node.shape else serial()
        part = Node("slice", [source], shape, attrs, {}, node.path, node.line, own)
    if part.shape == node.shape:
        return part
    if len(node.shape) == 1:
        return replace(node, op="flatten", inputs=[part], attrs={})
    return replace(node, op="reshape", inputs=[part], attrs={"shape": list(node.shape)})


def _moved(link: Node, places: Places) -> Places:
    if link.op == "permute":
        return np.asarray(places.transpose(link.attrs["axes"]))
    if link.op == "slice":
        cuts = zip(*(link.attrs[key] for key in ("start", "stop", "step")))
        return np.asarray(places[tuple(slice(*cut) for cut in cuts)])
    return places.reshape(link.shape)
