"""`xnorpp models`."""

from __future__ import annotations

import fnmatch
import json
import sys
from importlib.util import find_spec

from xnorpp.cli.command import Parser, pattern_of, print_table

# The networks that `xnorpp.models` registers, written here again because importing it imports torch, which
# takes longer than everything else that this command does. A test compares the two.
NETWORKS = (
    ("alexnet", "AlexNet with batch norm, without groups"),
    ("reactnet-a", "ReActNet-A, MobileNetV1's layout with binary convolutions"),
    ("resnet18", "ResNet-18, pre-activation"),
    ("resnet34", "ResNet-34, pre-activation"),
    ("resnet20", "ResNet-20 for CIFAR"),
    ("small", "three residual blocks for digits and Fashion-MNIST"),
)


def models(arguments: list[str]) -> int:
    """With NAME, prints the card of that shipped model; with a pattern such as 'cifar10-*', or a part of
    names such as resnet18, lists the models that match it. Accuracy is that of the packed file on the whole
    test set; time is for one image, given as bytes, on one thread of the machine that the card names.
    """
    parser = Parser(
        "models",
        models,
        """
        xnorpp models
        xnorpp models 'cifar10-*'
        xnorpp models cifar10-resnet18
        xnorpp models cifar10-resnet18 --json
        xnorpp models cifar10-resnet18 --markdown > README.md
        """,
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="print the card of this model, or list those that match it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--markdown", action="store_true", help="print the card as Markdown with Hugging Face front matter"
    )
    given = parser.parse_args(arguments)
    if given.markdown and (given.name is None or given.json):
        raise ValueError("`--markdown` needs the NAME of one model, and excludes --json")

    from xnorpp.shipped import list_shipped, render_card, shipped_card, summary_rows

    pattern = pattern_of(given.name, list_shipped())
    if pattern is not None and given.markdown:
        raise ValueError(f"`--markdown` needs the NAME of one model, and {given.name!r} stands for several")
    if given.name is not None and pattern is None:
        card = shipped_card(given.name)
        if given.markdown:
            from xnorpp.shipped.markdown import markdown_card

            print(markdown_card(card), end="")
            return 0
        print(json.dumps(card, indent=2) if given.json else render_card(card))
        return 0
    names = list_shipped() if pattern is None else fnmatch.filter(list_shipped(), pattern)
    if not names and pattern is not None:
        raise ValueError(f"no model that ships matches {pattern!r}; there are {', '.join(list_shipped())}")
    cards = [shipped_card(name) for name in names]
    if pattern is not None:
        if given.json:
            print(json.dumps(cards, indent=2))
        else:
            print_table(summary_rows(cards))
        return 0
    networks = _networks()
    if given.json:
        print(json.dumps({"networks": [name for name, _ in networks], "shipped": cards}, indent=2))
        return 0
    print("networks to train (`xnorpp recipes` lists the recipes):")
    print_table(networks, "  ")
    if find_spec("torch") is None:
        print("  training needs torch; install it with `pip install 'xnorpp[train]'`")
    print("\nmodels that ship (`xnorpp models NAME` prints the card of one):")
    print_table(summary_rows(cards) if cards else [("none in this copy of the package",)], "  ")
    return 0


def _networks() -> tuple[tuple[str, str], ...]:
    """Name and summary of every network; a program that has imported `xnorpp.models` may have added some."""
    loaded = sys.modules.get("xnorpp.models")
    if loaded is None:
        return NETWORKS
    return tuple((name, network.summary) for name, network in loaded.NETWORKS.items())
