"""Batches of a user's own loader (a torch `DataLoader`, or another sized iterable), taken as they come.

Nothing is known about its samples, so a run resumes at the start of an epoch. Before each epoch of
training the global generators of `random`, numpy and torch are seeded by (seed, epoch), and `set_epoch` of
the loader's sampler is called: a loader whose randomness comes from those gives the same batches again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from xnorpp.data.dataset import DatasetError, Skipped
from xnorpp.data.loading.indexed import Batch, ChannelsFirstNormaliser, check_labels
from xnorpp.data.own import BatchesDataset, read_batch, seed_sample
from xnorpp.data.samples import channels_last, is_tensor


class BatchesLoader:
    """See the module's docstring and `make_loader`."""

    def __init__(
        self, dataset: BatchesDataset, train: bool, device: torch.device, seed: int, world_size: int
    ) -> None:
        self.dataset, self.train, self.device, self.seed = dataset, train, device, seed
        self.batch_size, self.samples = dataset.batch_size, len(dataset)
        self.skipped: list[Skipped] = []
        self._normalise = ChannelsFirstNormaliser(dataset.info, device)
        if train and world_size > 1 and not self._is_shared_out(world_size):
            raise DatasetError(
                f"{dataset.where()} is a {type(dataset.batches).__name__} that gives all {world_size} "
                "processes the same samples; give it a DistributedSampler, or give the data set itself"
            )

    def _samplers(self) -> list[object]:
        batches = self.dataset.batches
        inner = getattr(batches, "batch_sampler", None)
        return [getattr(batches, "sampler", None), inner, getattr(inner, "sampler", None)]

    def _is_shared_out(self, world_size: int) -> bool:
        return any(getattr(sampler, "num_replicas", None) == world_size for sampler in self._samplers())

    @property
    def steps_per_epoch(self) -> int:
        return len(self.dataset.batches)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        if self.train:
            seed_sample(self.seed, "epoch", epoch)
            for sampler in self._samplers():
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
                    break
        for batch in itertools.islice(self.dataset.batches, start_step, None):
            images, labels = (
                part if is_tensor(part) else torch.as_tensor(part)
                for part in read_batch(batch, self.dataset.where())
            )
            yield self._images(images), self._labels(labels)

    def _images(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            if images.ndim == 3:
                images = images[:, None]
            elif images.ndim == 4 and channels_last(tuple(images.shape[1:]), tensor=True):
                images = images.permute(0, 3, 1, 2)
            if tuple(images.shape[1:]) != tuple(self.dataset.shape):
                raise DatasetError(
                    f"a batch of {self.dataset.where()} has images of shape {tuple(images.shape[1:])} and "
                    f"the first one {tuple(self.dataset.shape)}; all images must be alike"
                )
            return self._normalise(images.to(self.device, non_blocking=True)).contiguous()
        if not images.is_floating_point():
            raise DatasetError(
                f"the images of a batch of {self.dataset.where()} are {images.dtype}; they must be uint8 or "
                "float"
            )
        return images.to(self.device, torch.float32, non_blocking=True)

    def _labels(self, labels: Tensor) -> Tensor:
        if labels.is_floating_point() or labels.is_complex():
            raise DatasetError(
                f"the labels of a batch of {self.dataset.where()} are {labels.dtype}; they must be whole "
                "numbers, the classes' indices"
            )
        check_labels(labels, self.dataset.limit, self.dataset.where())
        return labels.to(self.device, torch.int64, non_blocking=True)

    def close(self) -> None:
        """The loader is the user's; what it started it ends itself."""
