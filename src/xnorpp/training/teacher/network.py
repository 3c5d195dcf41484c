"""The real-valued network that a binary one learns from.

A teacher is one of our checkpoints, or a state_dict of a torchvision ResNet (18, 34, 50, 101, 152;
recognised by its names). Torchvision itself is not needed: the network its names describe is built here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.training.state.checkpoint import load_model
from xnorpp.training.state.initial import is_checkpoint, is_torchvision_resnet, read_state_dict


def load_teacher(
    path: str | Path, num_classes: int, device: torch.device, *, in_channels: int | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """A frozen network in evaluation mode, for images of `in_channels` (None: not checked), and what is known
    of it: of a state_dict nothing.
    """
    facts: dict[str, Any] = {}
    if is_checkpoint(path):
        model, meta = load_model(path)
        facts = _facts(meta)
        found = int(model.config["num_classes"])  # type: ignore[index]
    else:
        state = read_state_dict(path)
        if not is_torchvision_resnet(state):
            raise ValueError(
                f"`loss.teacher` (={str(path)!r}) must be an xnorpp checkpoint or a state_dict of "
                "torchvision's ResNet."
            )
        model = TorchvisionResNet(state)
        model.load_state_dict(state, strict=True)
        found = state["fc.weight"].shape[0]
    if found != num_classes:
        raise ValueError(f"The teacher {path} knows {found} classes and the data set has {num_classes}.")
    taken = next(layer.in_channels for layer in model.modules() if isinstance(layer, nn.Conv2d))
    if in_channels not in (None, taken):
        raise ValueError(
            f"The teacher {path} takes images of {taken} channels and the data set's have {in_channels}."
        )
    return model.to(device).eval().requires_grad_(False), facts


def _facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What a student's checkpoint records of its teacher: which images it never saw, among other things."""
    recipe = meta.get("recipe") or {}
    holdout = (recipe.get("data") or {}).get("holdout", 0.0)
    facts = {"recipe": recipe.get("name", ""), "dataset": meta.get("dataset"), "holdout": holdout}
    return {**facts, **{key: meta.get(key) for key in ("commit", "epoch", "metrics", "seed")}}


class TorchvisionResNet(nn.Module):
    """The post-activation ResNet whose parameter names `state` has."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for stage in range(1, 5):
            blocks = sorted({int(name.split(".")[1]) for name in state if name.startswith(f"layer{stage}.")})
            made = [
                _Block(state, f"layer{stage}.{block}.", 2 if stage > 1 and block == 0 else 1)
                for block in blocks
            ]
            self.add_module(f"layer{stage}", nn.Sequential(*made))
        classes, features = state["fc.weight"].shape
        self.fc = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        out: Tensor = self.fc(x.mean(dim=(2, 3)))
        return out


class _Block(nn.Module):
    """A basic block (two convolutions) or a bottleneck (three), with stride on its 3x3 as torchvision has
    it.
    """

    def __init__(self, state: Mapping[str, Tensor], prefix: str, stride: int) -> None:
        super().__init__()
        self.depth = 3 if f"{prefix}conv3.weight" in state else 2
        strided = 2 if self.depth == 3 else 1
        for index in range(1, self.depth + 1):
            out, into, kernel, _ = state[f"{prefix}conv{index}.weight"].shape
            conv = nn.Conv2d(into, out, kernel, stride if index == strided else 1, kernel // 2, bias=False)
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", nn.BatchNorm2d(out))
        self.downsample: nn.Module | None = None
        if f"{prefix}downsample.0.weight" in state:
            out, into, _, _ = state[f"{prefix}downsample.0.weight"].shape
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        for index in range(1, self.depth + 1):
            x = self.get_submodule(f"bn{index}")(self.get_submodule(f"conv{index}")(x))
            x = torch.relu(x) if index < self.depth else x
        return torch.relu(x + shortcut)
