"""Values that get the size of another one, whatever that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference import moves
from xnorpp.runtime.reference.arrays import Array
from xnorpp.runtime.reference.rows import F64, Folded, Row

POOLS = {"mean": "adaptive_avg_pool2d", "max": "adaptive_max_pool2d"}


def size_by(rule: Sequence[int] | None, own: int, other: int) -> int:
    """Rows or columns by a rule (add, over, times, plus) of another value's; without one the input's own."""
    if rule is None:
        return own
    add, over, times, plus = rule
    return (other + add) // over * times + plus


def place_by(before: int | str, total: int) -> int:
    """How many numbers come before the input's first where `total` come in all; below 0 where some leave."""
    if isinstance(before, int):
        return before
    low, high = total // 2, -(-total // 2)
    return {"half": low, "half_up": high, "half_even": high if low % 2 else low, "all": total}[before]


def of_one_size(op: Op, size: Sequence[int]) -> Op:
    """A `resize2d` to these rows and columns as an operation without another value."""
    mode, source = op.attrs["mode"], op.inputs[:1]
    if mode in POOLS:
        return replace(op, op=POOLS[mode], inputs=source, attrs={"size": list(size)})
    corners = op.attrs["align_corners"]
    attrs = {"size": list(size), "scale": None, "mode": mode, "align_corners": corners}
    return replace(op, op="upsample2d", inputs=source, attrs=attrs)


def places(op: Op, size: int, out: int, axis: int) -> Array:
    """For each row (or column) of a `fit2d` that of the input; -1 where the value is."""
    mode = op.attrs["mode"]
    at = np.arange(out) - place_by(op.attrs["before"][axis], out - size)
    if mode == "replicate":
        return np.clip(at, 0, size - 1)
    if mode == "circular":
        return np.asarray(at % size)
    if mode == "reflect":
        return np.asarray(size - 1 - np.abs(size - 1 - np.abs(at)))
    return np.where((at >= 0) & (at < size), at, -1)


def shape_by(op: Op, elements: int, other: Sequence[int]) -> list[int]:
    """The shape that a `reshape_to` gives a value of this many elements; `other` is the other value's."""
    items = op.attrs["shape"]
    shape = [item if isinstance(item, int) else size_by(item[1:], 0, other[item[0]]) for item in items]
    if -1 in shape:
        shape[shape.index(-1)] = elements // -math.prod(shape)
    return shape


def _reshape_to(program: Program, op: Op, x: Array, other: Array) -> Array:
    return x.reshape(x.shape[0], *shape_by(op, math.prod(x.shape[1:]), other.shape[1:]))


def _sizes(op: Op, x: Array, other: Array) -> list[int]:
    rules = zip(op.attrs["size"], x.shape[2:], other.shape[2:], strict=True)
    return [size_by(*rule) for rule in rules]


def _resize2d(program: Program, op: Op, x: Array, other: Array) -> Array:
    fixed = of_one_size(op, _sizes(op, x, other))
    return moves.ROWS[fixed.op].apply(program, fixed, x)


def _fit2d(program: Program, op: Op, x: Array, other: Array) -> Array:
    sizes = zip(x.shape[2:], _sizes(op, x, other), strict=True)
    rows, columns = (places(op, size, out, axis) for axis, (size, out) in enumerate(sizes))
    result = x[:, :, np.maximum(rows, 0)][:, :, :, np.maximum(columns, 0)]
    outside = (rows < 0)[:, None] | (columns < 0)
    return np.where(outside, np.float32(op.attrs["value"]), result)


def _resize2d_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    fixed = of_one_size(op, y.shape[2:])
    return moves.ROWS[fixed.op].bound(program, fixed, node, x[:1], e[:1], y)


def _fit2d_bound(program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any) -> F64:
    """The numbers around an image have no error."""
    return np.asarray(_fit2d(program, replace(op, attrs={**op.attrs, "value": 0.0}), e[0], x[1]))


def _reshape_to_bound(
    program: Program, op: Op, node: Folded, x: Sequence[Any], e: Sequence[F64], y: Any
) -> F64:
    return np.asarray(e[0].reshape(y.shape))


_FORM = "f32 (c,h,w), any (k,n,m) of which only n and m count -> f32 (c,h',w')"
_SIZE = "two rules, one for rows and one for columns"
ROWS: dict[str, Row] = {
    "resize2d": Row(
        _resize2d,
        _resize2d_bound,
        _FORM,
        {
            "size": _SIZE,
            "mode": "`nearest`, `nearest-exact`, `bilinear`, `bicubic`, `mean`, `max`",
            "align_corners": "true or false",
        },
        "A rule is null, which leaves the size as it is, or four integers `[add, over, times, plus]`: "
        "`floor((n + add) / over) * times + plus` of the second input's `n` rows (or columns); "
        "`[0, 1, 1, 0]` is its size. With these rows and columns it is `upsample2d` with `size`, or in the "
        "modes `mean` and `max` an adaptive pool. The second input may be of any "
        "kind; its numbers are not read.",
    ),
    "fit2d": Row(
        _fit2d,
        _fit2d_bound,
        _FORM,
        {
            "size": _SIZE,
            "before": "two of integers, `half`, `half_up`, `half_even` and `all`",
            "mode": "`constant`, `reflect`, `replicate`, `circular`",
            "value": "around the image in mode `constant`",
        },
        "Adds rows and columns around an image, or leaves some out, until it has the size that the rules of "
        "`resize2d` give. Of the `total` that are added along an axis (below 0 where they leave) as many "
        "come before the first as `before` states: the integer, `floor(total/2)` (`half`), `ceil(total/2)` "
        "(`half_up`), the even one of the two where they differ (`half_even`), or all. Modes other than "
        "`constant` only add.",
    ),
    "reshape_to": Row(
        _reshape_to,
        _reshape_to_bound,
        "f32 of any shape, any of which only the shape counts -> f32",
        {"shape": "each axis an integer, -1 for what is left, or `[axis, add, over, times, plus]`"},
        "As `reshape`, with axes that follow by the rule of `resize2d` from an axis of the second input.",
    ),
}
