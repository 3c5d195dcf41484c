"""`xnorpp datasets`."""

from __future__ import annotations

from xnorpp.cli.command import Parser, print_table


def datasets(arguments: list[str]) -> int:
    """One row per data set: classes, image size, and where it comes from."""
    parser = Parser("datasets", datasets, "xnorpp datasets")
    parser.parse_args(arguments)

    from xnorpp.data import dataset_info, list_datasets
    from xnorpp.data.catalog import has_card

    rows = []
    for name in list_datasets():
        if not has_card(name):  # registered from outside; its data is its card
            rows.append((name, "", "registered"))
            continue
        info = dataset_info(name)
        size = "any classes, any size"  # of the user's own images
        if info.train_size:
            size = (
                f"{info.classes} classes, {info.image_size} px, "
                f"{info.channels} channel{'s'[: info.channels > 1]}"
            )
        rows.append((name, size, info.how_to_get))
    print_table(rows)
    return 0
