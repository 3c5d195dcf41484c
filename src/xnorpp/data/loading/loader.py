"""Batches on the training device: float32 (N, C, H, W), normalised, with int64 labels.

Everything a loader yields is a function of (seed, epoch, step, rank, world_size); see `order`. Small sets are
moved to the device whole and augmented there; streamed sets are decoded by worker processes (see `stream`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from xnorpp.data.dataset import ArrayDataset, Augment, Dataset, Skipped, UInt8Array
from xnorpp.data.loading.order import Share
from xnorpp.runtime.format.preprocess import Preprocess, normalise_constants

Batch = tuple[Tensor, Tensor]


class Loader(Protocol):
    """`epoch(epoch, start_step)` yields the batches of that epoch from that step on."""

    skipped: list[Skipped]
    batch_size: int

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def samples(self) -> int:
        """How many samples the data set has, over all ranks."""

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]: ...

    def close(self) -> None: ...


def make_loader(
    dataset: Dataset,
    *,
    batch_size: int,
    train: bool,
    device: str | torch.device = "cpu",
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    augment: Augment | Mapping[str, Any] | str | None = None,
    size: int | None = None,
    channels_last: bool = False,
    fast_decode: bool = False,
    max_skipped: int | None = None,
    prefetch: int = 4,
) -> Loader:
    """A loader of `dataset`.

    `batch_size` is one process's batch. Training shuffles, augments (`augment`: None for the data set's
    default, "none", or a table with crop, pad, flip) and drops the last incomplete batch; testing keeps the
    order, crops the centre and covers every sample once over all ranks. `size`: the side fed to the network,
    by default the data set's. `channels_last`: the batch's memory format. For streamed sets: `workers`
    decoding processes (0: decode in this one), `prefetch` batches ahead, `fast_decode` (see `decode`), and
    `max_skipped`, how many unreadable pictures are tolerated (default 1 %, from 1 to 100).
    """
    share = Share(len(dataset), batch_size, train, rank, world_size)
    chosen = Augment.parse(augment if train else "none", dataset.info.default_augment)
    place = torch.device(device)
    if isinstance(dataset, ArrayDataset):
        return ArrayLoader(dataset, share, chosen, place, seed, size, channels_last)
    from xnorpp.data.loading.stream import StreamLoader

    return StreamLoader(
        dataset,
        share,
        chosen,
        place,
        seed,
        size,
        channels_last,
        workers=workers,
        fast_decode=fast_decode,
        max_skipped=max_skipped,
        prefetch=prefetch,
    )


class Normaliser:
    """uint8 (N, H, W, C) on a device to float32 (N, C, H, W).

    `(x / 255 - mean) / std`, as `Preprocess.normalise`.
    """

    def __init__(self, preprocess: Preprocess, device: torch.device, channels_last: bool) -> None:
        constants = normalise_constants(preprocess.mean, preprocess.std)
        self.mean, self.std = (torch.from_numpy(one).to(device) for one in constants)
        self.channels_last = channels_last

    def __call__(self, images: Tensor) -> Tensor:
        scaled = images.float().div_(255.0).sub_(self.mean).div_(self.std).permute(0, 3, 1, 2)
        return scaled if self.channels_last else scaled.contiguous()


class ArrayLoader:
    """A small set, living wholly on the device."""

    def __init__(
        self,
        dataset: ArrayDataset,
        share: Share,
        augment: Augment,
        device: torch.device,
        seed: int,
        size: int | None,
        channels_last: bool,
    ) -> None:
        self.share, self.augment, self.device, self.seed = share, augment, device, seed
        self.batch_size, self.samples = share.batch_size, len(dataset)
        self.skipped = list(dataset.skipped)
        images = dataset.images
        if size is not None and images.shape[1:3] != (size, size):
            images = _resize(images, size)
        self.images = torch.from_numpy(images).to(device)
        self.labels = torch.from_numpy(dataset.labels).to(device)
        self._normalise = Normaliser(dataset.info.preprocess(images.shape[1]), device, channels_last)

    @property
    def steps_per_epoch(self) -> int:
        return self.share.steps

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        steps = self.share.order(self.seed, epoch)
        for step in range(start_step, len(steps)):
            indices = to_device(steps[step], self.device)
            yield self._normalise(self._pick(indices, epoch, step)), self.labels[indices]

    def _pick(self, indices: Tensor, epoch: int, step: int) -> Tensor:
        pad = self.augment.pad if self.augment.crop else 0
        if not (pad or self.augment.flip):
            return self.images[indices]
        tops, lefts, flips = self.share.draw(self.seed, epoch, step, 2 * pad)
        packed = to_device(np.stack([tops - pad, lefts - pad, flips & self.augment.flip]), self.device)
        return crop_and_flip(self.images, indices, packed[0], packed[1], packed[2].bool())

    def close(self) -> None:
        """Nothing to end: there are no processes."""


def crop_and_flip(images: Tensor, indices: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
    """Windows of `images[indices]` (N, H, W, C) as large as the images, shifted by (`tops`, `lefts`), black
    outside, some mirrored.

    One gather for the whole batch: row i of a window is image row `top + i`, column j is `left + j`, or `left
    + W-1 - j` mirrored.
    """
    height, width = images.shape[1:3]
    rows = tops[:, None] + torch.arange(height, device=images.device)
    ahead = torch.arange(width, device=images.device)
    columns = lefts[:, None] + torch.where(flips[:, None], width - 1 - ahead, ahead)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    windows = images[indices[:, None, None], rows[:, :, None], columns[:, None, :]]
    return windows.mul_(inside[:, :, :, None])


def to_device(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """A small array to the device; through pinned memory where that lets the copy overlap with computing."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":  # pragma: cuda only
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _resize(images: UInt8Array, size: int) -> UInt8Array:
    from xnorpp.runtime.decode import fit
    from xnorpp.runtime.format.preprocess import as_image

    return np.stack([fit(as_image(image), size, size, 0, 0, images.shape[3]) for image in images])
