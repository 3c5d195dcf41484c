"""`xnorpp recipes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.cli.command import Parser, print_table

if TYPE_CHECKING:
    from xnorpp.training.recipe.config import Recipe


def recipes(arguments: list[str]) -> int:
    """Without NAME: the names, and the rows of the paper they reproduce. With NAME: the whole recipe as TOML,
    each key with its meaning, after --set is applied.
    """
    parser = Parser(
        "recipes",
        recipes,
        """
        xnorpp recipes
        xnorpp recipes table3-alexnet-ours
        xnorpp recipes digits-small-case4 --set optimizer.lr=0.002
        """,
    )
    parser.add_argument("recipe", metavar="NAME", nargs="?", help="the recipe to show")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change one key first; can be repeated",
    )  # fmt: skip
    given = parser.parse_args(arguments)

    from xnorpp.training.recipe.library import list_recipes, load_recipe, show_recipe

    if given.recipe is not None:
        recipe = load_recipe(given.recipe, given.overrides)
        if given.overrides or given.recipe not in list_recipes():
            _check_names(recipe)
        print(show_recipe(recipe))
        return 0
    if given.overrides:
        raise ValueError(f"`--set` (={given.overrides[0]!r}) needs a NAME, the recipe to show")
    rows = []
    for name in list_recipes():
        recipe = load_recipe(name)
        rows.append((name, recipe.about, " ".join(recipe.paper.rows)))
    print_table(rows)
    return 0


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
