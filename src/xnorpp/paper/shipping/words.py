"""The text of a model card: what the model is, how to use it, and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD = Path("results") / "shipped.jsonl"  # a row for every model that was shipped
NETWORKS = {"resnet18": "ResNet-18", "resnet20": "ResNet-20", "resnet34": "ResNet-34", "alexnet": "AlexNet",
            "reactnet-a": "ReActNet-A"}  # fmt: skip
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet-200",
            "imagenet": "ImageNet", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}  # fmt: skip

# What a user should know about the images of a data set.
_IMAGES = {
    "cifar10": "CIFAR-10 images are thumbnails of one centred object; a photograph shrunk to 32x32 often "
    "looks unlike them.",
    "tiny_imagenet": "Tiny-ImageNet images are ImageNet's at 64x64; ImageNet is offered for non-commercial "
    "research and teaching. Its test set has no labels: accuracy is that on the official validation set.",
}


def about(card: Mapping[str, Any]) -> str:
    """One line: bits, network, data, image size, classes."""
    data, network = card["data"], card["network"]
    channels, height, width = data["input"]
    bits = "Real-valued" if network["method"] == "real" else "One-bit"
    title = NETWORKS.get(network["name"], network["name"])
    where = DATASETS.get(data["dataset"], data["dataset"])
    kind = "colour" if channels == 3 else "grey"
    return f"{bits} {title} for {where}: {height}x{width} {kind} images, {len(data['classes'])} classes"


def usage(card: Mapping[str, Any]) -> list[str]:
    """What to type, in a shell and in Python."""
    name = card["name"]
    return [
        f"xnorpp predict --model {name} photo.png",
        f"xnorpp eval --model {name} --data DIR",
        f'python: model = xnorpp.load("{name}")',
    ]


def _probabilities(card: Mapping[str, Any]) -> str:
    if not card.get("calibration"):
        return "Probabilities are a softmax, not calibrated."
    how = ", by another run of its recipe" if card["calibration"].get("transferred") else ""
    return (
        f"Probabilities are calibrated on held-out training images{how}; on the test images they are off by "
        f"{100 * card['accuracy']['calibration_error']:.1f} points on average."
    )


def limits(card: Mapping[str, Any]) -> list[str]:
    """Limits, for a user who did not train it."""
    data, accuracy = card["data"], card["accuracy"]
    _, height, width = data["input"]
    found = [
        f"It knows {len(data['classes'])} classes and nothing else: an image of anything else still gets "
        f"one of them. {_probabilities(card)}",
        f"An image of another size is resized to {height}x{width}; its aspect ratio is not preserved.",
        f"It is wrong on {100 - accuracy['packed_top1']:.0f} of 100 test images, and was tested on this "
        "data set alone: expect less on other images.",
    ]
    if card["recipe"].get("settings", {}).get("data", {}).get("enlarge") == "batch":
        found.append(
            f"Its training images were enlarged to {height}x{width} from fewer pixels: an image with finer "
            "detail looks unlike them."
        )
    if data["dataset"] in _IMAGES:
        found.append(_IMAGES[data["dataset"]])
    if not card["baseline"]:
        found.append("No real-valued baseline was measured.")
    found.append(
        "It shows what a one-bit network does. Not for decisions about people or anything that can do harm."
    )
    return found
