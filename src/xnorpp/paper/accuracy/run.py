"""One training run of an experiment: what identifies it, and what decides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """One training run. `teacher` is the key of the run whose network it learns from."""

    experiment: str
    row: str
    dataset: str
    network: str
    recipe: str
    seed: int = 0
    settings: tuple[str, ...] = ()
    teacher: str | None = None
    facts: tuple[tuple[str, Any], ...] = ()
    epochs: int = 0  # where an experiment has rows of several lengths

    @property
    def key(self) -> str:
        """What identifies the run, in file names and in results."""
        length = f"-{self.epochs}-epochs" if self.epochs else ""
        name = f"{self.experiment}-{self.dataset}-{self.network}-{self.row}{length}-{self.seed}"
        return name.replace("_", "-")

    @property
    def held(self) -> bool:
        """Whether it is measured on the held-out part of the training set."""
        return self.experiment == "student" or any(s.startswith("data.holdout=") for s in self.settings)
