"""`xnorpp datasets`."""

from __future__ import annotations

from xnorpp.cli.command import Parser, print_table


def datasets(arguments: list[str]) -> int:
    """One row per data set: classes, image size, and where it comes from."""
    parser = Parser("datasets", datasets, "xnorpp datasets")
    parser.parse_args(arguments)

    from xnorpp.data import dataset_info, list_datasets

    rows = []
    for name in list_datasets():
        info = dataset_info(name)
        channels = f"{info.channels} channel{'s'[: info.channels > 1]}"
        size = f"{info.classes or 'any'} classes, {info.image_size} px, {channels}"
        rows.append((name, size, info.how_to_get))
    print_table(rows)
    return 0
