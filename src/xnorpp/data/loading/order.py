"""Which samples a step sees and how they are augmented: pure functions of (seed, epoch, step), the same on
every machine.

Random numbers come from Philox, whose counter is set to (epoch, step): any step's draws are computed
directly, so a run that resumes in the middle of an epoch pays nothing for the steps before it. Draws are made
for the global batch of `world_size * batch_size` samples and each rank takes its slice: one process with
batch 2B sees exactly what two processes with batch B see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xnorpp.data.dataset import Int64Array

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
SHUFFLE_WINDOW = 16_384
"""Grouped sets.

Whole groups (shards) are gathered until they hold this many samples, which are then shuffled together.
"""

_ORDER, _AUGMENT, _LOOKS, _MIXTURE = 1, 2, 3, 4


def _random(seed: int, purpose: int, epoch: int, step: int) -> np.random.Generator:
    key = np.array([seed % (1 << 64), purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, step, epoch], np.uint64)))


@dataclass(frozen=True)
class Share:
    """What one rank of `world_size` takes of `samples`, in steps of `batch_size`.

    Training drops the last incomplete global batch; testing gives each rank a contiguous part, so that all
    ranks together see each sample exactly once.
    """

    samples: int
    batch_size: int
    train: bool
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"`batch_size` (={self.batch_size}) must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"`rank` (={self.rank}) must be at least 0 and below `world_size` (={self.world_size})"
            )
        if self.train and self.samples < self.batch_size * self.world_size:
            raise ValueError(
                f"`batch_size` (={self.batch_size}) times `world_size` (={self.world_size}) must be at most "
                f"the number of training samples (={self.samples})"
            )

    @property
    def steps(self) -> int:
        if self.train:
            return self.samples // (self.batch_size * self.world_size)
        start, stop = self._part()
        return -(-(stop - start) // self.batch_size)

    def _part(self) -> tuple[int, int]:
        return (
            self.samples * self.rank // self.world_size,
            self.samples * (self.rank + 1) // self.world_size,
        )

    def order(self, seed: int, epoch: int, groups: Int64Array | None = None) -> list[Int64Array]:
        """The sample indices of each step of this rank in this epoch."""
        if not self.train:
            start, stop = self._part()
            return [
                np.arange(i, min(i + self.batch_size, stop), dtype=np.int64)
                for i in range(start, stop, self.batch_size)
            ]
        random = _random(seed, _ORDER, epoch, 0)
        kept = self.steps * self.batch_size * self.world_size
        if groups is None:
            shuffled = random.permutation(self.samples).astype(np.int64)[:kept]
            return list(shuffled.reshape(self.steps, self.world_size, self.batch_size)[:, self.rank])
        shuffled = _shuffle_groups(groups, random)[:kept]
        return list(shuffled.reshape(self.world_size, self.steps, self.batch_size)[self.rank])

    def draw(self, seed: int, epoch: int, step: int, range_: int) -> tuple[Int64Array, Int64Array, BoolArray]:
        """Of each sample of this rank's batch.

        The crop's top and left, from 0 to `range_` inclusive, and whether to flip.
        """
        size = self.batch_size * self.world_size
        random = _random(seed, _AUGMENT, epoch, step)
        tops = random.integers(0, range_, size, endpoint=True)
        lefts = random.integers(0, range_, size, endpoint=True)
        flips = random.integers(0, 2, size) == 1
        mine = self._mine()
        return tops[mine], lefts[mine], flips[mine]

    def _mine(self) -> slice:
        """The rank's part of what was drawn for the global batch."""
        return slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)

    def uniform(self, seed: int, epoch: int, step: int, count: int) -> FloatArray:
        """`count` numbers from [0, 1) for each sample of this rank's batch, for what changes its looks."""
        size = self.batch_size * self.world_size
        return _random(seed, _LOOKS, epoch, step).random((size, count))[self._mine()]

    def mixture(self, seed: int, epoch: int, step: int, parameter: float) -> FloatArray:
        """The share that each sample of this rank's batch keeps of itself: Beta(parameter, parameter)."""
        size = self.batch_size * self.world_size
        return _random(seed, _MIXTURE, epoch, step).beta(parameter, parameter, size)[self._mine()]


def _shuffle_groups(groups: Int64Array, random: np.random.Generator) -> Int64Array:
    """Groups in random order; samples in random order within windows of several whole groups."""
    by_group = np.argsort(groups, kind="stable").astype(np.int64)
    _, starts = np.unique(groups[by_group], return_index=True)
    members = np.split(by_group, starts[1:])
    shuffled: list[Int64Array] = []
    window: list[Int64Array] = []
    held = 0
    for group in random.permutation(len(members)):
        window.append(members[group])
        held += len(members[group])
        if held >= SHUFFLE_WINDOW:
            shuffled.append(random.permutation(np.concatenate(window)))
            window, held = [], 0
    if window:
        shuffled.append(random.permutation(np.concatenate(window)))
    return np.concatenate(shuffled)
