"""What every operation has: its definition and its error bound, one row for each.

A family of operations is one file with its rows (`ROWS`); `run.py` collects them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference.arrays import Apply, Array

F64 = npt.NDArray[np.float64]


class Folded(Protocol):
    """What packing knows of an operation that the program does not have."""

    @property
    def size(self) -> Array | None:
        """How large the summands of its shift are in all, one number per channel; None: as the shift."""
        ...

    @property
    def gain(self) -> Array | None:
        """How much the chain that was folded into a sign magnifies, one number per channel; None: 1."""
        ...


# (program, op, what was folded into it, values of its inputs, their errors, its value) -> how far each number
# may be from the trained one: a bound of the errors that come in, and of the rounding in torch and here.
Bound = Callable[[Program, Op, Folded, Sequence[Any], Sequence[F64], Any], F64]


@dataclass(frozen=True)
class Row:
    """An operation: its definition in numpy and its error bound (`rounding.py`: bounds of moved numbers).

    `form`, `notes` and `meaning` are for docs/format.md, whose tables are drawn from the rows: what the
    operation makes of what, what an attribute or tensor is (by its name), and a sentence about it where the
    page has none. `example` are attributes and tensors that tests try it with, on images of 20 x 6 x 9; an
    operation without cases of its own in the tests is tried so on every engine.
    """

    apply: Apply
    bound: Bound
    form: str
    notes: Mapping[str, str] = field(default_factory=dict)
    meaning: str = ""
    example: Mapping[str, Any] | None = None


ROWS: dict[str, Row] = {}  # by the operation's name


def apply(program: Program, op: Op, *inputs: Array) -> Array:
    """One operation on a batch of its inputs."""
    with np.errstate(all="ignore"):  # infinities and NaN are values here, not accidents
        return ROWS[op.op].apply(program, op, *inputs)
