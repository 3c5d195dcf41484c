"""Makes a model that ships: a checkpoint in, `NAME.xnor` and its model card `NAME.json` out.

    xnorpp paper ship RUN --name cifar10-resnet18 --data DIR --baseline results/accuracy.jsonl

The checkpoint is packed, the packing verified, and every test image is put through the packed file on the
CPU and through torch. A network whose training held images out gets the temperature that suits those. A file
whose top-1 accuracy is not torch's within `TOLERANCE` points, or that differs by more than rounding explains,
is refused. Every attempt, refused too, is a row of `results/shipped.jsonl`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xnorpp import shipped
from xnorpp.bench.machine import describe_machine
from xnorpp.data import Dataset, Skipped, dataset_info, load_dataset
from xnorpp.data.evaluate import prepared, ranks
from xnorpp.data.progress import Progress
from xnorpp.inspect import inspect_file
from xnorpp.inspect.stopwatch import interleave
from xnorpp.models import create_model
from xnorpp.packing import verify
from xnorpp.paper.recorded import read_file
from xnorpp.paper.shipping.again import fit_again, measure_again
from xnorpp.paper.shipping.calibrated import calibrate_on_held, calibration_errors
from xnorpp.paper.shipping.words import RECORD, about, limits, usage
from xnorpp.runtime import PackedModel, load
from xnorpp.runtime.errors import FAILED, XnorppError
from xnorpp.runtime.files import write_atomically
from xnorpp.runtime.predict import preprocess_of
from xnorpp.shipped.card import check_card, licence_of, size_text
from xnorpp.training.accuracy import exact_float32
from xnorpp.training.packing import float_bytes, pack_checkpoint
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.recipe.library import list_recipes, load_recipe
from xnorpp.training.records.record import append_rows, source_commit, today
from xnorpp.training.state.checkpoint import load_checkpoint

TOLERANCE = 0.05  # points of top-1 between the packed file and torch
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SAMPLE = 16
ROUNDS = 20  # of twenty timed calls each

Say = Callable[[str], None]


class Refused(XnorppError, RuntimeError):
    """The packed file differs too much from the trained network; the message gives the difference."""

    exit_code = FAILED


def ship(
    checkpoint: str | Path,
    name: str,
    data: str | Path | None,
    folder: str | Path | None = None,
    *,
    dataset: str | None = None,
    baseline: str | Path | None = None,
    baseline_recipe: str | None = None,
    record: str | Path | None = RECORD,
    half: bool = False,
    force: bool = False,
    measure_only: bool = False,
    batch: int = 100,
    verify_images: int = 16,
    rounds: int | None = None,
    statistics: int = 0,
    output: int = 0,
    device: str = "cpu",
    say: Say = print,
) -> dict[str, Any]:
    """Pack, verify, measure and write `NAME.xnor` and `NAME.json` into `folder`; the card is returned.

    `folder` is the package's own, if none is given. `baseline` has the accuracy of the real-valued one: the
    folder of its run, or a .jsonl file of results, in which the newest row of `baseline_recipe` (the
    checkpoint's recipe followed by -real) counts. With `statistics`, those of batch norm are first
    re-estimated over this many batches of training images; with `output`, the output layer is then fitted
    again to this many batches of whole training images. `device` is where torch runs; the packed file always
    runs on the CPU. `measure_only` records the measurements as a row of kind "measured" and writes no
    model: for other seeds of a network that ships.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"`name` (={name!r}) must be of small letters, digits and single hyphens")
    folder = shipped.FOLDER if folder is None else Path(folder)
    meta = load_checkpoint(checkpoint).meta
    test_set = load_dataset(dataset or meta["dataset"], data, "test")
    found_baseline = (
        read_baseline(baseline, baseline_recipe or f"{meta['recipe']['name']}-real") if baseline else None
    )

    def prepare(network: nn.Module) -> None:
        if statistics:
            measure_again(network, meta, data, statistics, device, say)
        if output:
            fit_again(network, meta, data, output, device, say)

    with tempfile.TemporaryDirectory(prefix="xnorpp-ship-") as temporary:
        path = Path(temporary) / f"{name}.xnor"
        model, meta = pack_checkpoint(
            checkpoint,
            path,
            half=half,
            labels=test_set.classes,
            prepare=prepare if statistics or output else None,
        )
        calibration = calibrate_on_held(path, meta, data, say)
        content = path.read_bytes()
        layers = inspect_file(path)
    packed = load(content)
    say(f"packed: {size_text(len(content))}, {len(test_set.classes)} classes; verifying")
    verified = check_exactness(model, packed, test_set, verify_images, half=half)
    say(f"verified: {verified['beyond_the_bound']} values beyond the bound; measuring on {test_set.name}")
    accuracy = measure(model, packed, test_set, batch=batch, device=device)
    say(
        f"accuracy on {accuracy['images']:,} images: top-1 {accuracy['packed_top1']:.2f} % packed, "
        f"{accuracy['torch_top1']:.2f} % torch; same class on {accuracy['same_class']:.2f} %; timing"
    )
    card: dict[str, Any] = {
        "name": name,
        "data": describe_data(test_set, packed, meta),
        "network": meta["model"],
        "recipe": describe_recipe(meta),
        "trained": {key: meta.get(key) for key in ("commit", "hardware", "seconds", "metrics")},
        "packed": {
            "commit": source_commit(),
            "date": today(),
            "half": half,
            "statistics_batches": statistics,
            **({"output_batches": output} if output else {}),
            "binary_layers": layers.count("binary"),
            "real_layers": layers.count("real"),
        },
        "file": {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "float_bytes": float_bytes(model),
        },
        "accuracy": accuracy,
        "calibration": calibration,
        "verified": verified,
        "baseline": found_baseline,
        "latency": time_one(content, rounds or ROUNDS),
        "sample": {"images": SAMPLE, "seed": 0, **answers(packed, sample_images(packed))},
    }
    card.update(
        about=about(card),
        licence=licence_of(card["data"]["dataset"]),
        use=usage(card),
        limits=limits(card),
    )
    check_card(card, f"{name}.json")
    say(f"latency: {card['latency']['median']:.3f} ms median, {card['latency']['fastest']:.3f} ms fastest")
    problem = why_not(card)
    if record is not None:
        append_row(record, card, problem if not force else None, "measured" if measure_only else "shipped")
    if measure_only:
        return card
    if problem and not force:
        raise Refused(f"{name} is not shipped: {problem}; --force ships it all the same")
    write_model(folder, name, content, card)
    say(f"shipped: {folder / name}.xnor and .json")
    return card


def write_model(folder: Path, name: str, content: bytes, card: Mapping[str, Any]) -> None:
    """`NAME.xnor` and `NAME.json`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.xnor", content)
    write_atomically(folder / f"{name}.json", (json.dumps(card, indent=1, sort_keys=True) + "\n").encode())


def why_not(card: Mapping[str, Any]) -> str | None:
    """What forbids shipping, or None. 16-bit weights are other weights: there accuracy alone decides."""
    beyond = card["verified"]["beyond_the_bound"]
    if beyond and not card["packed"]["half"]:
        return f"{beyond} values differ from the trained network's by more than rounding explains"
    points = card["accuracy"]["difference"]
    if abs(points) > TOLERANCE + 1e-9:
        return f"its top-1 differs from torch's by {points:+.2f} points, more than {TOLERANCE}"
    return None


def check_exactness(
    model: nn.Module, packed: PackedModel, dataset: Dataset, count: int, *, half: bool
) -> dict[str, Any]:
    """`xnorpp.packing.verify` on the first images of the set."""
    images, _ = next(prepared(dataset, preprocess_of(packed.program), min(count, len(dataset)), 1, []))
    found = verify(model, preprocess_of(packed.program).normalise(images), half=half)
    return {
        "images": len(images),
        "bits": found.bits,
        "flips_end_to_end": found.flips,
        "beyond_the_bound": sum(layer.beyond for layer in found.layers),
    }


def measure(
    model: nn.Module, packed: PackedModel, dataset: Dataset, *, batch: int, device: str = "cpu"
) -> dict[str, Any]:
    """Packed and torch on the same prepared images: top-1 and top-5, how often the classes agree.

    The packed file gets the normalised images, as in `xnorpp predict`, and separately the bytes.
    """
    preprocess = preprocess_of(packed.program)
    model = model.to(device).eval()
    skipped: list[Skipped] = []
    progress = Progress("evaluating, packed and torch", len(dataset), "images")
    right = dict.fromkeys(itertools.product(("packed", "from_bytes", "torch"), (1, 5)), 0)
    same = {"packed": 0, "from_bytes": 0}
    count = 0
    all_scores: list[npt.NDArray[Any]] = []
    all_labels: list[npt.NDArray[np.int64]] = []
    for images, labels in prepared(dataset, preprocess, batch, 2, skipped):
        floats = preprocess.normalise(images)
        with torch.inference_mode(), exact_float32():
            trained = model(torch.from_numpy(floats).to(device)).float().cpu().numpy()
        scores = {"packed": packed(floats), "from_bytes": packed(images), "torch": trained}
        for key, top in right:
            right[key, top] += int((ranks(scores[key], labels) <= top).sum())
        for key in same:
            same[key] += int((scores[key].argmax(1) == trained.argmax(1)).sum())
        count += len(labels)
        all_scores.append(scores["packed"])
        all_labels.append(labels)
        progress.advance(len(labels))
    progress.close()
    errors = calibration_errors(np.concatenate(all_scores), np.concatenate(all_labels), packed)
    found = {f"{key}_top{top}": 100 * number / count for (key, top), number in right.items()}
    return {
        "split": dataset.split,
        "images": count,
        "unreadable": len(skipped),
        **found,
        "same_class": 100 * same["packed"] / count,
        "from_bytes_same_class": 100 * same["from_bytes"] / count,
        "difference": round(found["packed_top1"] - found["torch_top1"], 6),
        **errors,
        "isa": packed.isa,
        "hardware": describe_machine(),
    }


def time_one(content: bytes, rounds: int) -> dict[str, Any]:
    """Milliseconds per image on one thread: normalised and run, as `xnorpp predict` does once it has the
    pixels, and run from bytes; the two in turns.
    """
    packed = load(content, threads=1)
    preprocess = preprocess_of(packed.program)
    image = sample_images(packed)[:1]
    ways = {"ours": lambda: packed(preprocess.normalise(image)), "from_bytes": lambda: packed(image)}
    found = interleave(ways, rounds=rounds, repeat=20, settle=0.02)
    return {
        "median": 1e3 * found["ours"].median,
        "fastest": 1e3 * found["ours"].minimum,
        "from_bytes_median": 1e3 * found["from_bytes"].median,
        "from_bytes_fastest": 1e3 * found["from_bytes"].minimum,
        "calls": found["ours"].calls,
        "batch": 1,
        "threads": 1,
        "isa": packed.isa,
        "hardware": describe_machine(),
    }


def sample_images(packed: PackedModel, count: int = SAMPLE, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Patches of random colour with noise, which anyone can make again: (count, h, w, c)."""
    channels, height, width = packed.program.input_shape
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 200, (count, 4, 4, channels))
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    noise = random.integers(0, 56, (count, height, width, channels))
    return np.asarray(coarse[:, rows][:, :, columns] + noise, dtype=np.uint8)


def answers(packed: PackedModel, images: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """What a test compares later: the class of each sample image, and its output."""
    outputs = packed(preprocess_of(packed.program).normalise(images))
    return {
        "classes": [int(index) for index in outputs.argmax(1)],
        "highest": [round(float(value), 5) for value in outputs.max(1)],
    }


def describe_data(dataset: Dataset, packed: PackedModel, meta: Mapping[str, Any]) -> dict[str, Any]:
    holdout = float(meta["recipe"].get("data", {}).get("holdout", 0.0))
    return {
        "dataset": dataset.name,
        "train_images": round(dataset_info(dataset.name).train_size * (1 - holdout)),
        "test_images": len(dataset),
        "input": list(packed.program.input_shape),
        "classes": list(dataset.classes),
    }


def describe_recipe(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's name, all its settings, and those that differ from the recipe of that name."""
    settings = without_places(meta["recipe"])
    name = str(settings["name"])
    usual = _flat(load_recipe(name).to_dict()) if name in list_recipes() else _flat(Recipe().to_dict())
    flat = _flat(settings)
    changed = {key: flat[key] for key in sorted(flat) if flat[key] != usual.get(key, None)}
    options = _usual_options(usual, meta["model"])
    return {
        "name": name,
        "changed": {
            key: value for key, value in changed.items() if key not in options or options[key] != value
        },
        "settings": settings,
        "seed": meta.get("seed"),
        "epochs": meta.get("epoch"),
        "steps": meta.get("step"),
    }


def _usual_options(usual: Mapping[str, Any], built: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe's network has by default: an option that is named and has this value is no change."""
    given = {
        key.removeprefix("model.options."): usual[key] for key in usual if key.startswith("model.options.")
    }
    same = {key: built[key] for key in ("input_size", "num_classes", "in_channels")}
    with torch.device("meta"):
        model: Any = create_model(usual["model.name"], method=usual["model.method"], **same, **given)
    return {f"model.options.{key}": value for key, value in model.config.items()}


def without_places(value: Any) -> Any:
    """The same settings, with the last two parts of each absolute path: where it lay is nobody's business."""
    if isinstance(value, Mapping):
        return {key: without_places(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    if isinstance(value, str) and PurePath(value).is_absolute():
        return "/".join(PurePath(value).parts[1:][-2:])
    return value


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{above}{key}."))
        else:
            found[above + key] = value
    return found


def read_baseline(source: str | Path, recipe: str) -> dict[str, Any]:
    """The measured real-valued baseline: of a run's folder, or of the newest row in a .jsonl file."""
    path = Path(source)
    if path.is_dir():
        row = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        epochs, recipe = row["recipe"]["schedule"]["epochs"], str(row["recipe"]["name"])
    else:
        lines = read_file(path)
        rows = [
            row
            for row in lines
            if row.get("recipe") == recipe
            and row.get("split", "test") == "test"
            and not (row.get("quick") or row.get("flaw"))
        ]
        if not rows:
            known = ", ".join(sorted({str(row.get("recipe")) for row in lines})) or "none"
            raise ValueError(
                f"`baseline` (={str(path)!r}) has no test result of recipe {recipe!r}; its recipes are "
                f"{known}"
            )
        row = rows[-1]
        epochs = row.get("epochs")
    return {
        "recipe": recipe,
        "seed": row.get("seed"),
        "epochs": epochs,
        "top1": row["metrics"]["top1"],
        "top5": row["metrics"].get("top5"),
        "commit": row.get("commit"),
        "source": path.name,
    }


def append_row(
    record: str | Path, card: Mapping[str, Any], refused: str | None, kind: str = "shipped"
) -> dict[str, Any]:
    """One line of results; `refused` is the reason why nothing was shipped."""
    left_out = ("use", "limits", "sample")
    row = {
        "kind": kind,
        **{key: value for key, value in card.items() if key not in left_out},
        "seed": card["recipe"]["seed"],
        "commit": card["packed"]["commit"],
        "date": card["packed"]["date"],
        "hardware": card["latency"]["hardware"],
        "refused": refused,
    }
    append_rows(record, [row])
    return row
