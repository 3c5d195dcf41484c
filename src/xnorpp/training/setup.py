"""From a recipe, and from what a user gave in its place, to the things a run works with: data, loaders, the
network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from xnorpp.data import Preprocess, StreamDataset, load_dataset, make_loader
from xnorpp.data.catalog import dataset_options, take_part
from xnorpp.data.dataset import ArrayDataset, Augment
from xnorpp.data.formats.folder import is_one_tree
from xnorpp.data.labels import in_order_of
from xnorpp.data.loading.prepare import prepare
from xnorpp.data.own import BatchesDataset, IndexedDataset, as_dataset, is_path
from xnorpp.runtime.registry import is_reference
from xnorpp.training.distributed import World, wait_for_all
from xnorpp.training.network import OWN, Source, describe, dry_run, own_network, recipe_network
from xnorpp.training.recipe.config import DataPart, Recipe, RecipeError


@dataclass(frozen=True)
class Given:
    """What a user gave instead of what the recipe names."""

    model: Source | None = None
    train_data: Any = None
    test_data: Any = None
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class DataSets:
    """What is trained and tested on, and what testing does to an image (None: only the user's code knows)."""

    train: Any
    test: Any
    preprocess: Preprocess | None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one input of the network."""
        if isinstance(self.train, (IndexedDataset, BatchesDataset)):
            return tuple(self.train.shape)
        if self.preprocess is not None:
            return (self.preprocess.channels, *self.preprocess.size)
        height, width, channels = self.train.images.shape[1:]
        return (channels, height, width)

    @property
    def num_classes(self) -> int | None:
        """None where neither names nor labels are known."""
        return len(self.train.classes) or None

    def class_names(self, outputs: int) -> list[str]:
        """The names of the network's outputs; none where they are not known."""
        return list(self.train.classes) if len(self.train.classes) == outputs else []


def open_data(
    recipe: Recipe, root: str | Path | None, *, download: bool, world: World, given: Given | None = None
) -> DataSets:
    """The recipe's data set, or the user's own. With `data.holdout` the test part is held out of the training
    set, unless `data.evaluate` asks for the test set: then nothing looks at what was held out.

    Downloads happen in the first process alone, and so does preparing (`data.prepare`); the others wait.
    """
    part = recipe.data
    if given is not None and given.train_data is not None:
        return _open_own(part, given)
    name = part.dataset
    options = _options(part)

    def load(split: str, **more: Any) -> Any:
        return load_dataset(name, root, split, download=download and world.leader, **options, **more)

    def load_both() -> tuple[Any, Any]:
        if part.holdout:
            fit = load("train", holdout=part.holdout, part="fit")
            if part.evaluate == "test":
                return fit, load("test")
            return fit, load("train", holdout=part.holdout, part="held")
        return load("train"), load("test")

    if part.prepare:
        if world.leader:
            if download or name == "folder":
                _check_apart(*load_both(), root)
            prepare(name, root, part.prepare)
        wait_for_all(world)
        name, root, download, options = "shards", part.prepare, False, {}
    if download and not world.leader:
        wait_for_all(world)
    train, test = load_both()
    if download and world.leader:
        wait_for_all(world)
    if not part.holdout or part.evaluate == "test":
        _check_apart(train, test, root)
    if part.max_skipped >= 0 and "max_skipped" not in options and not isinstance(train, StreamDataset):
        raise RecipeError(
            f"`data.max_skipped` (={part.max_skipped}) is not used by {part.dataset!r}, which has no image "
            "files to skip; leave it out."
        )
    return _together(part, train, test)


def _options(part: DataPart) -> dict[str, Any]:
    """The recipe's keys that are arguments of the data set itself."""
    options = dict(part.options)
    known = dataset_options(part.dataset)
    if part.size and "size" in known:
        options.setdefault("size", part.size)
    if part.max_skipped >= 0 and "max_skipped" in known:
        options.setdefault("max_skipped", part.max_skipped)
    if part.channels:
        if "channels" not in known:
            raise RecipeError(
                f"`data.channels` (={part.channels}) is not used by {part.dataset!r}, whose images have the "
                "channels they have; leave it out."
            )
        options.setdefault("channels", part.channels)
    for key in part.options:
        if key not in known:
            raise RecipeError(
                f"`data.options.{key}` is not used by {part.dataset!r}; its options are "
                f"{', '.join(known) or 'none'}."
            )
    return options


def _check_apart(train: Any, test: Any, root: Any) -> None:
    """Refuse to test on what was trained on."""
    if getattr(train, "shards", None) == getattr(test, "shards", ()):
        raise RecipeError(
            f"The pattern {root} names the same shards for training and testing; name them train-* and "
            "val-*, or hold some out with `data.holdout`."
        )
    folder = train.name == "folder" == test.name
    if folder and train.split != test.split and train.info.train_size == test.info.test_size:
        same_images = isinstance(train, ArrayDataset) and isinstance(test, ArrayDataset)
        same = (
            train.images.shape == test.images.shape and bool((train.images == test.images).all())
            if same_images
            else getattr(train, "paths", None) == getattr(test, "paths", ())
        )
        if same and not is_one_tree(root):
            raise RecipeError(
                f"The training and the test folder in {root} hold the same images; put other ones into "
                "one of them."
            )
        if same:
            raise RecipeError(
                f"{root} is one tree of classes, the same for training and testing; hold a share of it out "
                "(--set data.holdout=0.2), or make train/ and val/ in it."
            )


def _open_own(part: DataPart, given: Given) -> DataSets:
    """The user's own training and test data, a folder's path among them."""
    for key in ("prepare", "channels", "options"):
        if getattr(part, key) and not (is_path(given.train_data) and key == "channels"):
            raise RecipeError(f"`data.{key}` (={getattr(part, key)!r}) is not used with `train_data`.")
    train = given.train_data
    size: dict[str, Any] = {"size": part.size or None, "channels": part.channels or None}
    skipped: dict[str, Any] = {"max_skipped": part.max_skipped} if part.max_skipped >= 0 else {}
    if is_path(train):
        train = load_dataset("folder", given.train_data, "train", **size, **skipped)
    else:
        train = as_dataset(train, split="train", classes=given.classes)
    test = given.test_data
    if part.holdout:
        if test is not None and part.evaluate == "held":
            raise RecipeError(
                f"`data.holdout` (={part.holdout}) is not used with `test_data`, unless `data.evaluate` is "
                "'test'; leave it out."
            )
        if isinstance(train, BatchesDataset):
            raise RecipeError(
                f"`data.holdout` (={part.holdout}) needs data of which a part can be taken; "
                "`train_data` is a loader, so give `test_data`."
            )
        whole, train = train, take_part(train, part.holdout, "fit")
        if part.evaluate == "held":
            return _together(part, train, take_part(whole, part.holdout, "held"))
    if test is None:
        if is_path(given.train_data):
            test = load_dataset("folder", given.train_data, "test", **size, **skipped)
            _check_apart(train, test, given.train_data)
        else:
            raise RecipeError(
                "`test_data` must be given with `train_data`, or a share to hold out of it (`data.holdout`)."
            )
    elif is_path(test):
        info = train.info
        like = {"size": part.size or info.image_size or None, "channels": info.channels, **skipped}
        test = load_dataset("folder", test, "test", resize=info.resize or like["size"], **like)
    else:
        test = as_dataset(test, split="test", classes=given.classes)
    return _together(part, train, test)


def _together(part: DataPart, train: Any, test: Any) -> DataSets:
    """Both sets with one numbering of the classes, one normalisation and one shape."""
    if train.classes and test.classes and not isinstance(test, BatchesDataset):
        if _are_numbers(train.classes) and _are_numbers(test.classes):
            names = max(train.classes, test.classes, key=len)
            train, test = replace(train, classes=names), replace(test, classes=names)
        else:
            test = in_order_of(test, train.classes)
    train = _normalised(part, train)
    if train.info.channels == test.info.channels:
        test = replace(test, info=replace(test.info, mean=train.info.mean, std=train.info.std))
    shapes = [_shape(part, dataset) for dataset in (train, test)]
    if shapes[0] != shapes[1]:
        raise RecipeError(
            f"The training data has samples of shape {shapes[0]} and the test data {shapes[1]}; they must be "
            "alike."
        )
    pixels = isinstance(train, (ArrayDataset, StreamDataset)) or train.pixels
    return DataSets(train, test, _preprocess(part, train) if pixels else None)


def _are_numbers(classes: tuple[str, ...]) -> bool:
    """Whether the names only count the classes, so that a longer list is the same one."""
    return classes == tuple(str(number) for number in range(len(classes)))


def _normalised(part: DataPart, dataset: Any) -> Any:
    """The data set with the recipe's mean and standard deviation, where it has them."""
    changes: dict[str, Any] = {}
    for key in ("mean", "std"):
        values = getattr(part, key)
        if values:
            if len(values) not in (1, dataset.info.channels):
                raise RecipeError(
                    f"`data.{key}` (={list(values)}) must have one number, or one for each of the "
                    f"{dataset.info.channels} channels."
                )
            changes[key] = values if len(values) > 1 else values * dataset.info.channels
    return replace(dataset, info=replace(dataset.info, **changes)) if changes else dataset


def _shape(part: DataPart, dataset: Any) -> tuple[int, ...]:
    if isinstance(dataset, (IndexedDataset, BatchesDataset)):
        return tuple(dataset.shape)
    if part.size:
        return (dataset.info.channels, part.size, part.size)
    if isinstance(dataset, ArrayDataset):
        height, width, channels = dataset.images.shape[1:]
        return (channels, height, width)
    return (dataset.info.channels, dataset.info.image_size, dataset.info.image_size)


def _preprocess(part: DataPart, dataset: Any) -> Preprocess | None:
    """None for what is not an image, such as one of five channels."""
    info, shape = dataset.info, _shape(part, dataset)
    try:
        if info.image_size or part.size:
            made: Preprocess = info.preprocess(part.size or None)
            return made
        size = (shape[1], shape[2])  # the user's own images, which are not square
        return Preprocess(size, size, info.mean, info.std, shape[0])
    except (ValueError, IndexError):
        return None


def _check_classes(train: Any) -> None:
    """Refuse to train on class folders of which there is one alone, or of which one has no images."""
    if train.info.name != "folder":
        return
    if len(train.classes) < 2:
        raise RecipeError(
            f"The data has one class folder, {train.classes[0]!r}, and a classifier needs at least two; make "
            "one for the images that show something else."
        )
    present = set(train.labels.tolist())
    empty = [name for label, name in enumerate(train.classes) if label not in present]
    if empty:
        raise RecipeError(f"The class {empty[0]!r} has no training images; add some, or remove its folder.")


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
    if len(sets.train) < part.batch_size and not isinstance(sets.train, BatchesDataset):
        raise RecipeError(
            f"`data.batch_size` (={part.batch_size}) must be at most {len(sets.train)}, the number of "
            "training images; choose a smaller one (on the command line: --batch-size)."
        )
    if not isinstance(sets.test, BatchesDataset) and not len(sets.test):
        raise RecipeError(
            f"`data.holdout` (={part.holdout}) holds out none of the {len(sets.train)} training images; "
            "choose a larger share."
            if part.holdout
            else "The test set has no images."
        )
    _check_classes(sets.train)
    shared: dict[str, Any] = {
        "device": world.device,
        "workers": part.workers,
        "size": part.size or None,
        "enlarge": part.enlarge,
        "channels_last": recipe.run.channels_last,
        "max_skipped": part.max_skipped if part.max_skipped >= 0 else None,
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


def statistics_loader(recipe: Recipe, sets: DataSets, world: World, loader: Any) -> Any:
    """What batch norm's statistics are measured on: the training loader, or one of plain images
    (`schedule.statistics_images`).
    """
    if recipe.schedule.statistics_images == "training":
        return loader
    return plain_loader(recipe, sets, world, loader)


def plain_loader(recipe: Recipe, sets: DataSets, world: World, loader: Any) -> Any:
    """The training loader, or where that changes the looks of its images more than by crop and flip, one that
    does not.
    """
    if isinstance(sets.train, (IndexedDataset, BatchesDataset)):
        return loader
    augment = Augment.parse(recipe.data.augment or None, sets.train.info.default_augment)
    if augment == augment.plain:
        return loader
    return make_loaders(plain_recipe(recipe, sets.train), sets, world)[0][0]


def plain_recipe(recipe: Recipe, dataset: ArrayDataset | StreamDataset) -> Recipe:
    """The recipe with crop and flip alone. Where random resized crops take the place of padded ones, there is
    no crop: the network has never seen black borders.
    """
    augment = Augment.parse(recipe.data.augment or None, dataset.info.default_augment)
    crop = augment.crop and not (augment.area and isinstance(dataset, ArrayDataset))
    return recipe.replace(data__augment={"crop": crop, "pad": augment.pad, "flip": augment.flip})


def make_train_check(recipe: Recipe, sets: DataSets, world: World) -> Any:
    """A loader of training images as the test loader gives them: in order, without augmentation.

    Evenly spaced images, as many as the test set has (or all, where there are fewer): the same in every run,
    and of each class its share where the set is sorted by class.
    """
    count = min(len(sets.test), len(sets.train))
    chosen = np.arange(count, dtype=np.int64) * len(sets.train) // count
    return make_loader(
        sets.train.subset(chosen),
        batch_size=max(1, recipe.data.batch_size // (world.size * recipe.run.accumulate)),
        train=False,
        rank=world.rank,
        world_size=world.size,
        device=world.device,
        workers=recipe.data.workers,
        size=recipe.data.size or None,
        enlarge=recipe.data.enlarge,
        channels_last=recipe.run.channels_last,
        max_skipped=recipe.data.max_skipped if recipe.data.max_skipped >= 0 else None,
    )


def build_model(
    recipe: Recipe, sets: DataSets, given: Given | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The run's network and its configuration, which goes into checkpoints."""
    source = None if given is None else given.model
    size = tuple(sets.shape[1:])
    expected: dict[str, Any] = {
        "input_size": size[0] if len(size) == 2 and size[0] == size[1] else size,
        "num_classes": sets.num_classes,
        "in_channels": sets.shape[0] if sets.shape else 1,
    }
    if recipe.run.channels_last and len(sets.shape) != 3:
        raise RecipeError(
            f"`run.channels_last` is for images; the samples have the shape {tuple(sets.shape)}."
        )
    if source is None and not is_reference(recipe.model.name):
        if sets.num_classes is None or len(size) != 2:
            what = "the number of classes is" if len(size) == 2 else "images of height and width are"
            raise RecipeError(
                f"The network {recipe.model.name!r} needs to know more of `train_data`: {what} missing; give "
                "`classes` (a list of names), or `model`."
            )
        model = recipe_network(recipe.model, **expected)
        config: Any = model.config
        _limit_labels(sets, config["num_classes"])
        return model, config
    if source is None:
        model, name = recipe_network(recipe.model, **expected), recipe.model.name
    else:
        model, name = own_network(source, **expected), source if isinstance(source, str) else OWN
    device = next((one.device for one in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    outputs = dry_run(model, torch.zeros((2, *sets.shape), device=device))
    classes = sets.num_classes or outputs
    if outputs < classes or (outputs > classes and not _are_numbers(sets.train.classes)):
        raise RecipeError(f"The network has {outputs} outputs and the training data {classes} classes.")
    _limit_labels(sets, outputs)
    named = recipe.model if source is None else None
    return model, describe(model, name, tuple(sets.shape), outputs, named)


def _limit_labels(sets: DataSets, outputs: int) -> None:
    """The user's own data is watched for labels that no output stands for."""
    for dataset in (sets.train, sets.test):
        if isinstance(dataset, (IndexedDataset, BatchesDataset)):
            dataset.limit = outputs
