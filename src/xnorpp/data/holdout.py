"""Stratified, deterministic splits: the same labels, fraction and seed give the same split everywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def holdout_split(labels: Int64Array, fraction: float, seed: int = 0) -> tuple[Int64Array, Int64Array]:
    """Sorted indices (fit, held): of each class, `fraction` of its samples, rounded, are held out.

    Choices (a learning rate, a scale's start, the epoch to keep) are made on `held`; the test set is for the
    final number.

    Example:
        >>> import numpy as np
        >>> from xnorpp.data import holdout_split
        >>> fit, held = holdout_split(np.array([0] * 8 + [1] * 4), fraction=0.25)
        >>> len(fit), len(held)
        (9, 3)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"`holdout` (={fraction}) must lie between 0 and 1")
    random = np.random.Generator(np.random.Philox(key=[seed, 0x686F6C64]))
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[random.permutation(members)[: int(len(members) * fraction + 0.5)]] = True
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)
