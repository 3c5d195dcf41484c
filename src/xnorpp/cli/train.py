"""`xnorpp train`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from xnorpp.cli.command import Parser, check_data, check_file, check_folder, share_cores

# Short forms of the settings that are changed most often: key, type and meaning.
SHORT_FORMS: dict[str, tuple[str, type, str]] = {
    "--epochs": ("schedule.epochs", int, "passes over the training set"),
    "--lr": ("optimizer.lr", float, "learning rate"),
    "--batch-size": ("data.batch_size", int, "images per step"),
    "--seed": ("run.seed", int, "seed of weights, order and augmentation"),
}


def train(arguments: list[str]) -> int:
    """RECIPE is a name that `xnorpp recipes` lists, a row of the paper such as table1-case4, or a TOML file.
    The run's folder receives model.safetensors, checkpoints, metrics.jsonl, TensorBoard events, summary.json
    and curves.png. To continue a run that was stopped or killed, repeat the command with --resume.
    """
    parser = Parser(
        "train",
        train,
        """
        xnorpp train digits-small-case4 --out runs/digits --epochs 20 --seed 1
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
    for option, (key, kind, text) in SHORT_FORMS.items():
        parser.add_argument(option, metavar="N", type=kind, help=f"{text}; the same as --set {key}=N")
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

    short = {key: getattr(given, option[2:].replace("-", "_")) for option, (key, *_) in SHORT_FORMS.items()}
    short["data.dataset"] = given.dataset
    settings = [f"{key}={value}" for key, value in short.items() if value is not None]
    recipe = load_recipe(given.recipe, [*given.overrides, *settings])
    out = Path("runs") / recipe.name if given.out is None else given.out
    if os.environ.get("RANK", "0") == "0":  # the other processes of torchrun only read it
        check_folder("--out", out)
        check_file("--record", given.record, makes_folder=True)
    check_data(recipe.data.dataset, given.data)
    share_cores()
    from xnorpp.training import record_result
    from xnorpp.training import train as run_training

    try:
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
    except KeyboardInterrupt:
        _hint(arguments)
        return 130
    if given.record and os.environ.get("RANK", "0") == "0":
        record_result(given.record, summary)
    return 0


def _hint(arguments: list[str]) -> None:
    """Print how to continue a run that Ctrl-C stopped."""
    command = shlex.join(["xnorpp", "train", *(one for one in arguments if one != "--resume"), "--resume"])
    print(f"xnorpp train: stopped; to continue from the newest checkpoint: {command}", file=sys.stderr)
