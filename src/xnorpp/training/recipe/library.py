"""Where recipes are found, and how a name becomes a `Recipe`.

A file `FAMILY.toml` holds what a data set and a network share, and one entry per row in `[variants]`; the
recipe `FAMILY-VARIANT` is the two laid over the defaults. A file without variants is a recipe itself. The
rows of the paper's tables are names too (`table1-case4`): the recipe lists the rows it stands for.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xnorpp.runtime.choices import nearest_first
from xnorpp.training.recipe.config import (
    Recipe,
    RecipeError,
    apply_override,
    merge,
    parse_toml,
    recipe_keys,
)


def recipe_folders() -> list[Path]:
    """The folders searched, in order: the package's own."""
    return [Path(__file__).resolve().parents[2] / "recipes"]


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    """Every shipped recipe's table, by name; variants are laid over their family."""
    tables: dict[str, dict[str, Any]] = {}
    for folder in recipe_folders():
        for path in sorted(folder.glob("*.toml")):
            for name, table in _read(path).items():
                tables.setdefault(name, table)
    return tables


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The recipes in one file, by name."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecipeError(f"The recipe {path} cannot be read: {why}.") from None
    table = parse_toml(text, str(path))
    variants = table.pop("variants", None)
    if variants is None:
        return {path.stem: table}
    if not isinstance(variants, Mapping) or not all(
        isinstance(value, Mapping) for value in variants.values()
    ):
        raise RecipeError(f"`variants` in {path} must be a table of tables.")
    return {f"{path.stem}-{variant}": merge(table, over) for variant, over in variants.items()}


def list_recipes() -> tuple[str, ...]:
    """The names of the shipped recipes.

    Example:
        >>> from xnorpp.training import list_recipes
        >>> "digits-small-case4" in list_recipes()
        True
    """
    return tuple(sorted(_tables()))


def paper_rows() -> dict[str, str]:
    """Every row of the paper's Tables 1 and 3, and the ImageNet recipe that stands for it.

    Example:
        >>> from xnorpp.training import paper_rows
        >>> paper_rows()["table1-case4"]
        'imagenet-resnet18-case4'
    """
    return {row: name for name in list_recipes() for row in _tables()[name].get("paper", {}).get("rows", ())}


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name, that row of the paper, or that TOML file, with `key=value` overrides applied.

    >>> load_recipe("imagenet-resnet18-case4").schedule.epochs
    80
    >>> load_recipe("table1-case4", ["optimizer.lr=0.01"]).optimizer.lr
    0.01
    """
    if isinstance(overrides, str):
        raise RecipeError(
            f"`overrides` (={overrides!r}) must be a list of `section.key=value` texts, not one text."
        )
    table = _resolve(str(name), ())
    for override in overrides:
        apply_override(table, override)
    return Recipe.from_dict(table)


def as_recipe(recipe: Recipe | Mapping[str, Any] | str | Path | None) -> Recipe:
    """A recipe from whatever `train` takes.

    Args:
        recipe: A `Recipe`; the name of one, or of a TOML file; a table of what differs from the defaults, as
            a TOML file would hold it (`extends` too), with sections inside or dotted keys; None: the
            defaults.

    Raises:
        RecipeError: There is no such recipe, or one of its values cannot be used.
        TypeError: It is something else.

    Example:
        >>> as_recipe({"extends": "digits-small-case4", "schedule.epochs": 3}).schedule.epochs
        3
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, (str, Path)):
        return load_recipe(recipe)
    if recipe is None:
        return Recipe.from_dict({})
    if not isinstance(recipe, Mapping):
        raise TypeError(
            f"`recipe` is {type(recipe).__name__}; a name, a file, a table or what `load_recipe` gives is "
            "needed"
        )
    table: dict[str, Any] = {}
    for key, value in recipe.items():
        *sections, last = str(key).split(".")
        nested: Any = value
        for name in reversed([*sections, last]):
            nested = {name: nested}
        table = merge(table, nested)
    parent = table.pop("extends", None)
    if parent is not None:
        inherited = _resolve(str(parent), ())
        for key in ("paper", "name", "about"):  # a table is another recipe than the one it starts from
            inherited.pop(key, None)
        table = merge(inherited, table)
    return Recipe.from_dict(table)


def _resolve(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise RecipeError(f"`extends` goes round in a circle: {' -> '.join((*seen, name))}.")
    path, _, variant = name.partition("#")
    if path.endswith(".toml"):
        found = _read(Path(path))
        title = f"{Path(path).stem}-{variant}" if variant else next(iter(found))
        if title not in found or (len(found) > 1 and not variant):
            ways = ", ".join(f"{path}#{one.removeprefix(Path(path).stem + '-')}" for one in found)
            raise RecipeError(f"{path} holds {len(found)} recipes; choose one of {ways}.")
        table = found[title]
    else:
        title = paper_rows().get(name, name)
        if title not in _tables():
            raise RecipeError(unknown_recipe(name))
        table = copy.deepcopy(_tables()[title])
    parent = table.pop("extends", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise RecipeError(f"`extends` (={parent!r}) must be the name of one recipe.")
        inherited = _resolve(parent, (*seen, name))
        inherited.pop("paper", None)
        table = merge(inherited, table)
    return merge(table, {"name": title})


def show_recipe(recipe: Recipe) -> str:
    """The whole recipe as TOML: every key, its value and its meaning; a `*` marks what differs from the
    default.
    """
    table, default, lines = recipe.to_dict(), Recipe().to_dict(), []
    section = ""
    for key, (_, spec) in recipe_keys().items():
        above, _, last = key.rpartition(".")
        value = table[above][last] if above else table[last]
        usual = default[above][last] if above else default[last]
        if above != section:
            section = above
            lines += ["", f"[{section}]"]
        mark = " *" if value != usual else ""
        lines.append(f"{f'{last} = {_toml(value)}':<44} #{mark} {spec.metadata['doc']}")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value as TOML; JSON agrees with it for everything but tables."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def unknown_recipe(name: str) -> str:
    near = nearest_first(name, [*list_recipes(), *paper_rows()])
    return f"There is no recipe {name!r}; the nearest are {', '.join(near[:5])} (`xnorpp recipes` lists all)."
