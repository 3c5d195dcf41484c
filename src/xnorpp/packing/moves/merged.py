"""Batch axes that are merged with another axis of the value: images times it, or it times images."""

from __future__ import annotations

from torch import Tensor


class Before(int):
    """As `Trace.merged`: an axis of the value that comes before the images, (k*n, ...), as steps may."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Before) and int(self) == int(other)

    def __hash__(self) -> int:
        return hash((Before, int(self)))


def split_batch(tensor: Tensor, batch: int, count: int) -> Tensor:
    """A batch axis that is merged with another one as two axes, images and the other."""
    images, shape = tensor.shape[batch] // count, tensor.shape
    if isinstance(count, Before):
        return tensor.reshape(*shape[:batch], count, images, *shape[batch + 1 :]).transpose(batch, batch + 1)
    return tensor.reshape(*shape[:batch], images, count, *shape[batch + 1 :])
