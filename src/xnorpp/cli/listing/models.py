"""`xnorpp models`."""

from __future__ import annotations

import json

from xnorpp.cli.command import Parser, print_table


def models(arguments: list[str]) -> int:
    """With NAME, prints the card of that shipped model. Accuracy is that of the packed file on the whole test
    set; time is for one image on one thread of the machine that the card names.
    """
    parser = Parser(
        "models",
        models,
        "xnorpp models\nxnorpp models cifar10-resnet18\nxnorpp models cifar10-resnet18 --json",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="print the whole card of this model")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(arguments)

    from xnorpp.shipped import list_shipped, render_card, shipped_card, short_card, summary_rows

    if given.name is not None:
        card = shipped_card(given.name)
        print(json.dumps(card, indent=2) if given.json else render_card(card))
        return 0
    cards = [shipped_card(name) for name in list_shipped()]
    try:
        from xnorpp.models import list_models

        networks = list_models()
    except ModuleNotFoundError:
        networks = ()
    if given.json:
        print(json.dumps({"networks": networks, "shipped": cards}, indent=2))
        return 0
    print("networks to train (`xnorpp recipes` lists the recipes):")
    print_table([(name,) for name in networks], "  ")
    if not networks:
        print("  training needs torch; install it with `pip install 'xnorpp[train]'`")
    print("\nmodels that ship (`xnorpp models NAME` prints the card of one):")
    print_table(summary_rows(cards) if cards else [("none in this copy of the package",)], "  ")
    for card in cards:
        print(f"\n  {short_card(card)}")
    return 0
