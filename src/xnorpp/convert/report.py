"""What `binarize` and `unbinarize` report: one row per layer, and what would not pack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReportRow:
    """One convolution or linear.

    Attributes:
        path: Where it is in the model.
        kind: The class it was.
        changed: Whether it was replaced.
        reason: Why, or why not.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(16, 10))
        >>> report = xnorpp.binarize(net)
        >>> row = report.rows[1]
        >>> row.path, row.kind, row.changed
        ('1', 'Conv2d', True)
    """

    path: str
    kind: str
    changed: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """What was changed and what was left, in the order the layers run.

    Attributes:
        rows: One per convolution or linear.
        obstacles: What would not pack and what to do about it, given an example; see `check_packable`.
        others: Paths of modules that have a weight of their own and are no convolution or linear of torch's,
            by their class, such as a linear layer that someone wrote anew. They were left as they are.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(16, 10))
        >>> report = xnorpp.binarize(net)
        >>> report.changed, report.left
        (('1',), ('0', '2'))
    """

    rows: tuple[ReportRow, ...] = field(default_factory=tuple)
    obstacles: tuple[Any, ...] = ()
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def changed(self) -> tuple[str, ...]:
        """The paths of the layers that were replaced."""
        return tuple(row.path for row in self.rows if row.changed)

    @property
    def left(self) -> tuple[str, ...]:
        """The paths of the layers that were not."""
        return tuple(row.path for row in self.rows if not row.changed)

    def __str__(self) -> str:
        paths = max((len(row.path) for row in self.rows), default=0)
        kinds = max((len(row.kind) for row in self.rows), default=0)
        lines = [
            f"{row.path:<{paths}}  {row.kind:<{kinds}}  {'binary' if row.changed else 'left  '}  {row.reason}"
            for row in self.rows
        ]
        count = len(self.changed)
        lines.append(f"{count} layer{'s'[: count != 1]} made binary, {len(self.left)} left as they were")
        for kind, places in self.others.items():
            one = len(places) == 1
            modules, own = ("module", "its own") if one else ("modules", "their own")
            lines.append(
                f"{len(places)} {modules} of class {kind} with a weight of {own} left, the first at "
                f"{places[0]}: layers of torch.nn alone are made binary"
            )
        if self.obstacles:
            lines.append(f"{len(self.obstacles)} obstacles to packing:")
            lines += [f"  {obstacle}" for obstacle in self.obstacles]
        return "\n".join(lines)
