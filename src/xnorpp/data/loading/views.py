"""Every crop and flip of every image of an in-memory set, numbered: what a training batch can look like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from xnorpp.data.dataset import Int64Array
from xnorpp.data.loading.loader import ArrayLoader, Batch, crop_and_flip, to_device

IMAGES = 1024  # per batch of `each`


def why_not_counted(loader: object) -> str | None:
    """None where the looks of a loader's training batches can be counted, else the reason."""
    if not isinstance(loader, ArrayLoader):
        return "the data is not an in-memory set of images"
    if not loader.augment.views:
        return (
            "`data.augment` has more than crop, pad and flip, so images are changed in more ways than can be "
            "counted"
        )
    return None


class Views:
    """The views of a loader's images. View number `(top * side + left) * flips + flip` of an image is what
    `crop_and_flip` makes of it; view numbers count up within an image, images within the set.
    """

    def __init__(self, loader: ArrayLoader) -> None:
        self.loader = loader
        self.pad = loader.augment.pad if loader.augment.crop else 0
        self.side = 2 * self.pad + 1
        self.flips = 2 if loader.augment.flip else 1
        self.images = len(loader.images)
        self.per_image = loader.augment.views

    def each(self) -> Iterator[tuple[int, slice, Tensor]]:
        """View, images, and their batch as training sees it, of every view and all images."""
        loader = self.loader
        for view in range(self.per_image):
            place, flip = divmod(view, self.flips)
            top, left = divmod(place, self.side)
            for start in range(0, self.images, IMAGES):
                part = slice(start, min(start + IMAGES, self.images))
                indices = torch.arange(part.start, part.stop, device=loader.device)
                tops, lefts = (torch.full_like(indices, one - self.pad) for one in (top, left))
                flipped = torch.full_like(indices, flip).bool()
                windows = crop_and_flip(loader.images, indices, tops, lefts, flipped)
                yield view, part, loader.prepared(windows)

    def numbers(self, epoch: int, start_step: int = 0) -> Iterator[Int64Array]:
        """Of each batch that `loader.epoch` yields: for each sample, image * per_image + view."""
        loader, share = self.loader, self.loader.share
        steps = share.order(loader.seed, epoch)
        for step in range(start_step, len(steps)):
            tops, lefts, flips = share.draw(loader.seed, epoch, step, 2 * self.pad)
            view = (tops * self.side + lefts) * self.flips + (flips & (self.flips == 2))
            yield steps[step] * self.per_image + view

    def beside(self, table: Tensor, epoch: int, start_step: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The loader's batches, and of each sample its row of `table`, which has one row per view."""
        batches: Iterator[Batch] = self.loader.epoch(epoch, start_step)
        for batch, numbers in zip(batches, self.numbers(epoch, start_step), strict=True):
            yield (*batch, table[to_device(np.ascontiguousarray(numbers), table.device)])
