"""`xnorpp shards`."""

from __future__ import annotations

from xnorpp.cli.command import Parser, at_least, check_data, check_folder


def shards(arguments: list[str]) -> int:
    """Decoding and resizing full-size images limits the speed of training on ImageNet; shards of images that
    were resized once are read several times faster. --format npy stores the resized pixels exactly (192 KiB
    per image at 256 px), jpg encodes them again. To train from the shards, use --data OUT
    --set data.dataset=shards.
    """
    parser = Parser(
        "shards",
        shards,
        "xnorpp shards imagenet --data /data/imagenet --out /data/imagenet-256 --format npy\n"
        "xnorpp train imagenet-resnet18-case4 --data /data/imagenet-256 --out runs/ours "
        "--set data.dataset=shards",
    )
    parser.add_argument("dataset", metavar="DATASET", help="name of a data set (see `xnorpp datasets`)")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the shards")
    parser.add_argument(
        "--format", choices=("jpg", "npy"), default="jpg", help="how images are stored (default: jpg)"
    )
    parser.add_argument(
        "--workers", type=at_least(0), metavar="N",
        help="decoding processes; 0 decodes in this process (default: one per core)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)
    check_data(given.dataset, given.data)

    from xnorpp.data import load_dataset, write_shards
    from xnorpp.data.formats.folder import is_one_tree

    if given.dataset == "folder" and given.data and is_one_tree(given.data):
        raise ValueError(
            f"{given.data} is one tree of classes, the same for training and testing; make train/ and val/ "
            "in it"
        )

    for split in ("train", "test"):
        dataset = load_dataset(given.dataset, given.data, split)
        written = write_shards(dataset, given.out, format=given.format, workers=given.workers)
        size = sum(path.stat().st_size for path in written)
        count = len(load_dataset("shards", given.out, split))
        files = f"{len(written)} shard{'s' * (len(written) != 1)}"
        print(f"{split}: {count:,} images in {files}, {size / 1e6:,.1f} MB")
    return 0
