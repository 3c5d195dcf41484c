"""`train`: what may be given to it, and what becomes of it before the loop starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xnorpp.data.own import OWN as OWN_DATA
from xnorpp.data.own import BatchesDataset, as_dataset, is_path
from xnorpp.training.distributed import World, join_world
from xnorpp.training.loop import _Run
from xnorpp.training.network import OWN
from xnorpp.training.recipe.config import Recipe, RecipeError
from xnorpp.training.recipe.library import as_recipe
from xnorpp.training.setup import Given


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | Callable[..., nn.Module] | str | None = None,
    train_data: Any = None,
    test_data: Any = None,
    classes: Sequence[str] | None = None,
    out: str | Path,
    data: str | Path | None = None,
    resume: bool = False,
    init_from: str | Path | None = None,
    device: str = "auto",
    download: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Trains a network, the recipe's or your own, on the recipe's data set or your own data.

    Args:
        recipe: A recipe, its name, a TOML file, a table of what differs from the defaults, or None for the
            defaults.
        model: Your own network instead of the recipe's [model] section: an `nn.Module`, which is trained in
            place; a function or class that makes one, called with those of `num_classes`, `in_channels` and
            `input_size` that it has as parameters; or `package.module:function`. It maps a batch to scores of
            shape (N, classes).
        train_data: Your own data instead of the recipe's data set: a torch `Dataset` or anything else with
            `__len__` and `__getitem__` that gives (image, label) pairs; a `DataLoader`; a pair of arrays
            (images, labels); or the path of a folder with class folders. uint8 images are normalised with
            `data.mean` and `data.std` (by default only divided by 255); float data is used as it is.
        test_data: What is evaluated on, of the same kinds; None with `data.holdout`, or for a folder that
            has both train/ and val/.
        classes: The names of the classes of `train_data`, where it does not have them as `classes`.
        out: The run's folder: gets model.safetensors (the result), checkpoints/, metrics.jsonl, summary.json
            and curves.png.
        data: Where the recipe's data set lies.
        resume: Go on from the newest checkpoint in `out` that verifies; start if there is none.
        init_from: A checkpoint or state_dict to start from.
        device: "auto", "cpu", "cuda" or "cuda:N".
        download: Get the recipe's data set where it is missing.
        quiet: Print nothing.

    Returns:
        The summary that is also written to `out`/summary.json; its `metrics` has `top1`, `top5` and `loss`.

    Raises:
        RecipeError: The recipe, or what was given beside it, cannot be used.
        DatasetError: The data cannot be used.
        NonFiniteLoss: The loss became infinite or NaN.

    Example:
        >>> import tempfile, torch
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> images, labels = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
        >>> recipe = {"schedule.epochs": 1, "data.batch_size": 16, "run.tensorboard": False}
        >>> data = {"train_data": (images, labels), "test_data": (images, labels)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     summary = train(recipe, model=net, **data, out=folder, quiet=True)
        >>> sorted(summary["metrics"])[:3]
        ['loss', 'top1', 'top5']
    """
    recipe = as_recipe(recipe)
    if not isinstance(out, (str, os.PathLike)):
        raise TypeError(f"`out` is {type(out).__name__}; the path of the run's folder is needed")
    if train_data is None:
        for name, value in (("test_data", test_data), ("classes", classes)):
            if value is not None:
                raise RecipeError(f"`{name}` needs `train_data`, your own training data.")
    elif data is not None or download:
        name = "data" if data is not None else "download"
        raise RecipeError(f"`{name}` is for the recipe's data set and is not used with `train_data`.")
    elif is_path(train_data) and classes is not None:
        raise RecipeError("`classes` is not used with a folder, whose classes are named by its folders.")
    given = Given(model, _read(train_data, "train", classes), _read(test_data, "test", classes), classes)
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    with _cudnn_benchmark(recipe.run.cudnn_benchmark), join_world(device) as world:
        settled = _settle(recipe, given, world)
        before = model.training if isinstance(model, nn.Module) else None
        try:
            return _Run(settled, Path(out), world, quiet, given).go(data, resume, init_from, download)
        finally:
            if isinstance(model, nn.Module) and before is not None:
                model.train(before)


def _read(data: Any, split: str, classes: Sequence[str] | None) -> Any:
    return data if data is None or is_path(data) else as_dataset(data, split=split, classes=classes)


def _settle(recipe: Recipe, given: Given, world: World) -> Recipe:
    """The recipe as it is recorded: it names what it does not decide here `own`."""
    settings: dict[str, Any] = {}
    if given.model is not None:
        settings["model__name"] = given.model if isinstance(given.model, str) else OWN
    if given.train_data is not None:
        settings["data__dataset"] = "folder" if is_path(given.train_data) else OWN_DATA
    if isinstance(given.train_data, BatchesDataset):
        _check_batches(recipe)
        settings["data__batch_size"] = given.train_data.batch_size * world.size
        settings["run__cuda_graph"] = "off"  # its batches may differ in size
    return recipe.replace(**settings) if settings else recipe


def _check_batches(recipe: Recipe) -> None:
    """What cannot be done with a loader, of which only whole epochs can be taken."""
    why = "`train_data` is a loader, which can only be read from the start of an epoch"
    if recipe.run.save_steps:
        raise RecipeError(f"`run.save_steps` (={recipe.run.save_steps}) must be 0: {why}.")
    if recipe.run.accumulate > 1:
        raise RecipeError(
            f"`run.accumulate` (={recipe.run.accumulate}) must be 1: `train_data` is a loader, whose batches "
            "are taken as they are."
        )
    if recipe.run.eval_train:
        raise RecipeError(
            "`run.eval_train` (=True) must be false: `train_data` is a loader, of which no part can be taken "
            "without augmentation."
        )
    if recipe.run.cuda_graph == "on":
        raise RecipeError(
            "`run.cuda_graph` (='on') must be 'auto' or 'off': `train_data` is a loader, whose batches may "
            "differ in size."
        )


@contextlib.contextmanager
def _cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """cuDNN's own guess is far off for few channels; the shapes of a run never change, so timing pays."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
