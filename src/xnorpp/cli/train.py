"""`xnorpp train`."""

from __future__ import annotations

import os
from pathlib import Path

from xnorpp.cli.command import Parser, check_data, check_file, check_folder


def train(arguments: list[str]) -> int:
    """RECIPE is a name that `xnorpp recipes` lists, a row of the paper such as table1-case4, or a TOML file.
    The run's folder receives model.safetensors, checkpoints, metrics.jsonl, TensorBoard events, summary.json
    and curves.png. To continue a run that was stopped or killed, repeat the command with --resume.
    """
    parser = Parser(
        "train",
        train,
        """
        xnorpp train digits-small-case4 --out runs/digits
        xnorpp train table1-case4 --data /data/imagenet --out runs/case4 --set run.amp=bf16
        xnorpp train table1-case4 --data /data/imagenet --out runs/case4 --set run.amp=bf16 --resume
        xnorpp train folder-small --data my-images --out runs/mine
        torchrun --nproc-per-node 8 -m xnorpp train table1-case4 --data /data/imagenet --out runs/case4
        """,
    )
    parser.add_argument(
        "recipe", metavar="RECIPE", help="name of a recipe, a row of the paper, or a TOML file"
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the data set (the digits need none)")
    parser.add_argument(
        "--dataset", metavar="NAME",
        help="use this data set instead of the recipe's: a name that `xnorpp datasets` lists, or "
        "package.module:function",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="the run's folder (default: runs/RECIPE)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change one key of the recipe, such as optimizer.lr=0.002; can be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="continue from the newest valid checkpoint in the run's folder"
    )
    parser.add_argument(
        "--init-from", metavar="FILE",
        help="start from these weights: a checkpoint, or a state_dict of the same real-valued network or of "
        "torchvision's ResNet",
    )  # fmt: skip
    parser.add_argument("--download", action="store_true", help="download the data set if it is missing")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--record", metavar="FILE", help="append the result to this .jsonl file")
    given = parser.parse_args(arguments)

    from xnorpp.training.recipe.library import load_recipe

    dataset = [] if given.dataset is None else [f"data.dataset={given.dataset}"]
    recipe = load_recipe(given.recipe, [*given.overrides, *dataset])
    out = given.out or Path("runs") / recipe.name
    check_folder("--out", out)
    check_file("--record", given.record, makes_folder=True)
    check_data(recipe.data.dataset, given.data)
    from xnorpp.training import record_result
    from xnorpp.training import train as run_training

    summary = run_training(
        recipe,
        data=given.data,
        out=out,
        resume=given.resume,
        init_from=given.init_from,
        device=given.device,
        download=given.download,
        quiet=given.quiet,
    )
    if given.record and os.environ.get("RANK", "0") == "0":
        record_result(given.record, summary)
    return 0
