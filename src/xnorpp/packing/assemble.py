"""Write a folded graph down as a `Program`: names for values and tensors, constants as they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xnorpp.packing.graph import Array, Node, PackError, fingerprint, order
from xnorpp.packing.storage import store_int8
from xnorpp.runtime.format.program import INPUT, Op, Program
from xnorpp.runtime.stem import add_byte_filters

_MOST = 1 << 12  # operations of a program (docs/format.md)
_HALF_MAX = float(np.finfo(np.float16).max)

# What `real="float16"` stores in 16 bits: the large real tensors. Thresholds, multipliers and shifts stay
# float32: they are small, and they decide signs.
_LARGE = ("weight", "map", "full")


def assemble(
    outputs: Mapping[str, Node],
    shape: tuple[int, ...],
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    preprocess: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    real: str = "float32",
    meta: Mapping[str, Any] | None = None,
    free_axes: tuple[int, ...] = (),
) -> tuple[Program, dict[str, Node]]:
    """The program of a folded graph, and the node that makes each of its values."""
    if len(outputs) > 1:
        outputs = {name: _copied(node) if node.op == "input" else node for name, node in outputs.items()}
    names: dict[int, str] = {}
    nodes: dict[str, Node] = {}
    ops: list[Op] = []
    store = _Store(real == "float16")
    for node in order(*outputs.values()):
        if node.op == "input":
            names[id(node)] = INPUT
            continue
        names[id(node)] = f"v{len(ops)}"
        nodes[f"v{len(ops)}"] = node
        tensors = {role: store.name(node, role, tensor) for role, tensor in node.tensors.items()}
        inputs = tuple(names[id(source)] for source in node.inputs)
        ops.append(Op(node.op, node.path, inputs, names[id(node)], node.attrs, tensors))
    found = {name: names[id(node)] for name, node in outputs.items()}
    if INPUT in found.values():
        raise PackError("the model returns its input unchanged; there is nothing to pack")
    if len(ops) > _MOST:
        raise _too_many(list(nodes.values()))
    (first, output), *others = found.items()
    program = Program(
        input_shape=shape,
        ops=tuple(ops),
        output=output,
        output_name=first,
        more_outputs=dict(others),
        tensors=store.tensors,
        mean=tuple(float(v) for v in mean),
        std=tuple(float(v) for v in std),
        preprocess=preprocess,
        labels=None if labels is None else tuple(str(label) for label in labels),
        meta=dict(meta or {}),
        free_axes=free_axes,
        scales=store.scales,
    )
    return store_int8(program, short_names=False) if real == "int8" else add_byte_filters(program), nodes


def _copied(node: Node) -> Node:
    """The input as an output beside others."""
    tensors = {"mult": np.ones(node.shape[0], np.float32)}
    return Node("affine", [node], node.shape, {}, tensors, "model", node.line, node.serial)


def _too_many(nodes: Sequence[Node]) -> PackError:
    (path, line), count = Counter((node.path, node.line) for node in nodes).most_common(1)[0]
    return PackError(
        f"{path}: the program has {len(nodes):,} operations, of which this line's are {count:,}; {_MOST:,} "
        f"are supported ({line}): take fewer steps, by a strided convolution or shorter sequences for "
        "example, or pack the modules around it: xnorpp.pack_submodules"
    )


class _Store:
    """The file's tensors: each array once, under the name of the module that has it first."""

    def __init__(self, half: bool) -> None:
        self.half = half
        self.tensors: dict[str, Array] = {}
        self.scales: dict[str, str] = {}  # of whole numbers, which all stand for themselves
        self._names: dict[object, str] = {}

    def name(self, node: Node, role: str, tensor: Array) -> str:
        stored = self._stored(node, role, tensor)
        key = fingerprint(stored)
        if key not in self._names:
            base = f"{node.path}.{role}"
            name, count = base, 1
            while name in self.tensors:
                count += 1
                name = f"{base}.{count}"
            self._names[key] = name
            self.tensors[name] = stored
            if stored.dtype == np.int8:
                self.scales[name] = f"{name}.scale"
                self.tensors[self.scales[name]] = np.ones(len(stored), np.float32)
        return self._names[key]

    def _stored(self, node: Node, role: str, tensor: Array) -> Array:
        if tensor.dtype in (np.uint8, np.int8):
            return np.ascontiguousarray(tensor)
        with np.errstate(over="ignore"):
            single = np.ascontiguousarray(tensor, dtype=np.float32)
        bad = np.isnan(single) if role == "threshold" else ~np.isfinite(single)
        if bad.any():
            raise PackError(f"{node.path}: `{role}` has NaN or infinite numbers ({node.line})")
        if self.half and role in _LARGE and bool(np.all(np.abs(single) <= _HALF_MAX)):
            return single.astype(np.float16)
        return single
