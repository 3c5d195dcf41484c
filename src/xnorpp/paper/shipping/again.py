"""What may be done once more to a trained network before it is packed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xnorpp.data import Dataset, load_dataset, make_loader
from xnorpp.data.progress import Progress
from xnorpp.training.output_layer import fit_output_layer
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.setup import plain_recipe
from xnorpp.training.statistics import measure_statistics

Say = Callable[[str], None]


def measure_again(
    model: nn.Module, meta: Mapping[str, Any], data: str | Path | None, batches: int, device: str, say: Say
) -> None:
    """Batch norm's statistics in float32 over augmented training images, without those that are held out; the
    run did not do it itself, or on other images.
    """
    recipe = Recipe.from_dict(meta["recipe"])
    images = _training_images(recipe, meta, data)
    with _batches(recipe, images, device, batches, "measuring batch norm's statistics") as some:
        seen = measure_statistics(model.to(device), (batch for batch, _ in some))
    model.cpu()
    say(f"batch norm's statistics re-estimated on {seen:,} training images")


def fit_again(
    model: nn.Module, meta: Mapping[str, Any], data: str | Path | None, batches: int, device: str, say: Say
) -> None:
    """The output layer, by itself, on training images as `plain_loader` of a run has them."""
    recipe = Recipe.from_dict(meta["recipe"])
    images = _training_images(recipe, meta, data)
    plain = plain_recipe(recipe, images)
    with _batches(plain, images, device, batches, "fitting the output layer") as some:
        fit_output_layer(model.to(device), some, recipe.run.seed)
    model.cpu()
    say(f"output layer fitted again on up to {batches * recipe.data.batch_size:,} training images")


def _training_images(recipe: Recipe, meta: Mapping[str, Any], data: str | Path | None) -> Dataset:
    """Without those that are held out."""
    holdout = recipe.data.holdout
    part = "fit" if holdout else None
    images: Dataset = load_dataset(meta["dataset"], data, "train", holdout=holdout, part=part)
    return images


@contextlib.contextmanager
def _batches(
    recipe: Recipe, images: Dataset, device: str, count: int, what: str
) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Batches of images as the recipe augments them."""
    loader = make_loader(
        images,
        batch_size=recipe.data.batch_size,
        train=True,
        device=device,
        seed=recipe.run.seed,
        augment=recipe.data.augment or None,
        size=recipe.data.size or None,
    )
    progress = Progress(what, count * recipe.data.batch_size, "images")

    def some() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in itertools.islice(loader.epoch(recipe.schedule.epochs), count):
            yield images, labels
            progress.advance(len(images))

    try:
        yield some()
    finally:
        progress.close()
        loader.close()
