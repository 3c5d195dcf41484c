"""The plan of training runs: every one has a recipe that loads, and the order is the stated one."""

from __future__ import annotations

from pathlib import Path

import pytest

from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.paper.accuracy.queue import recipe_of
from xnorpp.paper.accuracy.run import Run
from xnorpp.paper.accuracy.runs import (
    ABLATION,
    ABLATION_CHOICES,
    EXPERIMENTS,
    FIRST_ROWS,
    OTHER_ROWS,
    SECOND_ROUND,
    SEEDS,
    SHIPPED,
    claim,
    enlarged,
    plan,
    quick,
    short,
)
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.recipe.library import load_recipe

EVERY = plan(EXPERIMENTS)


def test_keys_are_unique() -> None:
    assert len({run.key for run in EVERY}) == len(EVERY)


@pytest.mark.parametrize("run", EVERY, ids=lambda run: run.key)
def test_every_run_has_a_recipe_that_fits_it(run: Run) -> None:
    recipe = recipe_of(run, Path("runs"), on_gpu=True)
    assert recipe.data.dataset == run.dataset
    assert recipe.model.name == run.network
    assert recipe.run.seed == run.seed
    assert recipe.run.eval_epochs == recipe.schedule.epochs, "the test set is read once"
    assert (bool(recipe.data.holdout) and recipe.data.evaluate == "held") == run.held
    assert bool(recipe.loss.teacher) == (run.teacher is not None)


def test_choices_are_made_on_held_out_images_and_results_on_the_test_set() -> None:
    for run in EVERY:
        held = run.experiment in ("ablation", "trial", "lever", "student") or run.row == "case4-default-block"
        assert run.held == held, run.key


def test_the_order_is_shipped_then_first_rows_seed_by_seed_then_the_rest() -> None:
    order = [run.key for run in plan()]
    first = [f"table1-tiny-imagenet-resnet18-{row}-{seed}" for seed in SEEDS for row in FIRST_ROWS]
    assert [key for key in order if key in first] == first
    last_shipped = max(i for i, key in enumerate(order) if key.startswith("shipped"))
    assert last_shipped < order.index(first[0])
    assert order.index(first[-1]) < order.index(f"table1-tiny-imagenet-resnet18-{OTHER_ROWS[0]}-0")
    assert order.index("table3-tiny-imagenet-alexnet-real-0") < order.index(
        "ablation-tiny-imagenet-resnet18-default-0"
    )


def test_table1_differs_by_method_and_scale_alone() -> None:
    tables = []
    for row in (*FIRST_ROWS, *OTHER_ROWS):
        run = next(r for r in EVERY if r.key == f"table1-tiny-imagenet-resnet18-{row}-0")
        table = recipe_of(run, Path("runs"), on_gpu=True).to_dict()
        for key in ("method", "scale"):
            del table["model"][key]
        tables.append({key: value for key, value in table.items() if key not in ("name", "about")})
    assert all(table == tables[0] for table in tables)


def test_table1_has_the_papers_schedule() -> None:
    for dataset in ("tiny-imagenet", "cifar10"):
        run = next(r for r in EVERY if r.key == f"table1-{dataset}-resnet18-case4-0")
        recipe = recipe_of(run, Path("runs"), on_gpu=False)
        assert (recipe.schedule.name, recipe.schedule.epochs, recipe.schedule.step_epochs) == ("step", 80, 25)
        assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == (
            "adam", 1e-3, 1e-5,
        )  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_a_twin_has_the_same_topology_schedule_and_augmentation(name: str) -> None:
    twin, best = (
        recipe_of(run, Path("runs"), on_gpu=True)
        for run in EVERY
        if run.experiment == "shipped" and dict(run.facts)["name"] == name
    )
    assert twin.model.method == "real"
    assert best.model.method == "xnor++"
    assert twin.schedule.epochs == best.schedule.epochs
    assert twin.schedule.name == best.schedule.name
    assert twin.data == best.data
    assert twin.model.name == best.model.name
    networks = (
        create_model(part.name, method=part.method, input_size=32, **part.options).config
        for part in (twin.model, best.model)
    )
    one, other = ({key: config[key] for key in (*PAPER_BLOCK, "stem", "stem_pool")} for config in networks)
    assert one == other


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_network_learns_from_a_real_resnet18(name: str) -> None:
    best = next(r for r in EVERY if r.row == "best" and dict(r.facts)["name"] == name)
    teacher = next(r for r in EVERY if r.key == best.teacher)
    assert (teacher.network, teacher.row, teacher.dataset) == ("resnet18", "real", best.dataset)


def test_every_factor_of_the_ablation_starts_from_the_same_default() -> None:
    runs = [run for run in EVERY if run.experiment == "ablation"]
    assert sum(run.row == "default" for run in runs) == 1
    assert len(runs) == 1 + sum(len(levels) - 1 for levels in ABLATION.values()) + len(SECOND_ROUND)


def test_the_defaults_follow_the_ablation() -> None:
    """What the ablation chose is what a network, a recipe and the second round take when nothing is said."""
    network = create_model("resnet18", input_size=64, num_classes=200).config
    names = {"start of the scale": "scale_init", "downsampling": "downsample"}
    assert set(ABLATION_CHOICES) == set(ABLATION)
    for factor, level in ABLATION_CHOICES.items():
        if factor == "weight decay on scales":
            assert Recipe().optimizer.decay_scales == (level == "on")
        else:
            assert str(network[names.get(factor, factor.replace(" ", "_"))]) == level, factor
    assert not Recipe().model.calibrate
    second = next(run for run in EVERY if run.row == "second-round-defaults")
    options = recipe_of(second, Path("runs"), on_gpu=False).model.options
    assert {key: options[key] for key in PAPER_BLOCK} == {key: network[key] for key in PAPER_BLOCK}


@pytest.mark.parametrize("name", ["tiny-imagenet-table1-case4", "cifar10-table1-real", "table1-case4"])
def test_the_papers_tables_keep_the_papers_block(name: str) -> None:
    options = load_recipe(name).model.options
    assert {key: options[key] for key in PAPER_BLOCK} == PAPER_BLOCK


def test_the_quick_form_of_the_ablation_has_a_network_of_its_own_for_each_row() -> None:
    wanted = ("default", "downsampling-real", "shortcut-conv", "second-round-defaults")
    runs = [run for run in EVERY if run.experiment == "ablation" and run.row in wanted]
    options = [recipe_of(quick(run), Path("runs"), on_gpu=False).model.options for run in runs]
    blocks = [{key: one.get(key, ours) for key, ours in (("shortcut", "conv"), ("downsample", "real"))}
              for one in options]  # fmt: skip
    assert blocks[0] == PAPER_BLOCK
    assert len({tuple(block.items()) for block in blocks}) == len(wanted)


def test_the_quick_form_keeps_the_row_and_trains_on_digits() -> None:
    for run in EVERY:
        look = quick(run)
        recipe = recipe_of(look, Path("runs"), on_gpu=False)
        assert look.key == run.key
        assert recipe.data.dataset == "digits"


@pytest.mark.parametrize(("argument", "value"), [("experiments", "table9"), ("datasets", "mnist")])
def test_unknown_names_are_refused(argument: str, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        plan(**{argument: (value,)})


def test_the_claim_has_the_same_seeds_for_every_row_seed_by_seed() -> None:
    runs = list(claim())
    assert [(run.seed, run.row) for run in runs] == [
        (seed, row) for seed in (10, 11, 12, 13, 14) for row in ("xnor-alpha", "xnor", "case1", "case4")
    ]
    for run in runs:
        recipe = recipe_of(run, Path("runs"), on_gpu=True)
        assert (recipe.schedule.epochs, recipe.schedule.step_epochs) == (80, 25)
        assert recipe.schedule.statistics_batches * recipe.data.batch_size == 99_840
        assert recipe.run.eval_train


def test_short_runs_drop_at_the_papers_fractions() -> None:
    runs = list(short())
    assert len(runs) == 3 * 3 * 6
    for run in runs:
        schedule = recipe_of(run, Path("runs"), on_gpu=True).schedule
        assert schedule.epochs == run.epochs
        assert schedule.step_epochs / schedule.epochs == 25 / 80
        assert schedule.name == "step"


def test_enlarged_runs_have_the_papers_feature_maps_and_one_has_the_default_block() -> None:
    recipes = [recipe_of(run, Path("runs"), on_gpu=True) for run in enlarged()]
    assert len(recipes) == 7
    assert all((recipe.data.size, recipe.data.enlarge) == (224, "batch") for recipe in recipes)
    assert [{**PAPER_BLOCK, **recipe.model.options}["shortcut"] for recipe in recipes] == ["block"] * 6 + [
        "conv"
    ]
    assert [recipe.data.holdout for recipe in recipes] == [0.0] * 6 + [0.01]
