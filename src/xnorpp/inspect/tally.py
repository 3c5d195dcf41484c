"""What `xnorpp eval` reports beside accuracy: per class, confusions, calibration. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.inspect.calibration import expected_calibration_error

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass
class Tally:
    """Counts of right and wrong answers, filled batch by batch.

    Example:
        >>> tally = Tally(["cat", "dog"])
        >>> tally.add(np.array([[0.9, 0.1], [0.6, 0.4]], np.float32), np.array([0, 1]))
        >>> tally.confusion.tolist()
        [[1, 0], [1, 0]]
        >>> tally.per_class()
        [('cat', 1, 100.0), ('dog', 1, 0.0)]
    """

    classes: Sequence[str]
    _sure: list[Floats] = field(default_factory=list)
    _wrong: list[Labels] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.confusion = np.zeros((len(self.classes), len(self.classes)), np.int64)

    def add(self, probabilities: Floats, labels: Labels) -> None:
        """Count a batch: probabilities (n, classes) and the true classes (n,)."""
        np.add.at(self.confusion, (labels, probabilities.argmax(axis=1)), 1)
        self._sure.append(probabilities.max(axis=1))
        self._wrong.append((probabilities.argmax(axis=1) != labels).astype(np.int64))

    @property
    def calibration_error(self) -> float:
        """The expected calibration error of the guesses."""
        sure, wrong = np.concatenate(self._sure), np.concatenate(self._wrong)
        # The error needs only how sure each guess is and whether it is right: column 0 is the guess.
        return expected_calibration_error(np.stack([sure, np.zeros_like(sure)], axis=1), wrong)

    def per_class(self) -> list[tuple[str, int, float]]:
        """(class, images, per cent right), in the order of the classes."""
        rows = []
        for index, name in enumerate(self.classes):
            images = int(self.confusion[index].sum())
            right = 100 * int(self.confusion[index, index]) / images if images else float("nan")
            rows.append((name, images, right))
        return rows

    def most_confused(self, count: int = 5) -> list[tuple[str, str, int]]:
        """(class, taken for, images) of the most frequent mistakes."""
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:count]
        pairs = [divmod(int(place), len(self.classes)) for place in order]
        return [(self.classes[a], self.classes[b], int(wrong[a, b])) for a, b in pairs if wrong[a, b]]

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "calibration_error": round(self.calibration_error, 6),
            "classes": list(self.classes),
            "per_class_top1": [
                None if np.isnan(right) else round(right, 4) for _, _, right in self.per_class()
            ],
            "confusion": self.confusion.tolist(),
        }

    def text_matrix(self, widest: int = 10) -> list[list[str]]:
        """The confusion matrix as a table: rows are the true classes, columns the guesses."""
        names = [name[:widest] for name in self.classes]
        return [["", *names]] + [
            [name, *(str(count) if count else "." for count in row)]
            for name, row in zip(names, self.confusion.tolist())
        ]

    def plot(self, path: str | Path) -> None:
        """Draw the confusion matrix into an image file; needs matplotlib."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        count = len(self.classes)
        side = min(max(4.0, 0.45 * count + 2), 16.0)
        figure, axis = pyplot.subplots(figsize=(side, side))
        rows = self.confusion / np.maximum(self.confusion.sum(axis=1, keepdims=True), 1)
        shown = axis.imshow(rows, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(shown, ax=axis, label="share of the true class", shrink=0.8)
        if count <= 30:
            axis.set_xticks(range(count), self.classes, rotation=90)
            axis.set_yticks(range(count), self.classes)
            for (row, column), number in np.ndenumerate(self.confusion):
                if number:
                    colour = "white" if rows[row, column] > 0.5 else "black"
                    axis.text(column, row, str(number), ha="center", va="center", color=colour, fontsize=7)
        axis.set_xlabel("predicted class")
        axis.set_ylabel("true class")
        figure.tight_layout()
        figure.savefig(path, dpi=150)
        pyplot.close(figure)
