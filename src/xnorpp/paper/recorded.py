"""The recorded numbers: reading results/*.jsonl, choosing rows, and statistics over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(folder: Path) -> list[Row]:
    """All rows of all files, files in alphabetical order, with the name of the file as `kept_in`."""
    return [
        {**row, "kept_in": path.name} for path in sorted(folder.glob("*.jsonl")) for row in read_file(path)
    ]


def read_file(path: Path) -> list[Row]:
    """The rows of one file; an error names the file and the line that is not JSON."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path} is not JSON ({error.msg})") from None
    return rows


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    """The rows of a kind, without those of --quick."""
    return [row for row in rows if row.get("kind") == kind and not row.get("quick")]


def newest(rows: Iterable[Row], *keys: str) -> list[Row]:
    """The last row of each combination of these keys, in the order in which they first appeared."""
    return list({tuple(str(row.get(key)) for key in keys): row for row in rows}.values())


def accuracy(rows: Iterable[Row], *, split: str | None = "test", **fixed: Any) -> list[Row]:
    """The accuracy rows with these values, one per run: the newest of each seed and number of epochs.

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
    """A difference of two means, its confidence interval, and the p-value of no difference."""

    difference: float
    low: float
    high: float
    p: float

    @property
    def width(self) -> float:
        return self.high - self.low


def welch(a: Seeds, b: Seeds, confidence: float = 0.95) -> Interval | None:
    """Compare two means by Welch's t-test, which does not assume equal variances.

    Args:
        a: The first set of seeds.
        b: The second one.
        confidence: The level of the interval.

    Returns:
        The interval of `a.mean - b.mean`; None where one side has a single seed.
    """
    if min(len(a), len(b)) < 2:
        return None
    difference = a.mean - b.mean
    if a.variance == b.variance == 0:  # no spread, so no test
        return Interval(difference, difference, difference, float(difference == 0))
    from scipy import stats

    test = stats.ttest_ind(a.values, b.values, equal_var=False)
    interval = test.confidence_interval(confidence)
    return Interval(difference, float(interval.low), float(interval.high), float(test.pvalue))
