"""From a recipe to the things a run works with: data sets, loaders, the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from xnorpp.data import Preprocess, load_dataset, make_loader
from xnorpp.data.loading.prepare import prepare
from xnorpp.training.distributed import World, wait_for_all
from xnorpp.training.recipe.config import Recipe, RecipeError
from xnorpp.training.recipe.network import network_of


@dataclass(frozen=True)
class DataSets:
    """What is trained and tested on, and what testing does to a picture."""

    train: Any
    test: Any
    preprocess: Preprocess


def open_data(recipe: Recipe, root: str | Path | None, *, download: bool, world: World) -> DataSets:
    """The recipe's data set. With `data.holdout` the test part is held out of the training set.

    Downloads happen in the first process alone, and so does preparing (`data.prepare`); the others wait.
    """
    part = recipe.data
    name = part.dataset

    def load(split: str, **more: Any) -> Any:
        return load_dataset(name, root, split, download=download and world.leader, **more)

    def load_both() -> tuple[Any, Any]:
        if part.holdout:
            return (
                load("train", holdout=part.holdout, part="fit"),
                load("train", holdout=part.holdout, part="held"),
            )
        return load("train"), load("test")

    if part.prepare:
        if world.leader:
            if download:
                load_both()
            prepare(name, root, part.prepare)
        wait_for_all(world)
        name, root, download = "shards", part.prepare, False
    if download and not world.leader:
        wait_for_all(world)
    train, test = load_both()
    if download and world.leader:
        wait_for_all(world)
    if not part.holdout and getattr(train, "shards", None) == getattr(test, "shards", ()):
        raise RecipeError(
            f"The pattern {root} names the same shards for training and testing; name them train-* and "
            "val-*, or hold some out with `data.holdout`."
        )
    return DataSets(train, test, train.info.preprocess(part.size or None))


def make_loaders(recipe: Recipe, sets: DataSets, world: World) -> tuple[list[Any], Any]:
    """One training loader for each part this process takes of a batch, and the test loader.

    The batch is cut in world size * `run.accumulate` parts; process r has parts r * accumulate and on.
    """
    part, accumulate = recipe.data, recipe.run.accumulate
    parts = world.size * accumulate
    if part.batch_size % parts:
        raise RecipeError(
            f"`data.batch_size` (={part.batch_size}) must be a multiple of `run.accumulate` (={accumulate}) "
            f"times the number of processes (={world.size})."
        )
    shared: dict[str, Any] = {
        "device": world.device,
        "workers": part.workers,
        "size": part.size or None,
        "channels_last": recipe.run.channels_last,
    }
    train = [
        make_loader(
            sets.train,
            batch_size=part.batch_size // parts,
            train=True,
            seed=recipe.run.seed,
            rank=world.rank * accumulate + index,
            world_size=parts,
            augment=part.augment or None,
            **shared,
        )
        for index in range(accumulate)
    ]
    test = make_loader(
        sets.test,
        batch_size=max(1, part.batch_size // parts),
        train=False,
        rank=world.rank,
        world_size=world.size,
        **shared,
    )
    return train, test


def build_model(recipe: Recipe, sets: DataSets) -> nn.Module:
    return network_of(
        recipe.model,
        input_size=sets.preprocess.side,
        num_classes=len(sets.train.classes),
        in_channels=sets.preprocess.channels,
    )
