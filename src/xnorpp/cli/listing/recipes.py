"""`xnorpp recipes`."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from xnorpp.cli.command import Parser, pattern_of, print_table

# What the names of recipes end with, the longer first.
METHODS = ("xnor-alpha", "binaryconnect", "baseline", "teacher", "taught", "bethge", "case1", "case2",
           "case3", "case4", "xnor", "real", "ours", "bnn")  # fmt: skip

if TYPE_CHECKING:
    from xnorpp.training.recipe.config import Recipe


def recipes(arguments: list[str]) -> int:
    """Without NAME: one line per family of recipes. With a pattern such as 'cifar10-*', or a part of names
    such as alexnet: the recipes that match it, and the rows of the paper that they reproduce. With NAME:
    the whole recipe as TOML, each key with its meaning, after --set is applied.
    """
    parser = Parser(
        "recipes",
        recipes,
        """
        xnorpp recipes
        xnorpp recipes 'cifar10-*'
        xnorpp recipes alexnet
        xnorpp recipes --all
        xnorpp recipes table3-alexnet-ours
        xnorpp recipes digits-small-case4 --set optimizer.lr=0.002
        """,
    )
    parser.add_argument(
        "recipe", metavar="NAME", nargs="?", help="the recipe to show, or what those to list match or contain"
    )
    parser.add_argument("--all", action="store_true", help="list every recipe on a line of its own")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change one key first; can be repeated",
    )  # fmt: skip
    given = parser.parse_args(arguments)

    from xnorpp.training.recipe.library import list_recipes, load_recipe, paper_rows, show_recipe

    pattern = pattern_of(given.recipe, list_recipes(), paper_rows())
    if given.recipe is not None and pattern is None:
        if given.all:
            raise ValueError(f"`--all` lists every recipe; leave it out to show {given.recipe}")
        recipe = load_recipe(given.recipe, given.overrides)
        if given.overrides or given.recipe not in list_recipes():
            _check_names(recipe)
        print(show_recipe(recipe))
        return 0
    if given.overrides:
        raise ValueError(f"`--set` (={given.overrides[0]!r}) needs a NAME, the recipe to show")
    names = list_recipes()
    if pattern is not None:
        names = tuple(fnmatch.filter(names, pattern))
        if not names:
            raise ValueError(f"no recipe matches {pattern!r}; `xnorpp recipes` lists the families")
    elif not given.all:
        print_table(_families(names))
        print("\nrows of the paper, such as table1-case4 and table3-alexnet-ours, are names too.")
        print("`xnorpp recipes 'cifar10-*'` lists those that match, `--all` every one, NAME shows one.")
        return 0
    loaded = [load_recipe(name) for name in names]
    print_table([(one.name, one.about, " ".join(one.paper.rows)) for one in loaded])
    return 0


def _families(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """One row per family: the part that its names share, and what they end with."""
    families: dict[str, list[str]] = {}
    for name in names:
        method = next((one for one in METHODS if name.endswith(f"-{one}")), None)
        families.setdefault(name.removesuffix(f"-{method}") if method else name, []).append(method or "")
    return [
        (family if "" in methods else f"{family}-*", ", ".join(f"-{one}" for one in methods if one))
        for family, methods in families.items()
    ]


def _check_names(recipe: Recipe) -> None:
    """Refuse an unknown data set, network, scale or option as a run would: by creating the network, without
    memory for its weights. Without torch only the data set can be checked.
    """
    from xnorpp.data import dataset_info
    from xnorpp.data.catalog import has_card

    info = dataset_info(recipe.data.dataset if has_card(recipe.data.dataset) else "digits")
    try:
        import torch

        from xnorpp.training.network import recipe_network
    except ModuleNotFoundError:
        return
    with torch.device("meta"):
        recipe_network(
            recipe.model,
            input_size=recipe.data.size or info.image_size or None,
            num_classes=info.classes or None,
            in_channels=recipe.data.channels or info.channels,
        )
