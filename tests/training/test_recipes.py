"""Every shipped recipe loads, builds and trains a step; the paper's rows have the paper's numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xnorpp.data import dataset_info
from xnorpp.data.dataset import ArrayDataset
from xnorpp.training import list_recipes, load_recipe, paper_rows
from xnorpp.training.distributed import World
from xnorpp.training.optimizer import make_optimizer
from xnorpp.training.recipe.config import Recipe, RecipeError
from xnorpp.training.recipe.library import recipe_folders, show_recipe
from xnorpp.training.setup import DataSets, build_model, make_loaders
from xnorpp.training.teacher import training_loss

# Smaller images and hidden layers where the full size would only cost time. The stem stays ImageNet's.
SMALLER = {
    "imagenet-resnet18": ("data.size=64", "model.options.stem=7x7", "model.options.stem_pool=true"),
    "imagenet-alexnet": ("data.size=67", "model.options.hidden=32"),
    "tiny-imagenet-resnet18": ("data.size=32", "model.options.stem_pool=true"),
    "cifar10-resnet18": ("data.size=16",),
    "cifar100-resnet18": ("data.size=16",),
}
PAPER_ROWS = {
    "table1-baseline": ("resnet18", "xnor", "alpha_k", 51.2, 73.2),
    "table1-case1": ("resnet18", "xnor++", "channel", 55.5, 78.5),
    "table1-case2": ("resnet18", "xnor++", "dense", 56.1, 79.0),
    "table1-case3": ("resnet18", "xnor++", "channel_spatial", 56.7, 79.5),
    "table1-case4": ("resnet18", "xnor++", "channel_height_width", 57.1, 79.9),
    "table3-alexnet-bnn": ("alexnet", "bnn", "default", 41.8, 67.1),
    "table3-alexnet-xnor": ("alexnet", "xnor", "alpha_k", 44.2, 69.2),
    "table3-alexnet-ours": ("alexnet", "xnor++", "channel_height_width", 46.9, 71.0),
    "table3-alexnet-real": ("alexnet", "real", "default", 56.6, 80.2),
    "table3-resnet18-bnn": ("resnet18", "bnn", "default", 42.2, 69.2),
    "table3-resnet18-xnor": ("resnet18", "xnor", "alpha_k", 51.2, 73.2),
    "table3-resnet18-bethge": ("resnet18", "bnn", "default", 54.4, 77.5),
    "table3-resnet18-ours": ("resnet18", "xnor++", "channel_height_width", 57.1, 79.9),
    "table3-resnet18-real": ("resnet18", "real", "default", 69.3, 89.2),
}


def _synthetic(recipe: Recipe, count: int = 4) -> DataSets:
    info = dataset_info(recipe.data.dataset)
    size = recipe.data.size or info.image_size
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, size, size, info.channels), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64)
    classes = tuple(str(index) for index in range(info.classes or count))
    both = ArrayDataset(info, "train", classes, images, labels)
    return DataSets(both, both, info.preprocess(size))


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_loads_builds_and_trains_a_step(name: str) -> None:
    smaller: tuple[str, ...] = next(
        (SMALLER[family] for family in SMALLER if name.startswith(family + "-")), ()
    )
    recipe = load_recipe(name, [*smaller, "data.batch_size=2"])
    sets = _synthetic(recipe)
    torch.manual_seed(0)
    model, _ = build_model(recipe, sets)
    world = World()
    loaders, _ = make_loaders(recipe, sets, world)
    optimizer = make_optimizer(model, recipe.optimizer, world.device)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    images, labels = next(iter(loaders[0].epoch(0)))
    loss = training_loss(model(images), labels)
    loss.backward()
    optimizer.step()
    assert math.isfinite(loss.item())
    moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    still = {
        key for key, value in model.named_parameters() if value.grad is not None and value.grad.any()
    } - moved
    assert not still
    assert len(moved) > len(before) * 0.7


def test_the_papers_fourteen_rows_are_all_there() -> None:
    assert set(paper_rows()) == set(PAPER_ROWS)
    assert len(PAPER_ROWS) == 14


@pytest.mark.parametrize("row", sorted(PAPER_ROWS))
def test_a_row_of_the_paper_has_the_papers_numbers(row: str) -> None:
    name, method, scale, top1, top5 = PAPER_ROWS[row]
    recipe = load_recipe(row)
    assert row in recipe.paper.rows
    assert recipe.name == paper_rows()[row]
    assert (recipe.model.name, recipe.model.method, recipe.model.scale) == (name, method, scale)
    assert (recipe.paper.top1, recipe.paper.top5) == (top1, top5)
    assert recipe.data.dataset == "imagenet"
    assert recipe.data.batch_size == (400 if name == "alexnet" else 256)
    assert (recipe.data.size or 224) == (227 if name == "alexnet" else 224)
    assert (recipe.optimizer, recipe.schedule, recipe.loss) == (
        Recipe().optimizer,
        Recipe().schedule,
        Recipe().loss,
    )


def test_bethge_is_our_reading_and_says_so() -> None:
    recipe = load_recipe("table3-resnet18-bethge")
    assert recipe.model.method == "bnn"
    assert recipe.model.options["shortcut"] == "conv"
    assert recipe.model.options["downsample"] == "real"
    text = next(folder / "imagenet-resnet18.toml" for folder in recipe_folders()).read_text()
    assert "Our reading of Bethge et al." in text


def test_each_data_set_has_each_method() -> None:
    rows = ("real", "bnn", "xnor", "xnor-alpha", "case1", "case2", "case3", "case4")
    families = ("tiny-imagenet-resnet18", "cifar10-resnet18", "cifar10-resnet20", "cifar100-resnet18",
                "fashion-mnist-small", "digits-small")  # fmt: skip
    assert {f"{family}-{row}" for family in families for row in rows} <= set(list_recipes())


def test_an_unknown_recipe_lists_the_nearest() -> None:
    with pytest.raises(
        RecipeError, match="There is no recipe 'digit-small-case4'; the nearest are digits-small-case4, "
    ):
        load_recipe("digit-small-case4")


def test_overrides_do_not_leak_into_the_next_recipe() -> None:
    load_recipe("digits-small-case4", ["model.options.width=4", "optimizer.lr=9", "data.batch_size=1"])
    assert load_recipe("digits-small-case4").data.batch_size > 1
    assert "width" not in load_recipe("digits-small-case1").model.options


def test_a_file_extends_a_recipe_and_states_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "table1-case4"\n[optimizer]\nlr = 0.002\n')
    recipe = load_recipe(path)
    assert (recipe.name, recipe.optimizer.lr, recipe.data.batch_size) == ("mine", 0.002, 256)
    assert recipe.paper.rows == ()
    assert load_recipe(str(path), ["optimizer.lr=0.1"]).optimizer.lr == 0.1


def test_a_file_with_variants_needs_one_chosen(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[variants]\na = { run = { seed = 1 } }\nb = { run = { seed = 2 } }\n")
    assert load_recipe(f"{path}#b").run.seed == 2
    with pytest.raises(RecipeError, match=r"holds 2 recipes; choose one of .*mine.toml#a, .*mine.toml#b"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = = 1", "is not valid TOML"),
        ('extends = "mine.toml"', "goes round in a circle"),
        ("extends = 3", "`extends` \\(=3\\) must be the name of one recipe"),
        ("variants = 3", "must be a table of tables"),
        ('extends = "nothing"', "There is no recipe 'nothing'"),
    ],
)
def test_bad_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(text)
    with pytest.raises(RecipeError, match=words):
        load_recipe("mine.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "none.toml")


def test_a_shown_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    recipe: Any = load_recipe("table3-resnet18-bethge", ["data.augment.flip=false"])
    path = tmp_path / "shown.toml"
    path.write_text(show_recipe(recipe))
    assert load_recipe(path, [f"name={recipe.name}"]) == recipe
    assert "# * " in show_recipe(recipe)


def test_one_text_in_place_of_a_list_of_overrides_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"`overrides` \(='optimizer.lr=1'\) must be a list"):
        load_recipe("digits-small-case4", "optimizer.lr=1")
