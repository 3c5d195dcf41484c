"""The command line: a table of functions, one a command. Torch is imported only inside the commands that
need it.

To add a command, write a function `NAME(arguments: list[str]) -> int` and its row in `COMMANDS`. The first
line of the docstring is what `xnorpp --help` says about it; the rest heads its own `--help`. Errors meant
for the person at the keyboard are exceptions with one sentence: `main` prints it and gives status 2 (1 when
a run failed on the way).
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xnorpp
from xnorpp.cli import bench as cli_bench
from xnorpp.cli import deploy as cli_deploy
from xnorpp.cli import eval as cli_eval
from xnorpp.cli import paper as cli_paper
from xnorpp.cli.command import Parser, at_least, check_data, check_file, check_folder, print_table

SHOW_TRACEBACK = "XNORPP_TRACEBACK"


def train(arguments: list[str]) -> int:
    """Train a network from a recipe.

    RECIPE is a name that `xnorpp recipes` lists, a row of the paper such as table1-case4, or a TOML file.
    The run's folder gets model.safetensors, checkpoints, metrics.jsonl, TensorBoard events, summary.json
    and curves.png. A run that was stopped or killed goes on with the same command and --resume.
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
    parser.add_argument("--data", metavar="DIR", help="where the data set lies (the digits need none)")
    parser.add_argument(
        "--dataset", metavar="NAME",
        help="another data set than the recipe's: a name that `xnorpp datasets` lists, or "
        "package.module:function",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="the run's folder (runs/RECIPE)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change one key of the recipe, such as optimizer.lr=0.002; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="go on from the folder's newest good checkpoint"
    )
    parser.add_argument(
        "--init-from", metavar="FILE",
        help="start from these weights: a checkpoint, or a state_dict of our twin or torchvision's ResNet",
    )  # fmt: skip
    parser.add_argument("--download", action="store_true", help="get the data set if it is missing")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
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


def demo(arguments: list[str]) -> int:
    """Train a one-bit network on scikit-learn's digits, beside its real-valued twin.

    Needs no data, no GPU, and about a minute on two cores.
    """
    parser = Parser("demo", demo, "xnorpp demo\nxnorpp demo --out runs/demo --seed 1")
    parser.add_argument("--out", metavar="DIR", help="keep the runs here (a temporary folder)")
    parser.add_argument("--seed", type=int, default=0, help="seed (0)")
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)

    from xnorpp.cli.demo import run_demo

    run_demo(given.out, seed=given.seed)
    return 0


def recipes(arguments: list[str]) -> int:
    """List the recipes, or show one with every key it sets and every default.

    Without NAME: the names, and which rows of the paper they stand for. With NAME: the whole recipe as
    TOML, each key with its meaning, after --set.
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
    parser.add_argument("recipe", metavar="NAME", nargs="?", help="show this one")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides")
    given = parser.parse_args(arguments)

    from xnorpp.training.recipe.library import list_recipes, load_recipe, show_recipe

    if given.recipe is not None:
        recipe = load_recipe(given.recipe, given.overrides)
        if given.overrides or given.recipe not in list_recipes():
            _check_names(recipe)
        print(show_recipe(recipe))
        return 0
    if given.overrides:
        raise ValueError(f"`--set` (={given.overrides[0]!r}) needs a NAME, the recipe to show it in")
    rows = []
    for name in list_recipes():
        recipe = load_recipe(name)
        rows.append((name, recipe.about, " ".join(recipe.paper.rows)))
    print_table(rows)
    return 0


def _check_names(recipe: Any) -> None:
    """Refuse a data set, a network, a scale or an option that does not exist, as a run would: by making the
    network, without memory for its weights. Without torch only the data set can be checked.
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


def datasets(arguments: list[str]) -> int:
    """List the data sets, and how to get each."""
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
        size = (
            f"{info.classes or 'any'} classes, {info.image_size} px, "
            f"{info.channels} channel{'s'[: info.channels > 1]}"
        )
        rows.append((name, size, info.how_to_get))
    print_table(rows)
    return 0


def shards(arguments: list[str]) -> int:
    """Write a data set as tar shards, its pictures resized once, so that training need not.

    Decoding and resizing full pictures is what limits training on ImageNet; shards of resized ones are read
    several times faster. --format npy keeps the resized pixels exactly (192 KiB a picture at 256 px), jpg
    encodes them again. Train from them with --data OUT --set data.dataset=shards.
    """
    parser = Parser(
        "shards",
        shards,
        "xnorpp shards imagenet --data /data/imagenet --out /data/imagenet-256 --format npy\n"
        "xnorpp train imagenet-resnet18-case4 --data /data/imagenet-256 --out runs/ours "
        "--set data.dataset=shards",
    )
    parser.add_argument("dataset", metavar="DATASET", help="a data set's name (see `xnorpp datasets`)")
    parser.add_argument("--data", metavar="DIR", help="where the data set is")
    parser.add_argument("--out", metavar="DIR", required=True, help="where the shards go")
    parser.add_argument("--format", choices=("jpg", "npy"), default="jpg", help="how a picture is stored")
    parser.add_argument(
        "--workers", type=at_least(0), metavar="N",
        help="processes that decode; 0: this one (default: one per core)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)
    check_data(given.dataset, given.data)

    from xnorpp.data import load_dataset, write_shards

    for split in ("train", "test"):
        dataset = load_dataset(given.dataset, given.data, split)
        written = write_shards(dataset, given.out, format=given.format, workers=given.workers)
        size = sum(path.stat().st_size for path in written)
        kept = len(load_dataset("shards", given.out, split))
        print(f"{split}: {kept:,} pictures in {len(written)} shards, {size / 1e6:,.1f} MB")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "eval": cli_eval.evaluate,
    "pack": cli_deploy.pack,
    "predict": cli_deploy.predict,
    "inspect": cli_deploy.inspect,
    "bench": cli_bench.bench,
    "demo": demo,
    "recipes": recipes,
    "models": cli_deploy.models,
    "datasets": datasets,
    "shards": shards,
    "paper": cli_paper.paper,
}


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [
        f"  {name:<{width}}{inspect.cleandoc(function.__doc__ or '').splitlines()[0]}"
        for name, function in COMMANDS.items()
    ]
    return "\n".join(
        [
            "usage: xnorpp COMMAND ...",
            "",
            "One-bit neural networks: train them, pack them, run them as real bit operations.",
            "",
            "commands:",
            *lines,
            "",
            "`xnorpp COMMAND --help` shows a command's arguments and examples. Start with `xnorpp demo`.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status; errors are one sentence on stderr, without a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"xnorpp {xnorpp.__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        from xnorpp.training.recipe.config import nearest

        valid = ", ".join(nearest(name, COMMANDS))
        print(f"xnorpp: there is no command {name!r}; the commands are {valid}.", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return COMMANDS[name](rest)
        except KeyboardInterrupt:
            print(f"xnorpp {name}: stopped.", file=sys.stderr)
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except Exception as error:
            status = _status(error)
            if status is None or os.environ.get(SHOW_TRACEBACK):
                raise
            print(f"xnorpp {name}: {_sentence(error)}", file=sys.stderr)
            return status


def _status(error: Exception) -> int | None:
    """2 for input that cannot be used, 1 for a run that failed on the way, None for a fault of ours."""
    if isinstance(error, (ValueError, OSError)):
        return 2
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "CheckpointError" in kinds:  # what could not be written has the system's error as its cause
        return 1 if isinstance(error.__cause__, OSError) else 2
    if isinstance(error, ModuleNotFoundError):
        return 2 if (error.name or "").partition(".")[0] != "xnorpp" else None
    on_the_way = {"CudaError", "LostWorker", "NonFiniteLoss", "QueueError", "WorkerDiedError"}
    return 1 if kinds & on_the_way else None


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"this command needs {error.name}; `pip install 'xnorpp[train]'` brings it."
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = {
            errno.ENOENT: f"there is no file or folder {error.filename}",
            errno.EISDIR: f"{error.filename} is a folder, and a file is needed",
        }.get(error.errno or 0, f"{error.filename} cannot be used: {error.strerror}")
    return text if text.endswith((".", ")", "?")) else text + "."


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"xnorpp: warning: {message}", file=sys.stderr)
