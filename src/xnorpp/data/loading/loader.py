"""Batches on the training device: float32 (N, C, H, W), normalised, with int64 labels.

Everything a loader yields is a function of (seed, epoch, step, rank, world_size); see `order`. Small sets are
moved to the device whole and augmented there; streamed sets are decoded by worker processes (see `stream`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from xnorpp.data.dataset import ArrayDataset, Augment, DatasetError, DatasetInfo, Skipped, UInt8Array
from xnorpp.data.loading.augmented import BatchAugment
from xnorpp.data.loading.order import Share
from xnorpp.data.own import AnyDataset, BatchesDataset, IndexedDataset
from xnorpp.runtime.format.preprocess import Preprocess, normalise_constants

Batch = tuple[Tensor, Tensor]


class Loader(Protocol):
    """`epoch(epoch, start_step)` yields the batches of that epoch from that step on.

    Example:
        >>> from xnorpp.data import load_dataset, make_loader
        >>> loader = make_loader(load_dataset("digits", split="test"), batch_size=100, train=False)
        >>> loader.samples, loader.steps_per_epoch
        (359, 4)
        >>> loader.close()
    """

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
    dataset: AnyDataset,
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
    enlarge: str = "once",
    channels_last: bool = False,
    fast_decode: bool = False,
    max_skipped: int | None = None,
    prefetch: int = 4,
) -> Loader:
    """A loader of `dataset`.

    `batch_size` is one process's batch. Training shuffles, augments (`augment`: None for the data set's
    default, "none", or a table of its fields) and drops the last incomplete batch; testing keeps the
    order, crops the centre and covers every sample once over all ranks. `size`: the side fed to the network,
    by default the data set's. `enlarge`: an in-memory set with a larger `size` is enlarged whole and "once",
    or each "batch" on the device, after crop and flip, whose padding is then in the data set's own pixels.
    `channels_last`: the batch's memory format. For streamed sets: `workers`
    decoding processes (0: decode in this one), `prefetch` batches ahead, `fast_decode` (see `decode`), and
    `max_skipped`, how many unreadable images are tolerated (default 1 %, from 1 to 100). A user's own
    indexable data is read by `workers` processes too; a user's own loader gives the batches it has.

    Example:
        >>> from xnorpp.data import load_dataset, make_loader
        >>> loader = make_loader(load_dataset("digits"), batch_size=64, train=True, seed=1)
        >>> images, labels = next(loader.epoch(0))
        >>> images.shape, labels.shape
        (torch.Size([64, 1, 8, 8]), torch.Size([64]))
    """
    if isinstance(dataset, (IndexedDataset, BatchesDataset)):
        return _own_loader(
            dataset, batch_size, train, torch.device(device), seed, rank, world_size, workers, augment, size
        )
    share = Share(len(dataset), batch_size, train, rank, world_size)
    chosen = Augment.parse(augment if train else "none", dataset.info.default_augment)
    place = torch.device(device)
    if isinstance(dataset, ArrayDataset):
        return ArrayLoader(dataset, share, chosen, place, seed, size, channels_last, enlarge=enlarge)
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


def _own_loader(
    dataset: IndexedDataset | BatchesDataset,
    batch_size: int,
    train: bool,
    device: torch.device,
    seed: int,
    rank: int,
    world_size: int,
    workers: int,
    augment: Augment | Mapping[str, Any] | str | None,
    size: int | None,
) -> Loader:
    from xnorpp.data.loading.batches import BatchesLoader
    from xnorpp.data.loading.indexed import IndexedLoader

    if train and Augment.parse(augment, dataset.info.default_augment) != dataset.info.default_augment:
        raise DatasetError(
            f"`augment` (={augment!r}) is for image files and arrays of uint8 images; {dataset.where()} "
            "augments its own samples"
        )
    if size is not None and tuple(dataset.shape[1:]) != (size, size):
        raise DatasetError(
            f"`size` (={size}) is for image files and arrays of uint8 images; {dataset.where()} gives "
            f"samples of shape {tuple(dataset.shape)}"
        )
    if isinstance(dataset, BatchesDataset):
        return BatchesLoader(dataset, train, device, seed, world_size)
    share = Share(len(dataset), batch_size, train, rank, world_size)
    return IndexedLoader(dataset, share, device, seed, workers)


class Normaliser:
    """uint8 (N, H, W, C) on a device to float32 (N, C, H, W).

    `(x / 255 - mean) / std`, as `Preprocess.normalise`.
    """

    def __init__(
        self, preprocess: Preprocess | DatasetInfo, device: torch.device, channels_last: bool
    ) -> None:
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
        *,
        enlarge: str = "once",
    ) -> None:
        self.share, self.augment, self.device, self.seed = share, augment, device, seed
        self.batch_size, self.samples = share.batch_size, len(dataset)
        self.skipped = list(dataset.skipped)
        images = dataset.images
        self.enlarged: int | None = None
        if size is not None and images.shape[1:3] != (size, size):
            if enlarge == "batch" and size > max(images.shape[1:3]):
                self.enlarged = size
            else:
                images = _resize(images, size)
        self.images = torch.from_numpy(images).to(device)
        self.labels = torch.from_numpy(dataset.labels).to(device)
        self._normalise = Normaliser(dataset.info, device, channels_last)
        self._looks = BatchAugment(augment, share, seed, len(dataset.classes), device)

    @property
    def steps_per_epoch(self) -> int:
        return self.share.steps

    @property
    def normalisation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel."""
        return self._normalise.mean.tolist(), self._normalise.std.tolist()

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        steps = self.share.order(self.seed, epoch)
        for step in range(start_step, len(steps)):
            indices = to_device(steps[step], self.device)
            images = self._looks.pixels(self._pick(indices, epoch, step), epoch, step)
            yield self._looks.finish(self.prepared(images), self.labels[indices], epoch, step)

    def prepared(self, images: Tensor) -> Tensor:
        """Cropped images (N, H, W, C) as the network takes them: normalised, enlarged before if need be."""
        return self._normalise(images if self.enlarged is None else enlarge_batch(images, self.enlarged))

    def _pick(self, indices: Tensor, epoch: int, step: int) -> Tensor:
        pad = self.augment.pad if self.augment.crop and not self.augment.area else 0
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


def enlarge_batch(images: Tensor, size: int) -> Tensor:
    """uint8 (N, H, W, C) to whole numbers in float32, (N, size, size, C), exactly as Pillow enlarges
    bilinearly: along rows, then along columns, each rounded, with weights of 22 bits. Float64 holds every
    product and sum.
    """
    height, width = images.shape[1:3]
    planes = images.permute(0, 3, 1, 2).double()
    planes = _round_weighted(planes @ _pillow_weights(width, size, images.device).T)
    planes = _round_weighted(_pillow_weights(height, size, images.device) @ planes)
    return planes.float().permute(0, 2, 3, 1)


_WEIGHT_BITS = 22


def _round_weighted(sums: Tensor) -> Tensor:
    return sums.add_(2 ** (_WEIGHT_BITS - 1)).div_(2**_WEIGHT_BITS).floor_()


@functools.cache
def _pillow_weights(before: int, after: int, device: torch.device) -> Tensor:
    """Pillow's bilinear weights in its whole numbers, (after, before): a triangle of width 2 around each
    centre, cut off at the borders and normalised.
    """
    centres = (np.arange(after) + 0.5) * (before / after)
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(before) + 0.5 - centres[:, None]))
    weights /= weights.sum(axis=1, keepdims=True)
    return torch.from_numpy(np.floor(weights * 2**_WEIGHT_BITS + 0.5)).to(device)


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
