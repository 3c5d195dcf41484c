"""The words of a model card: what the model is, how to use it, and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NETWORKS = {"resnet18": "ResNet-18", "resnet20": "ResNet-20", "resnet34": "ResNet-34", "alexnet": "AlexNet"}
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet-200",
            "imagenet": "ImageNet", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}  # fmt: skip

# What one must know about the pictures of a data set.
_PICTURES = {
    "cifar10": "CIFAR-10's pictures are thumbnails of one centred object; a photograph shrunk to 32x32 often "
    "looks unlike them.",
    "tiny_imagenet": "Tiny-ImageNet's pictures are ImageNet's, 64x64; ImageNet is offered for non-commercial "
    "research and teaching. Its test set has no labels: accuracy is that on the official validation set.",
}


def about(card: Mapping[str, Any]) -> str:
    """One line: bits, network, data, picture, classes."""
    data, network = card["data"], card["network"]
    channels, height, width = data["input"]
    bits = "Real-valued" if network["method"] == "real" else "One-bit"
    title = NETWORKS.get(network["name"], network["name"])
    where = DATASETS.get(data["dataset"], data["dataset"])
    kind = "colour" if channels == 3 else "grey"
    return f"{bits} {title} for {where}: {height}x{width} {kind} pictures, {len(data['classes'])} classes"


def usage(card: Mapping[str, Any]) -> list[str]:
    """What to type, in a shell and in Python."""
    name = card["name"]
    return [
        f"xnorpp predict --model {name} picture.png",
        f"xnorpp eval --model {name} --data DIR",
        f'python: model = xnorpp.load(xnorpp.shipped_path("{name}"))',
    ]


def limits(card: Mapping[str, Any]) -> list[str]:
    """Plain words for a person who did not train it."""
    data, accuracy = card["data"], card["accuracy"]
    _, height, width = data["input"]
    found = [
        f"It knows {len(data['classes'])} classes and nothing else: a picture of anything else still gets "
        "one of them. Probabilities are a softmax, not calibrated.",
        f"A picture of another size is resized to {height}x{width} without keeping its aspect.",
        f"It is wrong on {100 - accuracy['packed_top1']:.0f} of 100 test pictures, and was tested on this "
        "data set alone: expect less on pictures from elsewhere.",
    ]
    if data["dataset"] in _PICTURES:
        found.append(_PICTURES[data["dataset"]])
    if not card["twin"]:
        found.append("No real-valued twin was measured beside it.")
    found.append(
        "It shows what a one-bit network does. Not for decisions about people or anything that can do harm."
    )
    return found
