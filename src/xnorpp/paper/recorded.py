"""The kept numbers: reading results/*.jsonl, and what a set of seeds says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(folder: Path) -> list[Row]:
    """Every row of every kept file, files in alphabetical order, with the file's name as `kept_in`."""
    return [
        {**row, "kept_in": path.name} for path in sorted(folder.glob("*.jsonl")) for row in read_file(path)
    ]


def read_file(path: Path) -> list[Row]:
    """The rows of one kept file; an error names the file and the line that is none."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path} is no JSON ({error.msg})") from None
    return rows


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    """The rows of a kind, without those of a quick look."""
    return [row for row in rows if row.get("kind") == kind and not row.get("quick")]


def newest(rows: Iterable[Row], *keys: str) -> list[Row]:
    """The last row of each combination of these keys, in the order in which they first appeared."""
    return list({tuple(str(row.get(key)) for key in keys): row for row in rows}.values())


def accuracy(rows: Iterable[Row], *, split: str | None = "test", **fixed: Any) -> list[Row]:
    """The accuracy rows with these values, one a run: the newest of each seed and number of epochs.

    A value may be a tuple of allowed ones.
    """

    def fits(row: Row) -> bool:
        wanted = {**fixed, **({"split": split} if split else {})}
        return all(
            row.get(key) in (value if isinstance(value, tuple) else (value,)) for key, value in wanted.items()
        )

    found = [row for row in of_kind(rows, "accuracy") if fits(row)]
    return newest(
        found, "experiment", "dataset", "network", "row", "name", "factor", "level", "epochs", "seed", "split"
    )


@dataclass(frozen=True)
class Seeds:
    """One number, measured with several seeds."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], read: Callable[[Row], float]) -> Seeds:
        return cls(tuple(float(read(row)) for row in rows))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def variance(self) -> float:
        """With `n - 1`; 0 for one seed, whose deviation is not known."""
        if len(self.values) < 2:
            return 0.0
        return math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1)

    @property
    def deviation(self) -> float:
        return math.sqrt(self.variance)

    def text(self, digits: int = 2) -> str:
        """mean ± deviation (seeds); a single seed has no deviation."""
        if len(self) == 1:
            return f"{self.mean:.{digits}f} (1 seed)"
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f} ({len(self)} seeds)"


@dataclass(frozen=True)
class Interval:
    """A difference of two means with its confidence interval."""

    difference: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def welch(a: Seeds, b: Seeds, confidence: float = 0.95) -> Interval | None:
    """The interval of `a.mean - b.mean` by Welch's t, which does not take the variances for equal.

    With `u = var/n` of each, the error is `sqrt(ua + ub)` and the degrees of freedom are
    `(ua + ub)^2 / (ua^2/(na-1) + ub^2/(nb-1))`. None where a side has one seed only.
    """
    if min(len(a), len(b)) < 2:
        return None
    ua, ub = a.variance / len(a), b.variance / len(b)
    difference = a.mean - b.mean
    if ua + ub == 0:
        return Interval(difference, difference, difference)
    freedom = (ua + ub) ** 2 / (ua**2 / (len(a) - 1) + ub**2 / (len(b) - 1))
    reach = t_quantile(0.5 + confidence / 2, freedom) * math.sqrt(ua + ub)
    return Interval(difference, difference - reach, difference + reach)


def t_quantile(probability: float, freedom: float) -> float:
    """Student's t below which lies `probability` (at least 1/2), for any degrees of freedom above 0.

    With `t = sqrt(f) tan(a)` the density becomes `cos(a)^(f-1)` on `[0, pi/2)`, which is smooth: Simpson's
    rule gives the probability and bisection its inverse.
    """
    if not 0.5 <= probability < 1 or freedom <= 0:
        raise ValueError(
            f"`probability` (={probability}) must be in [0.5, 1) and `freedom` (={freedom}) above 0"
        )
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def below(angle: float, steps: int = 400) -> float:
        width = angle / steps
        total = math.fsum(
            (1 if i in (0, steps) else 4 if i % 2 else 2) * math.cos(i * width) ** (freedom - 1)
            for i in range(steps + 1)
        )
        return 0.5 + constant * total * width / 3

    low, high = 0.0, math.pi / 2 * (1 - 1e-12)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
