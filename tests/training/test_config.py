"""Recipes: what is refused, in which words, and what survives the way through a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xnorpp.nn import METHODS as NN_METHODS
from xnorpp.runtime.choices import nearest_first
from xnorpp.training.recipe.config import (
    METHODS,
    Recipe,
    RecipeError,
    apply_override,
    merge,
    recipe_keys,
)


def test_the_methods_are_those_of_the_layers() -> None:
    assert METHODS == NN_METHODS


def test_the_defaults_are_the_papers_numbers() -> None:
    recipe = Recipe()
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("adam", 1e-3, 1e-5)
    assert (recipe.schedule.name, recipe.schedule.epochs, recipe.schedule.step_epochs) == ("step", 80, 25)
    assert recipe.schedule.factor == 0.1
    assert not recipe.loss.label_smoothing
    assert not recipe.loss.teacher
    assert not recipe.schedule.first_stage_epochs
    assert not recipe.schedule.warmup_epochs
    assert not recipe.optimizer.clip_norm


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"optimizer": {"lrr": 0.1}}, "`optimizer.lrr` is not a recipe key; did you mean `optimizer.lr`?"),
        ({"optimiser": {"lr": 0.1}}, "`optimiser` is not a recipe key"),
        ({"lr": 0.1}, "did you mean `optimizer.lr`?"),
        ({"epoch": 3}, "did you mean `schedule.epochs`?"),
        ({"optimizer": {"lr": "fast"}}, "`optimizer.lr` (='fast') must be a number."),
        ({"optimizer": {"lr": -1.0}}, "`optimizer.lr` (=-1.0) must be at least 0."),
        ({"optimizer": {"lr": float("nan")}}, "`optimizer.lr` (=nan) must be finite."),
        ({"optimizer": {"momentum": 2.0}}, "`optimizer.momentum` (=2.0) must be at most 1."),
        ({"optimizer": {"name": "adm"}}, "`optimizer.name` (='adm') must be one of adam, adamw, sgd, bop."),
        ({"optimizer": {"betas": 0.9}}, "`optimizer.betas` (=0.9) must be a list."),
        ({"optimizer": {"betas": [0.9]}}, "`optimizer.betas` (=[0.9]) must be two numbers."),
        ({"optimizer": 3}, "`optimizer` (=3) must be a table, written [optimizer]."),
        ({"data": {"batch_size": True}}, "`data.batch_size` (=True) must be a whole number."),
        ({"data": {"batch_size": 1.5}}, "`data.batch_size` (=1.5) must be a whole number."),
        ({"run": {"compile": 1}}, "`run.compile` (=1) must be true or false."),
        ({"model": {"options": 3}}, "`model.options` (=3) must be a table."),
        ({"data": {"batch_size": 3}, "run": {"accumulate": 2}}, "must be divisible by `run.accumulate` (=2)"),
        ({"schedule": {"epochs": 2, "first_stage_epochs": 2}}, "must be smaller than `schedule.epochs` (=2)"),
        (
            {"schedule": {"first_stage_epochs": 1}, "model": {"method": "real"}},
            "`model.method` (='real') must have binary activations",
        ),
        ({"loss": {"teacher": "x", "temperature": 0.0}}, "`loss.temperature` (=0.0) must be above 0"),
        ({"run": {"keep": 1}}, "`run.keep` (=1) must be at least 2."),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(table: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(table)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match='has no field "mirror"; its fields are crop, pad, flip'):
        Recipe.from_dict({"data": {"augment": {"mirror": True}}})


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("optimizer.lr=0.01", ("optimizer", "lr"), 0.01),
        ("optimizer.lr=1", ("optimizer", "lr"), 1.0),
        ("schedule.epochs = 3", ("schedule", "epochs"), 3),
        ("run.compile=true", ("run", "compile"), True),
        ("model.name=alexnet", ("model", "name"), "alexnet"),
        ("loss.teacher=12", ("loss", "teacher"), "12"),
        ('loss.teacher="runs/real"', ("loss", "teacher"), "runs/real"),
        ("loss.teacher=runs/real", ("loss", "teacher"), "runs/real"),
        ("optimizer.betas=[0.8, 0.9]", ("optimizer", "betas"), (0.8, 0.9)),
    ],
)
def test_overrides_are_typed(override: str, key: tuple[str, str], value: object) -> None:
    recipe = Recipe().replace(override)
    assert getattr(getattr(recipe, key[0]), key[1]) == value


def test_overrides_reach_into_the_networks_options_and_the_augmentation() -> None:
    recipe = Recipe().replace(
        "model.options.width=8", "model.options.shortcut=conv", "data.augment.flip=false"
    )
    assert recipe.model.options == {"width": 8, "shortcut": "conv"}
    assert recipe.data.augment == {"flip": False}
    assert Recipe().replace(run__seed=3).run.seed == 3


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimizer.lr", "must look like `section.key=value`"),
        ("=3", "must look like `section.key=value`"),
        ("optimizer.lr.x=3", "is not a recipe key"),
        ("lerning_rate=3", "is not a recipe key; did you mean"),
        ("optimizer.lr=fast", "`optimizer.lr` (='fast') must be a number."),
    ],
)
def test_bad_overrides_are_refused(override: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe().replace(override)
    assert words in str(caught.value)


def test_every_key_is_documented() -> None:
    assert all(spec.metadata["doc"] for _, spec in recipe_keys().values())


@given(
    lr=st.floats(0, 10), epochs=st.integers(1, 1000), name=st.text(max_size=8), clip=st.booleans(),
    betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
def test_a_recipe_survives_the_way_through_json(
    lr: float, epochs: int, name: str, clip: bool, betas: tuple[float, float]
) -> None:
    table = {
        "name": name,
        "model": {"options": {"clip_weights": clip}},
        "optimizer": {"lr": lr, "betas": list(betas)},
        "schedule": {"epochs": epochs},
    }
    recipe = Recipe.from_dict(table)
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert (recipe.optimizer.lr, recipe.optimizer.betas, recipe.schedule.epochs) == (lr, betas, epochs)


def test_merging_lays_tables_over_each_other_and_leaves_them_alone() -> None:
    under = {"a": {"x": 1, "y": 2}, "b": 1}
    assert merge(under, {"a": {"y": 3}, "b": {"z": 1}}) == {"a": {"x": 1, "y": 3}, "b": {"z": 1}}
    assert under == {"a": {"x": 1, "y": 2}, "b": 1}
    table: dict[str, object] = {}
    apply_override(table, "run.seed=7")
    assert table == {"run": {"seed": 7}}


def test_nearest_puts_the_closest_name_first() -> None:
    assert nearest_first("resnet81", ["alexnet", "small", "resnet18"])[0] == "resnet18"
