"""The model card of a shipped model: what it must have, and how it is shown.

A card is plain JSON. `FIELDS` lists what every card has: a field, and where it is a table the keys of that
table. Accuracies are per cent, `difference` is packed minus torch in points, times are milliseconds of one
call.

`packed` is what `xnorpp predict` and `xnorpp eval` do: images normalised to float32, then the packed file.
`from_bytes` is the same file given the uint8 image itself: the same answers, unless its first layer is one
that the engine rounds to 16 bits (runtime/stem.py).
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from xnorpp.shipped.accuracy import accuracy_text, has_top5

FIELDS: dict[str, tuple[str, ...]] = {
    "name": (),
    "about": (),
    "data": ("dataset", "train_images", "test_images", "input", "classes"),
    "network": ("name", "method", "scale"),
    "recipe": ("name", "changed", "settings", "seed", "epochs", "steps"),
    "trained": ("commit", "hardware", "seconds", "metrics"),
    "packed": ("commit", "date", "half", "binary_layers", "real_layers"),
    "file": ("bytes", "sha256", "float_bytes"),
    "accuracy": (
        "split", "images", "packed_top1", "packed_top5", "torch_top1", "torch_top5", "same_class",
        "difference", "from_bytes_top1", "from_bytes_same_class", "isa", "hardware",
    ),
    "verified": ("images", "bits", "flips_end_to_end", "beyond_the_bound"),
    "baseline": (),
    "latency": (
        "median", "fastest", "from_bytes_median", "from_bytes_fastest", "calls", "batch", "threads", "isa",
        "hardware",
    ),
    "sample": ("images", "seed", "classes", "highest"),
    "licence": ("weights", "data"),
    "use": (),
    "limits": (),
}  # fmt: skip

# Keys of cards that versions before 0.2 wrote.
_RENAMED = {
    "pictures": "images", "train_pictures": "train_images", "test_pictures": "test_images",
    "twin": "baseline",
}  # fmt: skip

# What is known about the terms of the images that a model was trained on.
_TERMS = {
    "cifar10": "CIFAR-10 was published for research without a stated licence",
    "cifar100": "CIFAR-100 was published for research without a stated licence",
    "tiny_imagenet": "Tiny-ImageNet is made of ImageNet's images, which are for non-commercial research and "
    "education",
    "imagenet": "ImageNet's images are for non-commercial research and education",
    "mnist": "MNIST is offered under the Creative Commons licence BY-SA 3.0",
    "fashion_mnist": "Fashion-MNIST is offered under the MIT licence",
}


def licence_of(dataset: str) -> dict[str, str]:
    """The licence of the weights, and the terms of the images they were trained on.

    Example:
        >>> licence_of("fashion_mnist")
        {'weights': 'MIT', 'data': 'Fashion-MNIST is offered under the MIT licence'}
    """
    return {"weights": "MIT", "data": _TERMS.get(dataset, "see the terms of the data set")}


def check_card(card: Any, where: str) -> dict[str, Any]:
    """The card, if it is complete; else one sentence that states what is missing and in which file.

    Example:
        >>> from xnorpp.shipped import check_card, shipped_card
        >>> check_card(shipped_card("cifar10-resnet20"), "mine.json")["name"]
        'cifar10-resnet20'
    """
    if not isinstance(card, dict):
        raise ValueError(f"the model card {where} must be a JSON object")
    given: dict[str, Any] = card
    found: dict[str, Any] = {_RENAMED.get(field, field): value for field, value in given.items()}
    for field, keys in FIELDS.items():
        if field not in found:
            raise ValueError(f"the model card {where} has no field {field!r}")
        if keys and not isinstance(found[field], dict):
            raise ValueError(f"the field {field!r} of the model card {where} must be a table")
        if keys:
            found[field] = {_RENAMED.get(key, key): one for key, one in found[field].items()}
        for key in keys:
            if key not in found[field]:
                raise ValueError(f"the field {field!r} of the model card {where} has no {key!r}")
    return found


def machine(hardware: Mapping[str, Any]) -> str:
    """A machine in a few words: the GPU if it had one, else the processor and its cores."""
    if hardware.get("gpu"):
        count = int(hardware.get("gpus", 1))
        return str(hardware["gpu"]) + (f" x {count}" if count > 1 else "")
    cores = hardware.get("cores")
    return str(hardware.get("cpu", "unknown processor")) + (f", {cores} cores" if cores else "")


def size_text(size: float) -> str:
    """Bytes in the unit a person would choose."""
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def summary_rows(cards: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A heading and one row per model: name, packed accuracy, size, latency, what it is.

    Example:
        >>> from xnorpp.shipped import shipped_card, summary_rows
        >>> head, row = summary_rows([shipped_card("cifar10-resnet20")])
        >>> head[0], row[0]
        ('name', 'cifar10-resnet20')
    """
    cards = tuple(cards)
    with_top5 = [has_top5(len(card["data"]["classes"])) for card in cards]
    column = any(with_top5)
    heading = ["top-5 %"] * column
    rows: list[tuple[str, ...]] = [("name", "top-1 %", *heading, "size", "one image", "what it is")]
    for card, shown in zip(cards, with_top5):
        accuracy, latency = card["accuracy"], card["latency"]
        rows.append(
            (
                str(card["name"]),
                f"{accuracy['packed_top1']:.2f}",
                *[f"{accuracy['packed_top5']:.2f}" if shown else ""] * column,
                size_text(card["file"]["bytes"]),
                f"{latency['from_bytes_median']:.2f} ms",
                str(card["about"]),
            )
        )
    return rows


def short_card(card: Mapping[str, Any]) -> str:
    """The card in a few lines: data, recipe, seed, commit, the machines, and what it does not know.

    Example:
        >>> from xnorpp.shipped import shipped_card, short_card
        >>> short_card(shipped_card("cifar10-resnet20")).partition(" by ")[0]
        'cifar10-resnet20: trained on cifar10'
    """
    recipe, accuracy, shape = card["recipe"], card["accuracy"], card["data"]["input"]
    text = (
        f"{card['name']}: trained on {card['data']['dataset']} by {recipe['name']}, seed {recipe['seed']}, "
        f"{recipe['epochs']} epochs, commit {str(card['trained']['commit'])[:12]}, on "
        f"{machine(card['trained']['hardware'])}. Accuracy: packed, {accuracy['images']:,} "
        f"{accuracy['split']} images, {accuracy['difference']:+.2f} points from torch's. Time: from bytes, "
        f"median, one thread, {machine(card['latency']['hardware'])}. Knows its "
        f"{len(card['data']['classes'])} classes only, at {shape[1]}x{shape[2]}."
    )
    return textwrap.fill(text, 100, subsequent_indent="    ", break_on_hyphens=False)


def render_card(card: Mapping[str, Any], width: int = 100) -> str:
    """The whole card as text.

    Example:
        >>> from xnorpp.shipped import render_card, shipped_card
        >>> print(render_card(shipped_card("cifar10-resnet20")).partition(":")[0])
        cifar10-resnet20
    """
    parts = [(title, text) for title, text in _parts(card) if text]
    margin = max(len(title) for title, _ in parts) + 2
    lines = [f"{card['name']}: {card['about']}", ""]
    for title, text in parts:
        for number, one in enumerate(text.splitlines()):
            first = title.ljust(margin) if not number else " " * margin
            lines += textwrap.wrap(
                one, width, initial_indent=first, subsequent_indent=" " * margin,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(lines)


def _parts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    data, recipe, trained, packed = (card[key] for key in ("data", "recipe", "trained", "packed"))
    accuracy, latency, file, verified = (card[key] for key in ("accuracy", "latency", "file", "verified"))
    shape, classes = data["input"], data["classes"]
    shown = classes if len(classes) <= 20 else [*classes[:5], "...", classes[-1]]
    own, torchs = (
        accuracy_text(accuracy[f"{engine}_top1"], accuracy[f"{engine}_top5"], len(classes))
        for engine in ("packed", "torch")
    )
    options = {key: card["network"][key] for key in sorted(card["network"]) if key not in _PLAIN}
    return [
        (
            "accuracy",
            f"{own}: the packed file on the CPU ({accuracy['isa']}), all {accuracy['images']:,} "
            f"{accuracy['split']} images\n"
            f"torch, float32, the same images: {torchs} (difference {accuracy['difference']:+.2f} points, "
            f"same class on {accuracy['same_class']:.2f} %)\n"
            f"the packed file given bytes: top-1 {accuracy['from_bytes_top1']:.2f} %, torch's class on "
            f"{accuracy['from_bytes_same_class']:.2f} %",
        ),
        ("probabilities", _calibration(card)),
        ("real-valued", _baseline(card)),
        (
            "file",
            f"{file['bytes']:,} bytes, {file['float_bytes'] / file['bytes']:.1f} times smaller than the "
            f"float32 state_dict; {packed['binary_layers']} binary and {packed['real_layers']} real layers"
            f"{', real ones in 16 bits' if packed['half'] else ''}\nsha256 {file['sha256']}",
        ),
        (
            "latency",
            f"{latency['median']:.3f} ms median, {latency['fastest']:.3f} ms fastest of {latency['calls']} "
            f"calls; given bytes {latency['from_bytes_median']:.3f} and "
            f"{latency['from_bytes_fastest']:.3f} ms\n"
            f"batch {latency['batch']}, {latency['threads']} thread, {latency['isa']}, "
            f"{machine(latency['hardware'])}; including normalisation, without reading the image",
        ),
        (
            "exactness",
            f"{verified['beyond_the_bound']} values beyond the rounding bound on {verified['images']} "
            f"images; end to end {verified['flips_end_to_end']:,} of {verified['bits']:,} signs differ",
        ),
        (
            "network",
            f"{card['network']['name']}, {card['network']['method']}, scale {card['network']['scale']}"
            + "".join(f", {key} {value}" for key, value in options.items()),
        ),
        (
            "data",
            f"{data['dataset']}: {data['train_images']:,} training images, tested on "
            f"{data['test_images']:,}; input {shape[1]}x{shape[2]}, {_COLOURS.get(shape[0], shape[0])}\n"
            f"{len(classes)} classes: {', '.join(shown)}",
        ),
        (
            "recipe",
            f"{recipe['name']}, seed {recipe['seed']}, {recipe['epochs']} epochs ({recipe['steps']:,} steps)"
            + "".join(f"\n--set {key}={_value(one)}" for key, one in recipe["changed"].items()),
        ),
        (
            "trained",
            f"on {machine(trained['hardware'])} in {trained['seconds'] / 60:.1f} minutes, commit "
            f"{trained['commit']}",
        ),
        ("packed", f"{packed['date']}, commit {packed['commit']}"),
        ("licence", f"weights: {card['licence']['weights']}; data: {card['licence']['data']}"),
        ("use", "\n".join(card["use"])),
        ("limits", "\n".join(f"- {limit}" for limit in card["limits"])),
    ]


_COLOURS = {1: "grey", 3: "colour"}
_PLAIN = ("name", "method", "scale", "in_channels", "num_classes", "input_size")


def _value(value: Any) -> str:
    """As `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _calibration(card: Mapping[str, Any]) -> str:
    found = card.get("calibration")  # cards of models whose training held no images out have none
    if not found:
        return ""
    accuracy = card["accuracy"]
    return (
        f"divided by temperature {found['temperature']:.3f}, fitted on {found['images']:,} images of "
        f"{found['fitted_on']}; expected calibration error on the {accuracy['split']} images "
        f"{accuracy['calibration_error']:.3f} ({accuracy['calibration_error_at_1']:.3f} without it)"
    )


def _baseline(card: Mapping[str, Any]) -> str:
    baseline = card["baseline"]
    if not baseline:
        return ""
    gap = baseline["top1"] - card["accuracy"]["packed_top1"]
    known = [
        f"{key} {baseline[key]}" for key in ("seed", "epochs", "commit") if baseline.get(key) is not None
    ]
    place = "above" if gap >= 0 else "below"
    return (
        f"top-1 {baseline['top1']:.2f} %, {abs(gap):.2f} points {place} this model "
        f"({', '.join([baseline['recipe'], *known])})"
    )
