"""What happens to a training batch on the device besides crop and flip: random resized crop, RandAugment,
cutout, mixup.

The numbers are drawn on the host, by (seed, epoch, step) and for the global batch (see `order`); the device
applies them to the whole batch at once. All that moves pixels becomes one affine map per image, sampled once.
Every operation is applied to every image, with a strength that changes nothing where it was not drawn.

papers: Szegedy et al. 2015, https://arxiv.org/abs/1409.4842 (random resized crop); Cubuk et al. 2020,
"RandAugment", https://arxiv.org/abs/1909.13719; DeVries and Taylor 2017, "Cutout",
https://arxiv.org/abs/1708.04552; Zhang et al. 2018, "mixup", https://arxiv.org/abs/1710.09412; Touvron et al.
2019, "Fixing the train-test resolution discrepancy", https://arxiv.org/abs/1906.06423 (smaller crops)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from xnorpp.data.dataset import Augment
from xnorpp.data.loading.order import FloatArray, Share

OPERATIONS = (
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y", "brightness", "contrast", "saturation",
    "posterize", "solarize",
)  # fmt: skip
ASPECT = math.log(4 / 3)  # the largest logarithm of width over height of a random resized crop
# What an operation does at magnitude 1: radians, shear, share of the side, change of a factor, bits, levels.
_LARGEST = dict(zip(OPERATIONS, (math.pi / 6, 0.3, 0.3, 0.3, 0.3, 0.9, 0.9, 0.9, 4.0, 256.0), strict=True))
_UNSIGNED = ("posterize", "solarize")
# Columns of random numbers per image: crop (4), cutout (2), which operations, how strong each is.
_CROP, _CUT = slice(0, 4), slice(4, 6)
_CHOICE, _STRENGTH = (slice(6 + n * len(OPERATIONS), 6 + (n + 1) * len(OPERATIONS)) for n in (0, 1))
_COLUMNS = 6 + 2 * len(OPERATIONS)


class BatchAugment:
    """The augmentation of one rank's batches, after their crop and flip."""

    def __init__(self, augment: Augment, share: Share, seed: int, classes: int, device: torch.device) -> None:
        self.augment, self.share, self.seed = augment, share, seed
        self.classes, self.device = classes, device
        self.moves = bool(augment.area or augment.operations)
        self.active = bool(self.moves or augment.cutout or augment.mixup)

    def pixels(self, images: Tensor, epoch: int, step: int) -> Tensor:
        """Random resized crop and RandAugment: images (N, H, W, C) with values from 0 to 255, as float; of
        `side` pixels where that is set."""
        if not self.moves:
            return images
        drawn = self.share.uniform(self.seed, epoch, step, _COLUMNS)
        strengths = self._strengths(drawn)
        planes = images.permute(0, 3, 1, 2).float()
        maps = torch.from_numpy(self._maps(drawn, strengths)).to(self.device, non_blocking=True)
        side = self.augment.side
        size = (side, side) if side else planes.shape[2:]
        grid = functional.affine_grid(maps, [*planes.shape[:2], *size], align_corners=False)
        planes = functional.grid_sample(planes, grid, padding_mode="zeros", align_corners=False)
        if strengths is not None:
            values = np.stack([strengths[name] for name in OPERATIONS[5:]]).astype(np.float32)
            planes = recolour(planes, torch.from_numpy(values).to(self.device, non_blocking=True))
        return planes.permute(0, 2, 3, 1)

    def _strengths(self, drawn: FloatArray) -> dict[str, FloatArray] | None:
        """Of each operation, one number per image: 0 where it was not drawn."""
        if not self.augment.operations:
            return None
        # The images' `operations` smallest of one random number per operation: a draw without replacement.
        order = np.argsort(np.argsort(drawn[:, _CHOICE], axis=1), axis=1)
        chosen = order < self.augment.operations
        found = {}
        for column, name in enumerate(OPERATIONS):
            share = drawn[:, _STRENGTH][:, column]
            signed = share if name in _UNSIGNED else 2 * share - 1
            found[name] = signed * chosen[:, column] * self.augment.magnitude * _LARGEST[name]
        return found

    def _maps(self, drawn: FloatArray, strengths: dict[str, FloatArray] | None) -> np.ndarray:
        """One 2x3 matrix per image, from places in the new image to places in the old one, both from -1 to
        1."""
        maps = np.tile(np.eye(2, 3), (len(drawn), 1, 1))
        if strengths is not None:
            cos, sin = np.cos(strengths["rotate"]), np.sin(strengths["rotate"])
            rotation = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
            shear = np.tile(np.eye(2), (len(drawn), 1, 1))
            shear[:, 0, 1], shear[:, 1, 0] = strengths["shear_x"], strengths["shear_y"]
            maps[:, :, :2] = rotation @ shear
            maps[:, 0, 2], maps[:, 1, 2] = 2 * strengths["translate_x"], 2 * strengths["translate_y"]
        if self.augment.area:
            area, aspect, across, down = drawn[:, _CROP].T
            share = self.augment.area + (1 - self.augment.area) * area
            ratio = np.exp((2 * aspect - 1) * ASPECT)
            width = np.minimum(1, np.sqrt(share * ratio))
            height = np.minimum(1, np.sqrt(share / ratio))
            scale = np.stack([width, height], -1)
            centre = (2 * np.stack([across, down], -1) - 1) * (1 - scale)
            maps[:, :, 2] += np.einsum("nij,nj->ni", maps[:, :, :2], centre)
            maps[:, :, :2] *= scale[:, None, :]
        return maps.astype(np.float32)

    def finish(self, images: Tensor, labels: Tensor, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Cutout and mixup of normalised images (N, C, H, W), whose mean colour is 0. With mixup the labels
        become one row of probabilities per image."""
        if self.augment.cutout:
            drawn = self.share.uniform(self.seed, epoch, step, _COLUMNS)[:, _CUT]
            images = cut_out(images, torch.from_numpy(drawn).to(images.device), self.augment.cutout)
        if self.augment.mixup:
            shares = self.share.mixture(self.seed, epoch, step, self.augment.mixup).astype(np.float32)
            return mix(images, labels, torch.from_numpy(shares).to(images.device), self.classes)
        return images, labels


def recolour(planes: Tensor, strengths: Tensor) -> Tensor:
    """Brightness, contrast, saturation, posterisation and solarisation of (N, C, H, W) with values from 0 to
    255, by the rows of `strengths` (5, N): changes of a factor (three times), bits dropped, levels below 256
    from which values are inverted."""
    brightness, contrast, saturation, bits, levels = strengths[:, :, None, None, None]
    planes = planes * (1 + brightness)
    grey = planes.mean(1, keepdim=True)
    centre = grey.mean((2, 3), keepdim=True)
    planes = (centre + (planes - centre) * (1 + contrast)).clamp(0, 255)
    if planes.shape[1] == 3:
        grey = planes.mean(1, keepdim=True)
        planes = (grey + (planes - grey) * (1 + saturation)).clamp(0, 255)
    level = torch.exp2(bits.round())
    planes = torch.where(level > 1, (planes / level).floor() * level, planes)
    return torch.where((levels > 0) & (planes >= 256 - levels), 255 - planes, planes)


def cut_out(images: Tensor, centres: Tensor, side: int) -> Tensor:
    """Zeros in a square of `side` pixels around `centres` (N, 2), which are shares of the height and width;
    it may reach over the border."""
    height, width = images.shape[2:]
    top = (centres[:, 0] * height).floor() - side // 2
    left = (centres[:, 1] * width).floor() - side // 2
    rows = torch.arange(height, device=images.device)[None] - top[:, None]
    columns = torch.arange(width, device=images.device)[None] - left[:, None]
    inside = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None, :]
    return images.masked_fill(inside[:, None], 0.0)


def mix(images: Tensor, labels: Tensor, shares: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Each image with its neighbour (0 with 1, 2 with 3, ...), and their labels likewise.

    The order of a batch is random already, and neighbours lie in the same part of a batch however many
    processes share it.
    """
    count = len(images)
    partners = torch.arange(count, device=images.device)
    even = count - count % 2
    partners[:even] = partners[:even] ^ 1
    shares = shares[:count]
    targets = functional.one_hot(labels, classes).float()
    mixed = torch.lerp(images[partners], images, shares[:, None, None, None])
    return mixed, torch.lerp(targets[partners], targets, shares[:, None])
