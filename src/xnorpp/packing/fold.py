"""Fold a traced graph: less arithmetic, the same numbers up to rounding.

Moves of axes are put off and cancelled first (`moves/layout.py`). Then, each in float64 and rounded once:
1. affine after affine becomes one:  ((x*s)*m1 + a1)*m2 + a2 = (x*s)*(m1*m2) + (a1*m2 + a2).
   So the learned scale, the bias and the batch norm of a binary convolution are one multiply-add per number.
   The factor s per pixel (row*col, map or full) stays factored: merged maps would cost ResNet-18 some 6 MB.
2. an affine after a linear layer, or after a real convolution with a bias, goes into weight and bias.
   After one without it stays: sums and batch norm are then torch's own numbers, and so are the signs.
3. a monotone chain before a sign becomes its threshold (`threshold.py`); SiLU, GELU and their like, which
   have the sign of their input, vanish directly before a sign. The chain ends at a value that something
   else reads too (a residual sum), at a PReLU with a negative slope, and after a factor per pixel,
   which the sign then multiplies by itself: `dot*row*col > t`, not divided, so that the factor's sign counts.
4. the shift of an affine after a dot product is moved by units in the last place where a whole number would
   otherwise get another sign than in the trained network: such a number comes in every image.
5. what changes nothing goes, and equal nodes become one (two binary layers on the same value share its bits).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from xnorpp.packing.graph import F32, Array, Node, Trained, fingerprint, order, users
from xnorpp.packing.moves.alike import FREE
from xnorpp.packing.moves.chains import shorten_chains
from xnorpp.packing.moves.layout import place_moves
from xnorpp.packing.threshold import integer_threshold, real_threshold, shift_with_signs
from xnorpp.runtime.reference.activation import SLOPES

_INTEGER = ("binary_conv2d", "binary_linear")
_MONOTONE = ("affine", "relu", "prelu", "hardtanh", "sigmoid", "tanh", "elu", "softplus", "erf")
# Not monotone, but above 0 where their input is: directly before a sign they change nothing.
_SAME_SIGN = ("silu", "mish", "gelu", "gelu_tanh", "hardswish")


Outputs = tuple[Node, ...]


def fold(outputs: Mapping[str, Node]) -> dict[str, Node]:
    """The folded graph of a model's outputs by name; the given nodes are left as they are."""
    return folded(moved(outputs))


def moved(outputs: Mapping[str, Node], apart: bool = False) -> dict[str, Node]:
    """The graph with its moves of axes in place, and the arithmetic as it was.

    `apart`: moves of different lines, which may be equal at this size alone, stay apart.
    """
    share = partial(shared, apart=apart)
    return _passed(outputs, share, place_moves, shorten_chains, place_moves, share)


def folded(outputs: Mapping[str, Node]) -> dict[str, Node]:
    """The graph with its arithmetic folded."""
    last = (_merge_affines, _into_weights, _thresholds, _signs_of_integers, _drop_identities, shared)
    return _passed(outputs, shared, *last)


def _passed(outputs: Mapping[str, Node], *passes: Callable[[Outputs], Outputs]) -> dict[str, Node]:
    nodes: Outputs = tuple(outputs.values())
    for one_pass in passes:
        nodes = one_pass(nodes)
    return dict(zip(outputs, nodes, strict=True))


def _rewrite(outputs: Outputs, rule: Callable[[Node, Node, dict[int, list[Node]]], Node]) -> Outputs:
    """A copy of the graph in which `rule(copy, original, users of the originals)` stands for each node."""
    readers = users(*outputs)
    new: dict[int, Node] = {}
    for node in order(*outputs):
        copy = Node(**{**vars(node), "inputs": [new[id(source)] for source in node.inputs]})
        new[id(node)] = rule(copy, node, readers)
    return tuple(new[id(output)] for output in outputs)


def _merge_affines(outputs: Outputs) -> Outputs:
    def rule(node: Node, original: Node, readers: dict[int, list[Node]]) -> Node:
        if node.op != "affine" or node.inputs[0].op != "affine" or len(readers[id(original.inputs[0])]) > 1:
            return node
        first = node.inputs[0]
        if node.spatial and (first.spatial or "add" in first.tensors):
            return node
        return _compose(first, node)

    return _rewrite(outputs, rule)


def _compose(first: Node, second: Node) -> Node:
    tensors: dict[str, Array] = {**first.spatial, **second.spatial}
    m1, a1 = first.tensors.get("mult"), first.tensors.get("add")
    m2, a2 = second.tensors.get("mult"), second.tensors.get("add")
    if m1 is not None or m2 is not None:
        tensors["mult"] = (1.0 if m1 is None else m1) * (1.0 if m2 is None else m2) * np.ones(first.shape[0])
    if a1 is not None or a2 is not None:
        shifted = 0.0 if a1 is None else a1 * (1.0 if m2 is None else m2)
        tensors["add"] = shifted + (0.0 if a2 is None else a2) * np.ones(first.shape[0])
    inner, outer = first.trained, second.trained
    assert inner is not None
    assert outer is not None
    where = (first.path, first.line, second.serial)
    merged = Node("affine", first.inputs, first.shape, {}, tensors, *where, _chain([inner, outer]))
    merged.size, merged.turned = _size_after(first.size, second), second.turned
    return merged


def _size_after(size: Array | None, node: Node) -> Array | None:
    """How large the summands of a shift are after one more pointwise node."""
    if size is None:
        return node.size
    return size * _gain(node) + (0.0 if node.size is None else node.size)


def _gain(node: Node) -> Array:
    """How much a pointwise node magnifies a difference, a channel."""
    if node.op == "affine":
        return np.abs(node.tensors.get("mult", np.ones(1)))
    if node.op == "prelu":
        return np.maximum(np.abs(node.tensors["slope"].astype(np.float64)), 1.0)
    if node.op in SLOPES:
        return np.full(1, max(SLOPES[node.op][0], float(node.attrs.get("alpha", 0.0))))
    return np.ones(1)


def _chain(functions: list[Trained]) -> Trained:
    def trained(v: F32) -> F32:
        for function in functions:
            v = function(v)
        return v

    return trained


def _into_weights(outputs: Outputs) -> Outputs:
    def rule(node: Node, original: Node, readers: dict[int, list[Node]]) -> Node:
        source = node.inputs[0] if node.inputs else node
        if (
            node.op != "affine"
            or node.spatial
            or source.op not in ("conv2d", "linear")
            or (source.op == "conv2d" and "bias" not in source.tensors)
            or len(readers[id(original.inputs[0])]) > 1
        ):
            return node
        weight = source.tensors["weight"].astype(np.float64)
        bias = source.tensors.get("bias")
        mult, add = node.tensors.get("mult"), node.tensors.get("add")
        tensors = {"weight": weight}
        if mult is not None:
            tensors["weight"] = weight * mult.reshape(-1, *[1] * (weight.ndim - 1))
        if bias is not None or add is not None:
            scaled = 0.0 if bias is None else bias.astype(np.float64) * (1.0 if mult is None else mult)
            tensors["bias"] = np.asarray(scaled + (0.0 if add is None else add), np.float64)
        where = (source.path, source.line, node.serial)
        merged = Node(source.op, source.inputs, source.shape, source.attrs, tensors, *where)
        merged.size, merged.turned = _size_after(None if bias is None else np.abs(bias), node), node.turned
        return merged

    return _rewrite(outputs, rule)


def _is_monotone(node: Node) -> bool:
    if node.op == "prelu":
        return bool(np.all(node.tensors["slope"] >= 0))
    return node.op in _MONOTONE and node.attrs.get("alpha", 0.0) >= 0


def _thresholds(outputs: Outputs) -> Outputs:
    def rule(node: Node, original: Node, readers: dict[int, list[Node]]) -> Node:
        if node.op != "sign":
            return node
        chain: list[Node] = []
        value, seen = node.inputs[0], original.inputs[0]
        while value.op in _SAME_SIGN and len(readers[id(seen)]) == 1:
            value, seen = value.inputs[0], seen.inputs[0]
        while _is_monotone(value) and len(readers[id(seen)]) == 1:
            chain.insert(0, value)
            value, seen = value.inputs[0], seen.inputs[0]
            if chain[0].spatial:
                break
        if not chain:
            node.inputs = [value]
            return node
        trained = _chain([link.trained for link in chain if link.trained is not None])
        spatial = chain[0].spatial
        if value.op in _INTEGER and not spatial:
            t, flip = integer_threshold(trained, node.shape[0], taps(value))
        else:
            t, flip = real_threshold(trained, node.shape[0])
        tensors = {**spatial, "threshold": t, "flip": flip}
        folded = Node("sign", [value], node.shape, {}, tensors, node.path, node.line, node.serial)
        folded.argument = node.argument
        folded.gain = np.ones(1)
        for link in chain:
            folded.gain = folded.gain * _gain(link)
            folded.size = _size_after(folded.size, link)
        return folded

    return _rewrite(outputs, rule)


def _signs_of_integers(outputs: Outputs) -> Outputs:
    def rule(node: Node, original: Node, readers: dict[int, list[Node]]) -> Node:
        if node.op != "affine" or node.spatial or node.inputs[0].op not in _INTEGER or node.trained is None:
            return node
        if "mult" in node.tensors and "add" in node.tensors:
            mult, add = node.tensors["mult"], node.tensors["add"]
            moved = shift_with_signs(node.trained, mult, add, taps(node.inputs[0]))
            node.tensors = {**node.tensors, "add": moved}
        return node

    return _rewrite(outputs, rule)


def taps(node: Node) -> int:
    """How many products a dot product sums: its largest possible value."""
    source = node.inputs[0]
    if node.op == "binary_linear":
        return source.shape[0]
    return source.shape[0] // int(node.attrs["groups"]) * math.prod(node.tensors["weight"].shape[1:3])


def _drop_identities(outputs: Outputs) -> Outputs:
    def rule(node: Node, original: Node, readers: dict[int, list[Node]]) -> Node:
        if node.op == "affine":
            kept = {role: node.tensors[role] for role in node.spatial}
            if "mult" in node.tensors and np.any(node.tensors["mult"] != 1):
                kept["mult"] = node.tensors["mult"]
            if "add" in node.tensors and np.any(node.tensors["add"] != 0):
                kept["add"] = node.tensors["add"]
            source = node.inputs[0]
            takes_integers = all(_takes_integers(reader, original) for reader in readers[id(original)])
            if not kept and (source.op not in _INTEGER or (takes_integers and original not in outputs)):
                return source
            node.tensors = kept
        elif node.op == "sign":
            flips = bool(np.any(node.tensors.get("flip", 0)))
            moved = bool(np.any(node.tensors.get("threshold", 0)))
            node.tensors = {
                role: tensor
                for role, tensor in node.tensors.items()
                if not (role == "flip" and not flips) and not (role == "threshold" and not moved)
            }
        elif node.op == "relu" and node.inputs[0].op == "relu":
            return node.inputs[0]
        return node

    return _rewrite(outputs, rule)


def _takes_integers(reader: Node, source: Node) -> bool:
    """Whether an operation reads the whole numbers of a dot product as they are; of a product the first."""
    if reader.op == "mul":
        return reader.inputs[0] is source and reader.inputs[1] is not source
    return reader.op in ("affine", "sign")


def shared(outputs: Outputs, apart: bool = False) -> Outputs:
    """The graph with equal operations on equal inputs as one; `apart`: but not moves of different lines."""
    seen: dict[object, Node] = {}

    def rule(node: Node, original: Node, readers: dict[int, list[Node]]) -> Node:
        if node.op == "input":
            return node
        tensors = tuple((role, fingerprint(node.tensors[role])) for role in sorted(node.tensors))
        key = (
            node.op,
            tuple(id(source) for source in node.inputs),
            repr(sorted(node.attrs.items())),
            tensors,
            (node.path, node.line) if apart and node.op in FREE else None,
        )
        return seen.setdefault(key, node)

    return _rewrite(outputs, rule)
