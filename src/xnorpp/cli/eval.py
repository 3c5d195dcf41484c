"""`xnorpp eval`: the accuracy of a checkpoint, run by torch, or of a packed file, run as bit operations."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xnorpp.cli.command import (
    THREADS,
    Parser,
    at_least,
    check_data,
    check_file,
    check_plot,
    engine_options,
    load_packed,
    one_model,
    print_table,
    refuse_ignored,
    share_cores,
)

if TYPE_CHECKING:
    from xnorpp.data import Skipped
    from xnorpp.inspect.tally import Tally


def evaluate(arguments: list[str]) -> int:
    """Prints top-1 accuracy, and top-5 where there are more than five classes. MODEL is a .safetensors file
    of a run, the run's folder, a packed file (which is run packed and needs no torch), or the name of a model
    that ships with the package. The data set is the one it was trained on unless --dataset names another.
    Classes are matched by name, in whatever order the model has them; a data set with a class that the model
    does not know is refused.
    """
    parser = Parser(
        "eval",
        evaluate,
        """
        xnorpp eval runs/digits
        xnorpp eval runs/case4/model.safetensors --data /data/imagenet --batch-size 512
        xnorpp eval case4.xnor --data /data/imagenet --workers 2
        xnorpp eval cifar10-resnet18 --data /data/cifar10 --threads 2 --json accuracy.json
        xnorpp eval mine.xnor --dataset folder --data my-images
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
    parser.add_argument(
        "--holdout", metavar="SHARE", type=float,
        help="measure on the share of the training set that `data.holdout` holds out (a folder without a "
        "split: what the run held out)",
    )  # fmt: skip
    parser.add_argument(
        "--max-skipped", metavar="N", type=at_least(0),
        help="how many unreadable images are tolerated (default: 1 %%, at least 1, at most 100)",
    )  # fmt: skip
    parser.add_argument(
        "--by-position", action="store_true", help="match classes by position, whatever their names"
    )
    parser.add_argument(
        "--network", metavar="PACKAGE.MODULE:FUNCTION",
        help="for a checkpoint: the function that builds your own network",
    )  # fmt: skip
    parser.add_argument("--download", action="store_true", help="download the data set if it is missing")
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda or cuda:N (default: auto, which runs a packed file on the CPU)",
    )
    engine_options(parser, f"for a packed file: {THREADS}")
    parser.add_argument("--json", metavar="FILE", help="write the result to this JSON file")
    parser.add_argument("--per-class", action="store_true", help="print the accuracy of every class too")
    parser.add_argument(
        "--confusion", metavar="FILE",
        help="write the confusion matrix: an image (.png, .svg, ...), or text to .txt or - (standard output)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    share_cores()
    check_file("--json", given.json)
    if given.confusion is not None and given.confusion != "-":
        (check_file if given.confusion.endswith(".txt") else check_plot)("--confusion", given.confusion)

    from xnorpp.inspect.source import is_packed

    given.checkpoint = one_model(given.checkpoint, given.model)
    if Path(given.checkpoint).is_file() and is_packed(given.checkpoint):
        return _evaluate_packed(given)
    refuse_ignored(given, ("threads", "isa"), "a packed file, not for a checkpoint")
    from xnorpp.data import Preprocess, make_loader
    from xnorpp.training import evaluate as measure
    from xnorpp.training import load_model
    from xnorpp.training.distributed import choose_device

    device = choose_device(given.device)
    model, meta = load_model(given.checkpoint, device, model=given.network)
    stated = meta.get("preprocess")
    preprocess = None if stated is None else Preprocess.from_dict(stated)
    if given.max_skipped is None:
        given.max_skipped = _recorded_limit(meta)
    held = ((meta.get("recipe") or {}).get("data") or {}).get("holdout", 0.0)
    wanted: dict[str, Any] = {"max_skipped": given.max_skipped}
    side = preprocess.side if preprocess is not None and len(set(preprocess.size)) == 1 else None
    if preprocess is not None and side is not None:
        wanted |= {"size": side, "resize": preprocess.resize, "channels": preprocess.channels}
    name, dataset = _open(given, meta.get("dataset"), held, wanted)
    _check_channels(meta["model"], name, dataset)
    dataset = _matched(given, dataset, meta.get("classes"), meta["model"]["num_classes"])
    loader = make_loader(
        dataset if preprocess is None else replace(dataset, info=dataset.info.following(preprocess)),
        batch_size=given.batch_size,
        train=False,
        device=device,
        workers=given.workers,
        size=side,
        max_skipped=given.max_skipped,
    )
    from xnorpp.data.progress import Progress
    from xnorpp.inspect.tally import Tally
    from xnorpp.shipped.accuracy import accuracy_text

    tally, progress = Tally(dataset.classes), Progress("evaluating", len(dataset), "images")

    def observe(scores: Any, labels: Any) -> None:
        tally.add(scores.float().softmax(1).cpu().numpy(), labels.cpu().numpy())
        progress.advance(len(labels))

    result = measure(model, loader, observe=observe)
    progress.close()
    _name_skipped(loader.skipped)
    print(
        f"{meta['recipe']['name']} on {name} ({given.split}, {result['images']:.0f} images): "
        f"{accuracy_text(result['top1'], result['top5'], len(dataset.classes))}, loss {result['loss']:.4f}, "
        f"calibration error {tally.calibration_error:.3f}"
    )
    _report(given, tally)
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
            **tally.as_dict(),
            "skipped": [lost.name for lost in loader.skipped],
            "engine": f"torch on {device}",
        },
    )
    return 0


def _name_skipped(skipped: Iterable[Skipped]) -> None:
    """Print one line for each image that could not be read."""
    for lost in skipped:
        print(f"xnorpp eval: {lost.name} cannot be read ({lost.reason}) and is skipped.", file=sys.stderr)


def _recorded_limit(meta: dict[str, Any]) -> int | None:
    """How many unreadable images the run itself tolerated; None: the usual number."""
    limit = ((meta.get("recipe") or {}).get("data") or {}).get("max_skipped", -1)
    return None if limit < 0 else int(limit)


def _open(given: Namespace, trained_on: Any, held: float, wanted: dict[str, Any]) -> tuple[str, Any]:
    """The name of the data set to evaluate on, and the data set, loaded with those of the `wanted` options
    that it has.

    Of one tree of classes, what the run held out (the share `held`) is the test set: the rest was trained on.
    """
    from xnorpp.data import load_dataset
    from xnorpp.data.catalog import dataset_options
    from xnorpp.data.formats.folder import is_one_tree
    from xnorpp.data.own import OWN

    name = given.dataset or trained_on
    if not name:
        raise ValueError("the packed file does not record its data set; name one with --dataset NAME")
    if name == OWN:
        raise ValueError(
            "the model was trained on data given to `train`; give --dataset and --data, or evaluate it from "
            "Python"
        )
    check_data(str(name), given.data)
    known = dataset_options(name)
    options = {key: value for key, value in wanted.items() if key in known and value is not None}
    if given.holdout is None and given.split == "test" and name == trained_on == "folder" and given.data:
        given.holdout = held if is_one_tree(given.data) else 0.0
    if given.holdout:
        given.split = "held out"
        part: dict[str, Any] = {"holdout": given.holdout, "part": "held", **options}
        return str(name), load_dataset(name, given.data, "train", download=given.download, **part)
    return str(name), load_dataset(name, given.data, given.split, download=given.download, **options)


def _matched(given: Namespace, dataset: Any, labels: Sequence[str] | None, outputs: int) -> Any:
    """The data set in the order of the model's outputs; by name, or by position where that is asked for."""
    from xnorpp.data.labels import by_position, in_order_of

    dataset = (by_position if given.by_position else in_order_of)(dataset, labels)
    if len(dataset.classes) != outputs:
        raise ValueError(
            f"the model has {outputs} outputs, and the data set {dataset.name!r} has "
            f"{len(dataset.classes)} classes"
        )
    return dataset


def _check_channels(config: dict[str, Any], name: str, dataset: Any) -> None:
    if config["in_channels"] != dataset.info.channels:
        raise ValueError(
            f"the model takes images with {config['in_channels']} channels, and those of {name!r} have "
            f"{dataset.info.channels}"
        )


def _evaluate_packed(given: Namespace) -> int:
    """`xnorpp eval` of a packed file: top-1 and top-5 through the packed engine, without torch."""
    from xnorpp.data.evaluate import evaluate_packed as measure
    from xnorpp.data.labels import by_position
    from xnorpp.data.own import as_images
    from xnorpp.data.progress import Progress
    from xnorpp.inspect.tally import Tally
    from xnorpp.runtime.predict import check_classifier
    from xnorpp.shipped.accuracy import accuracy_text

    if given.network is not None:
        raise ValueError(f"`--network` (={given.network!r}) is for a checkpoint, not for a packed file")
    model = load_packed(given.checkpoint, given)
    stated = model.program.meta
    held = float(stated.get("holdout") or 0.0)
    # Images of a folder are prepared as the file states, by `evaluate_packed`.
    wanted = {"max_skipped": given.max_skipped, "stream": True}
    name, opened = _open(given, stated.get("dataset"), held, wanted)
    dataset = as_images(opened)
    if given.by_position:
        dataset = by_position(dataset, model.labels)
    progress = Progress("evaluating", len(dataset), "images")
    classes = check_classifier(model.program)
    tally = Tally(model.labels or [str(index) for index in range(classes)])
    result = measure(
        model,
        dataset,
        batch=given.batch_size,
        workers=max(given.workers, 1),
        progress=progress.advance,
        max_skipped=given.max_skipped,
        observe=tally.add,
    )
    progress.close()
    _name_skipped(result.skipped)
    print(
        f"{Path(given.checkpoint).name} on {name} ({given.split}, {result.images} images, {model.isa}): "
        f"{accuracy_text(result.top1, result.top5, classes)}, "
        f"calibration error {tally.calibration_error:.3f}"
    )
    _report(given, tally)
    _write_json(
        given.json,
        {
            "model": Path(given.checkpoint).name,
            "dataset": name,
            "split": given.split,
            "images": result.images,
            "top1": result.top1,
            "top5": result.top5,
            **tally.as_dict(),
            "skipped": [lost.name for lost in result.skipped],
            "engine": model.isa,
            "threads": given.threads,
        },
    )
    return 0


def _report(given: Namespace, tally: Tally) -> None:
    """Print or write what --per-class and --confusion ask for."""
    from xnorpp.runtime.predict import printable

    if given.per_class:
        rows = [("class", "images", "top-1 %")]
        for name, images, right in sorted(tally.per_class(), key=lambda row: row[2]):
            rows.append((printable(name), str(images), "no image" if isnan(right) else f"{right:.2f}"))
        print_table(rows)
        for name, other, count in tally.most_confused():
            print(f"{printable(name)} taken for {printable(other)}: {count}")
    if given.confusion is None:
        return
    if given.confusion != "-" and not given.confusion.endswith(".txt"):
        tally.plot(given.confusion)
        return
    matrix = [[printable(cell) for cell in row] for row in tally.text_matrix()]
    if given.confusion == "-":
        print_table(matrix)
        return
    from xnorpp.runtime.files import write_atomically

    write_atomically(given.confusion, "\n".join("\t".join(row) for row in matrix).encode() + b"\n")


def _write_json(path: str | None, result: dict[str, Any]) -> None:
    if path is not None:
        from xnorpp.runtime.files import write_atomically

        write_atomically(path, (json.dumps(result, indent=2) + "\n").encode())
