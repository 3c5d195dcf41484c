"""Batches of a user's own indexable data set.

Which samples a step sees is `order`'s business, as for every other set. What a sample looks like is the
user's: before `items[index]` is called, the global generators of `random`, numpy and torch (on the CPU) are
seeded by (seed, epoch, index). So an augmentation that draws from them gives the same image whichever process
reads the sample, with any number of workers, and after a resumption too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from xnorpp.data.dataset import DatasetError, DatasetInfo, Int64Array, Skipped
from xnorpp.data.loading.order import Share
from xnorpp.data.own import IndexedDataset, own_random_state, seed_sample
from xnorpp.data.samples import read_sample, stack

Batch = tuple[Tensor, Tensor]


class IndexedLoader:
    """See the module's docstring and `make_loader`."""

    def __init__(
        self, dataset: IndexedDataset, share: Share, device: torch.device, seed: int, workers: int
    ) -> None:
        if workers < 0:
            raise ValueError(f"`workers` (={workers}) must be at least 0")
        self.dataset, self.share, self.device, self.seed = dataset, share, device, seed
        self.batch_size, self.samples = share.batch_size, len(dataset)
        self.skipped: list[Skipped] = []
        self.workers = workers
        self._order = _Order()
        self._loader: DataLoader[Any] | None = None
        self._normalise = ChannelsFirstNormaliser(dataset.info, device)

    @property
    def steps_per_epoch(self) -> int:
        return self.share.steps

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        steps = self.share.order(self.seed, epoch)[start_step:]
        if self.dataset.indices is not None:
            steps = [self.dataset.indices[step] for step in steps]
        if self.workers:
            self._order.steps = [[(epoch, int(index)) for index in step] for step in steps]
            batches: Iterator[Any] = iter(self._open())
        else:
            batches = (self._read(epoch, step) for step in steps)
        for images, labels in batches:
            if isinstance(images, str):  # a worker's complaint, in one sentence
                raise DatasetError(images)
            check_labels(labels, self.dataset.limit, self.dataset.where())
            yield self._on_device(images), labels.to(self.device, non_blocking=True)

    def _read(self, epoch: int, indices: Int64Array) -> tuple[Tensor, Tensor]:
        reader = _Reader(self.dataset, self.seed)
        with own_random_state():
            batch = [reader[epoch, int(index)] for index in indices]
        images, labels = reader.collate(batch)
        if isinstance(images, str):
            raise DatasetError(images)
        return images, labels

    def _open(self) -> DataLoader[Any]:
        """One set of processes for all epochs."""
        if self._loader is None:
            reader = _Reader(self.dataset, self.seed)
            self._loader = DataLoader(
                reader,  # type: ignore[arg-type]
                batch_sampler=self._order,
                num_workers=self.workers,
                collate_fn=reader.collate,
                persistent_workers=True,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # the processes' base seeds must not come from the run's numbers
            )
        return self._loader

    def _on_device(self, images: Tensor) -> Tensor:
        images = images.to(self.device, non_blocking=True)
        return self._normalise(images) if images.dtype == torch.uint8 else images

    def close(self) -> None:
        """Ends the reading processes; a later `epoch` starts new ones."""
        self._loader = None


class _Order:
    """The batches of an epoch, as lists of (epoch, index), for torch's DataLoader."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


class _Reader:
    """What a reading process does: seeds, reads, stacks. What is wrong with a sample is handed back as text,
    because an exception from another process arrives with a traceback instead of a sentence.
    """

    def __init__(self, dataset: IndexedDataset, seed: int) -> None:
        self.items, self.numbers, self.where = dataset.items, dataset.numbers, dataset.where()
        self.shape = tuple(dataset.shape)
        self.seed = seed

    def __getitem__(self, place: tuple[int, int]) -> Any:
        epoch, index = place
        seed_sample(self.seed, epoch, index)
        sample = self.items[index]
        try:
            return index, read_sample(sample, f"sample {index} of {self.where}")
        except DatasetError as error:
            return index, str(error)

    def collate(self, batch: list[Any]) -> Any:
        failure = next((found for _, found in batch if isinstance(found, str)), None)
        if failure is not None:
            return failure, None
        try:
            images, labels = stack([found for _, found in batch], [index for index, _ in batch], self.where)
        except DatasetError as error:
            return str(error), None
        if images.shape[1:] != self.shape:
            return (
                f"sample {batch[0][0]} of {self.where} has the shape {images.shape[1:]} and sample 0 "
                f"{self.shape}; all images must be alike, so resize or crop them to one size",
                None,
            )
        if self.numbers is not None:
            labels = self.numbers[labels]
        return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


class ChannelsFirstNormaliser:
    """uint8 (N, C, H, W) on a device to float32: `(x / 255 - mean) / std`."""

    def __init__(self, info: DatasetInfo, device: torch.device) -> None:
        self.mean, self.std = (
            torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]
            for values in (info.mean, info.std)
        )

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().div_(255.0).sub_(self.mean).div_(self.std)


def check_labels(labels: Tensor, limit: int | None, where: str) -> None:
    """Refuses a label that no output stands for; on a GPU it would end the process without a word of why.

    Labels that are on a device already are not looked at, which would wait for it.
    """
    if limit is None or labels.device.type != "cpu" or not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= limit:
        wrong = low if low < 0 else high
        raise DatasetError(
            f"{where} has the label {wrong}; the network has {limit} outputs, from 0 to {limit - 1}"
        )
