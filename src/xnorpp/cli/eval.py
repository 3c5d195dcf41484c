"""`xnorpp eval`: the accuracy of a checkpoint, run by torch, or of a packed file, run as bit operations."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xnorpp.cli.command import (
    THREADS,
    Parser,
    at_least,
    check_data,
    check_file,
    engine_options,
    load_packed,
    one_model,
    refuse_ignored,
)

if TYPE_CHECKING:
    from xnorpp.data.dataset import Skipped


def evaluate(arguments: list[str]) -> int:
    """Prints top-1 and top-5 accuracy. MODEL is a .safetensors file of a run, the run's folder, a packed file
    (which is run packed and needs no torch), or the name of a model that ships with the package. The data set
    is the one it was trained on unless --dataset names another.
    """
    parser = Parser(
        "eval",
        evaluate,
        """
        xnorpp eval runs/digits
        xnorpp eval runs/case4/model.safetensors --data /data/imagenet --batch-size 512
        xnorpp eval case4.xnor --data /data/imagenet --workers 2
        xnorpp eval cifar10-resnet18 --data /data/cifar10 --threads 2 --json accuracy.json
        """,
    )
    parser.add_argument(
        "checkpoint", metavar="MODEL", nargs="?",
        help="a run's folder, one of its .safetensors files, a packed file, or the name of a shipped model",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="NAME", help="a model that ships with the package, instead of MODEL"
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument(
        "--dataset", metavar="NAME", help="evaluate on another data set than that of training"
    )
    parser.add_argument(
        "--split",
        default="test",
        choices=("train", "test"),
        help="which part of the data set (default: test)",
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=at_least(1), default=256, help="images per batch (default: 256)"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=at_least(0),
        default=0,
        help="decoding processes; for a packed file, threads (default: 0)",
    )
    parser.add_argument("--download", action="store_true", help="download the data set if it is missing")
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or cuda:N (default: auto, which runs a packed file on the CPU)",
    )
    engine_options(parser, f"for a packed file: {THREADS}")
    parser.add_argument("--json", metavar="FILE", help="write the result to this JSON file")
    given = parser.parse_args(arguments)
    check_file("--json", given.json)

    from xnorpp.inspect.source import is_packed

    given.checkpoint = one_model(given.checkpoint, given.model)
    if Path(given.checkpoint).is_file() and is_packed(given.checkpoint):
        return _evaluate_packed(given)
    refuse_ignored(given, ("threads", "isa"), "a packed file, not for a checkpoint")
    from xnorpp.data import load_dataset, make_loader
    from xnorpp.training import evaluate as measure
    from xnorpp.training import load_model
    from xnorpp.training.distributed import choose_device

    device = choose_device(given.device)
    model, meta = load_model(given.checkpoint, device)
    name = given.dataset or meta["dataset"]
    check_data(name, given.data)
    dataset = load_dataset(name, given.data, given.split, download=given.download)
    _check_fits(meta["model"], name, len(dataset.classes), dataset.info.channels)
    loader = make_loader(
        dataset,
        batch_size=given.batch_size,
        train=False,
        device=device,
        workers=given.workers,
        size=meta["preprocess"]["crop"],
    )
    result = measure(model, loader)
    _name_skipped(loader.skipped)
    print(
        f"{meta['recipe']['name']} on {name} ({given.split}, {result['images']:.0f} images): "
        f"top-1 {result['top1']:.2f} %, top-5 {result['top5']:.2f} %, loss {result['loss']:.4f}"
    )
    _write_json(
        given.json,
        {
            "model": Path(given.checkpoint).name,
            "recipe": meta["recipe"]["name"],
            "dataset": name,
            "split": given.split,
            "images": int(result["images"]),
            "top1": result["top1"],
            "top5": result["top5"],
            "loss": result["loss"],
            "skipped": [lost.name for lost in loader.skipped],
            "engine": f"torch on {device}",
        },
    )
    return 0


def _name_skipped(skipped: Iterable[Skipped]) -> None:
    """Print one line for each image that could not be read."""
    for lost in skipped:
        print(f"xnorpp eval: {lost.name} cannot be read ({lost.reason}) and is skipped.", file=sys.stderr)


def _check_fits(config: dict[str, Any], name: str, classes: int, channels: int) -> None:
    if config["num_classes"] != classes:
        raise ValueError(
            f"the model has {config['num_classes']} outputs, and the data set {name!r} has {classes} classes"
        )
    if config["in_channels"] != channels:
        raise ValueError(
            f"the model takes images with {config['in_channels']} channels, and those of {name!r} have "
            f"{channels}"
        )


def _evaluate_packed(given: Namespace) -> int:
    """`xnorpp eval` of a packed file: top-1 and top-5 through the packed engine, without torch."""
    from xnorpp.data import load_dataset
    from xnorpp.data.evaluate import evaluate_packed as measure
    from xnorpp.data.progress import Progress

    model = load_packed(given.checkpoint, given)
    name = given.dataset or model.program.meta.get("dataset")
    if not name:
        raise ValueError("the packed file does not record its data set; name one with --dataset NAME")
    check_data(str(name), given.data)
    dataset = load_dataset(str(name), given.data, given.split, download=given.download)
    progress = Progress("evaluating", len(dataset), "images")
    result = measure(
        model, dataset, batch=given.batch_size, workers=max(given.workers, 1), progress=progress.advance
    )
    progress.close()
    _name_skipped(result.skipped)
    print(
        f"{Path(given.checkpoint).name} on {name} ({given.split}, {result.images} images, {model.isa}): "
        f"top-1 {result.top1:.2f} %, top-5 {result.top5:.2f} %"
    )
    _write_json(
        given.json,
        {
            "model": Path(given.checkpoint).name,
            "dataset": str(name),
            "split": given.split,
            "images": result.images,
            "top1": result.top1,
            "top5": result.top5,
            "skipped": [lost.name for lost in result.skipped],
            "engine": model.isa,
            "threads": given.threads,
        },
    )
    return 0


def _write_json(path: str | None, result: dict[str, Any]) -> None:
    if path is not None:
        from xnorpp.runtime.files import write_atomically

        write_atomically(path, (json.dumps(result, indent=2) + "\n").encode())
