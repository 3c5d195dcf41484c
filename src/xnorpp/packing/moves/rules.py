"""Rows and columns as a rule of another value's: what a resize, a padding or a slice does at every size.

A model computes the size it wants in Python, by whatever means. What it wanted at several sizes shows which
value has that size (`size=skip.shape[-2:]`), or of which value it is a simple function (`h // 2`, the next
multiple of 32).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xnorpp.packing.graph import Node
from xnorpp.packing.moves.alike import FREE, Alike, Row, scales
from xnorpp.packing.moves.factors import by_one_number, counted, factor_of, numbers_of
from xnorpp.runtime.errors import XnorppError

Rule = list[int]  # add, over, times, plus
SAME: Rule = [0, 1, 1, 0]
_OVER = (1, 2, 4, 8, 16, 32, 64, 128, 3, 5, 6, 7, 12, 14)  # what sizes are divided by
_POOLS = {"adaptive_avg_pool2d": "mean", "adaptive_max_pool2d": "max", "expand": "nearest"}

_WHOLE_MAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "avg_pool2d": ("global_avg_pool", {}),
    "max_pool2d": ("adaptive_max_pool2d", {"size": [1, 1]}),
}


class Bound(XnorppError, ValueError):
    """A size that no rule explains; its text is the reason."""


def explained(alike: Alike) -> tuple[dict[str, Node], dict[int, Row]]:
    """The graph of all sizes: its outputs by name, and the row that a node of it is, by its identity.

    Raises:
        Bound: Something in it is bound to a size.
    """
    made: dict[int, Node] = {}
    rows: dict[int, Row] = {}
    for place, row in enumerate(alike.rows):
        node, inputs = row.node, [made[id(source)] for source in row.inputs]
        op, attrs = node.op, node.attrs
        if op in FREE and not row.same_everywhere():
            if op != "reshape" and any(
                len(row.shape(g)) != 3 or len(row.inputs[0].shape(g)) != 3 for g in range(alike.graphs)
            ):
                raise Bound(_bound(row))
            op, attrs, other = (_reshaped if op == "reshape" else _sized)(alike, row, place)
            inputs += [] if other is None else [made[id(other)]]
        new = replace(node, op=op, attrs=attrs, inputs=inputs, serial=place)
        if scales(node):
            new = _scaled(alike, row, place, new, made)
        made[id(row)] = new
        rows[id(new)] = row
    return {name: made[id(row)] for name, row in alike.outputs.items()}, rows


def _scaled(alike: Alike, row: Row, place: int, node: Node, made: dict[int, Node]) -> Node:
    """An operation with one factor, which may be a function of a value's size."""
    if len(set(numbers_of(row))) == 1:
        free = node.op == "affine" and len({row.shape(g)[0] for g in range(alike.graphs)}) > 1
        return by_one_number(node, None) if free else node
    factor = factor_of(alike, row, place)
    if factor is None:
        numbers = ", ".join(f"{number:.4g}" for number in numbers_of(row)[:4])
        raise Bound(
            f"{node.path} ({node.line}) multiplies by {numbers}, .., which follow from no value's size"
        )
    first, *rest = node.inputs
    number = counted(factor, made[id(factor.row)], first)
    if node.op != "attention":
        return by_one_number(node, number)
    scaled = by_one_number(replace(node, shape=first.shape), number)
    return replace(node, inputs=[scaled, *rest], attrs={**node.attrs, "scale": 1.0})


def _bound(row: Row) -> str:
    node = row.node
    return f"{node.path} ({node.op}) has the shape {node.shape}, bound to the size of the image ({node.line})"


def _sized(alike: Alike, row: Row, place: int) -> tuple[str, dict[str, Any], Row | None]:
    """The operation, its attributes and the value that gives the size."""
    node, graphs = row.node, range(alike.graphs)
    before = [row.inputs[0].shape(g) for g in graphs]
    after = [row.shape(g) for g in graphs]
    if any(a[0] != b[0] for a, b in zip(before, after)):
        raise Bound(_bound(row))
    if node.op in _WHOLE_MAPS:
        return _of_the_map(row, before, after)
    if node.op in ("pad2d", "edge_pad2d", "slice"):
        return _fitted(alike, row, place, before, after)
    if node.op == "upsample2d" and any(n is not None and n.attrs["scale"] for n in row.nodes):
        raise Bound(_bound(row))
    if len({shape[1:] for shape in after}) == 1:  # one size, which some images have already
        return node.op, {**node.attrs, **_one_size(node, after[0])}, None
    ratios = {(a[1] / b[1], a[2] / b[2]) for a, b in zip(after, before)}
    if node.op == "upsample2d" and len(ratios) == 1 and all(ratio.is_integer() for ratio in min(ratios)):
        return node.op, {**node.attrs, "size": None, "scale": list(min(ratios))}, None  # the same numbers
    other, rules = _rules(alike, row, place, before, after)
    mode = _POOLS.get(node.op) or node.attrs["mode"]
    attrs = {"size": rules, "mode": mode, "align_corners": bool(node.attrs.get("align_corners"))}
    return "resize2d", attrs, other


def _of_the_map(
    row: Row, before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]]
) -> tuple[str, dict[str, Any], None]:
    """A pool whose window is the whole map at every size, `F.avg_pool2d(x, x.shape[2:])`."""
    for node, given, made in zip(row.nodes, before, after, strict=True):
        whole = node is not None and tuple(node.attrs["kernel"]) == given[1:] and made[1:] == (1, 1)
        if not whole or node is None or any(node.attrs["padding"]):
            raise Bound(_bound(row))
    op, attrs = _WHOLE_MAPS[row.node.op]
    return op, dict(attrs), None


def _reshaped(alike: Alike, row: Row, place: int) -> tuple[str, dict[str, Any], Row | None]:
    """Axes that differ from size to size: the last of them is what is left, the others have rules."""
    graphs = range(alike.graphs)
    shapes = [row.shape(g) for g in graphs]
    if len({len(shape) for shape in shapes}) > 1:
        raise Bound(_bound(row))
    columns = list(zip(*shapes, strict=True))
    shape: list[Any] = [column[0] if len(set(column)) == 1 else None for column in columns]
    *ruled, last = [axis for axis, size in enumerate(shape) if size is None]
    shape[last] = -1
    rows = [
        other
        for other in (row.inputs[0], *alike.rows[:place])
        if len({len(other.shape(g)) for g in graphs}) == 1
    ]
    for exact, other in itertools.product((True, False), rows):
        axes = list(zip(*(other.shape(g) for g in graphs), strict=True))
        found = [_axis_rule(axes, columns[axis], exact) for axis in ruled]
        if all(found):
            for axis, rule in zip(ruled, found, strict=True):
                shape[axis] = rule
            return "reshape_to", {"shape": shape}, other
    raise Bound(_bound(row))


def _axis_rule(axes: Sequence[tuple[int, ...]], wanted: tuple[int, ...], exact: bool) -> list[int] | None:
    """The axis of a value that has these sizes in the graphs, or from which they follow, and the rule."""
    if wanted in axes or exact:
        return [axes.index(wanted), *SAME] if wanted in axes else None
    for axis, sizes in enumerate(axes):
        rule = _rule(list(zip(sizes, wanted, strict=True))) if len(set(sizes)) > 1 else None
        if rule is not None:
            return [axis, *rule]
    return None


def _one_size(node: Node, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"shape": list(shape)} if node.op == "expand" else {"size": list(shape[1:])}


def _fitted(
    alike: Alike, row: Row, place: int, before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]]
) -> tuple[str, dict[str, Any], Row]:
    firsts = [_first(node) for node in row.nodes]
    if any(first is None for first in firsts):
        raise Bound(_bound(row))
    places: list[int | str] = []
    for axis in (0, 1):
        first = [given[axis] for given in firsts if given is not None]
        total = [a[1 + axis] - b[1 + axis] for a, b in zip(after, before)]
        forms: dict[int | str, list[int]] = {
            first[0]: [first[0]] * len(first),
            "half": [n // 2 for n in total],
            "half_up": [-(-n // 2) for n in total],
            "half_even": [round(n / 2) for n in total],
            "all": total,
        }
        name = next((name for name, form in forms.items() if form == first), None)
        if name is None:
            raise Bound(_bound(row))
        places.append(name)
    other, rules = _rules(alike, row, place, before, after)
    mode = row.node.attrs.get("mode", "constant")
    value = row.node.attrs.get("value", 0.0)
    return "fit2d", {"size": rules, "before": places, "mode": mode, "value": value}, other


def _first(node: Node | None) -> tuple[int, int] | None:
    """Rows and columns before the input's first, below 0 where some are left out; None: it has steps."""
    if node is None:
        return 0, 0
    if node.op == "slice":
        starts = node.attrs["start"]
        return (-starts[1], -starts[2]) if node.attrs["step"] == [1, 1, 1] else None
    edges = node.attrs["padding"][-4:]
    return edges[0], edges[2]


def _rules(
    alike: Alike, row: Row, place: int, before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]]
) -> tuple[Row, list[Rule | None]]:
    """The value whose size it is, or is a function of, and a rule for rows and one for columns."""
    axes = [axis for axis in (1, 2) if any(a[axis] != b[axis] for a, b in zip(after, before))]
    graphs = range(alike.graphs)
    others = [other for other in alike.rows[:place] if all(len(other.shape(g)) == 3 for g in graphs)]
    for other in others:
        if all(other.shape(g)[axis] == after[g][axis] for g in graphs for axis in axes):
            return other, [list(SAME) if axis in axes else None for axis in (1, 2)]
    for other in (others[0], row.inputs[0], *others[1:]):
        pairs = {axis: [(other.shape(g)[axis], after[g][axis]) for g in graphs] for axis in axes}
        both = _rule([pair for axis in axes for pair in pairs[axis]])
        rules = {axis: both or _rule(pairs[axis]) for axis in axes}
        if all(rules.values()):
            return other, [rules.get(axis) for axis in (1, 2)]
    sizes = ", ".join(f"{shape[1]}x{shape[2]}" for shape in after[:4])
    node = row.node
    raise Bound(
        f"{node.path} ({node.line}) wants {sizes}, .. pixels, sizes that follow from no other value's size"
    )


def _rule(pairs: Sequence[tuple[int, int]]) -> Rule | None:
    """`(n + add) // over * times + plus` for all pairs of n and what comes out, or None.

    None too where two rules are possible that differ at sizes at which the model may run.
    """
    for over in _OVER:
        found: list[Rule] = []
        for add in dict.fromkeys((0, over - 1, over // 2, *range(over))):
            steps = [((n + add) // over, out) for n, out in pairs]
            (low, out), (high, last) = min(steps), max(steps)
            if high == low or (last - out) % (high - low) or last <= out:
                continue
            times = (last - out) // (high - low)
            plus = out - times * low
            if times <= 1024 and all(step * times + plus == wanted for step, wanted in steps):
                found.append([add, over, times, plus])
        if found:
            sizes = [
                [(n + add) // over * times + plus for n in range(2 * over)] for add, _, times, plus in found
            ]
            whole = all(n % over == 0 for n, _ in pairs)  # the model runs at multiples alone
            return found[0] if whole or all(one == sizes[0] for one in sizes) else None
    return None
