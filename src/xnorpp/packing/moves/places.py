"""Where the images of a batch are in a tensor: along its first axis, along another, or along a merged one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xnorpp.packing.graph import Node

# Functions that leave numbers as they are, each image's with it, ...
MOVED = frozenset(
    (
        *(
            "view",
            "reshape",
            "flatten",
            "ravel",
            "unsqueeze",
            "squeeze",
            "unflatten",
            "view_as",
            "contiguous",
        ),
        *("long", "int", "to", "clone", "detach", "type", "type_as"),
    )
)
# ... and that read places in a whole batch of rows.
READ_ACROSS = MOVED | {"getitem", "index_select"}
COUNTED = "index the rows of each image by themselves: torch.gather(x, 1, index)"


@dataclass(frozen=True)
class Place:
    """The axis of images, which may have each of them several times.

    It is then `outer` times the images times `count // outer`, and the value of an image has an axis of
    `count` numbers there. Windows and heads are merged with the images before them, (n*k, ...). Batches that
    were joined one after the other have the images after them, (k*n, ...).
    """

    axis: int = 0
    count: int = 0
    outer: int = 1


_FIRST = Place()


class Places:
    """The places of the tensors of a trace, by identity."""

    batch: int  # images of the run
    nodes: dict[int, Node]
    remember: Callable[[Tensor], None]

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, Place] = {}  # of tensors where it is not the first axis alone
        # Of tensors that have this number more for each image before theirs, as places in a whole batch of
        # rows, (n*k, ...), have; their values do not.
        self._steps: dict[int, int] = {}

    def place(self, tensor: Tensor) -> Place:
        """Where the images of a tensor are."""
        return self._places.get(id(tensor), _FIRST)

    def set_place(self, tensor: Tensor, place: Place) -> None:
        """From now on the images of this tensor are there."""
        if place.count == 1 and tensor.dim() > 1:
            place = replace(place, count=0)
        self._places.pop(id(tensor), None)
        if place != _FIRST:
            self._places[id(tensor)] = place

    def follow(self, result: Tensor, input: Tensor, axis: int | None = None) -> None:
        """The images of `result` are as those of `input`, perhaps along another axis."""
        place = self.place(input)
        self.set_place(result, place if axis is None else replace(place, axis=axis))

    def batch_axis(self, tensor: Tensor) -> int:
        """Which axis of a tensor is the batch; only functions that move axes accept one but the first."""
        return self.place(tensor).axis

    def set_batch_axis(self, tensor: Tensor, axis: int) -> None:
        """From now on the batch of this tensor is this axis."""
        self.set_place(tensor, replace(self.place(tensor), axis=axis))

    def merged(self, tensor: Tensor) -> int:
        """k where the batch axis of a tensor is n*k: k, an axis of the value; otherwise 0.

        A tensor (n,), one number for each image, is one with k = 1: its value has one axis of one element.
        """
        return self.place(tensor).count

    def set_merged(self, tensor: Tensor, count: int) -> None:
        """From now on the batch axis of this tensor is images times `count`."""
        self.set_place(tensor, replace(self.place(tensor), count=count, outer=1))

    def step(self, tensor: Tensor) -> int:
        """How much more the numbers of a tensor are for each image than its value."""
        return self._steps.get(id(tensor), 0)

    def set_step(self, tensor: Tensor, step: int) -> None:
        """From now on a tensor's numbers are its value and this much more for each image."""
        self._steps.pop(id(tensor), None)
        if step:
            self._steps[id(tensor)] = step

    def apart(self, tensor: Tensor) -> Tensor:
        """A tensor with images and the axis that they were merged with as two axes; the same value."""
        if not self.merged(tensor):
            return tensor
        with torch._C.DisableTorchFunction():
            plain = self.plain_of(tensor)
        if id(tensor) in self.nodes:
            self.nodes[id(plain)] = self.nodes[id(tensor)]
        self.set_batch_axis(plain, self.batch_axis(tensor))
        self.remember(plain)
        return plain

    def without_step(self, tensor: Tensor) -> Tensor:
        """The value of a tensor whose batch is its first axis, with what it is merged with apart."""
        plain = self.plain_of(tensor)
        images = torch.arange(self.batch, device=plain.device).reshape(-1, *[1] * (plain.dim() - 1))
        return plain - self.step(tensor) * images

    def plain_of(self, tensor: Tensor, place: Place | None = None) -> Tensor:
        """A tensor with images and the axis that they were merged with as two axes, in this order."""
        place = place or self.place(tensor)
        axis, count, shape = place.axis, place.count, tensor.shape
        if not count or shape[axis] % count:
            return tensor
        rest = (count // place.outer, *shape[axis + 1 :])
        if place.outer == 1:
            return tensor.reshape(*shape[:axis], shape[axis] // count, *rest)
        apart = tensor.reshape(*shape[:axis], place.outer, shape[axis] // count, *rest)
        return apart.movedim(axis + 1, axis).flatten(axis + 1, axis + 2)

    def placed(self, value: Tensor, like: Tensor) -> Tensor:
        """A value, images first, with its images where another tensor has them, and of its shape."""
        place = self.place(like)
        axis, count = place.axis, place.count
        value = value.movedim(0, axis)
        if place.outer > 1:
            rest = (place.outer, count // place.outer, *value.shape[axis + 2 :])
            value = value.reshape(*value.shape[: axis + 1], *rest).movedim(axis + 1, axis)
        return value.reshape(like.shape)
